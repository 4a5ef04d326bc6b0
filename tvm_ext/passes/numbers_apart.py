"""Keep kernels that take numbers, such as the extent that ``shape_to_tensor`` stores, out of fusion.

TVM's ``FuseTIR`` fails where such a kernel meets one that gets an open extent from a shape: the variable is defined
twice in what it makes of them.
"""

from __future__ import annotations

import tvm
from tvm import tirx

from tvm_ext.passes.fusion_patterns import with_pattern
from tvm_ext.relax_utils import OPAQUE


def numbers_apart() -> tvm.transform.Pass:
    """Make the pass; it belongs behind ``AnnotateTIROpPattern``."""
    return with_pattern("tvm_ext.NumbersApart", OPAQUE, lambda func: not all(map(tirx.is_buffer_var, func.params)))
