"""Keep kernels that make numbers of type float8 out of fusion.

TVM computes what is float8 in a wider type until it is stored, and takes ``float32(float8(v))`` for ``v``: numbers that
a model rounds to float8 and widens again would be left as they were if both were in one kernel.
"""

from __future__ import annotations

import tvm

from tvm_ext.passes.fusion_patterns import with_pattern
from tvm_ext.relax_utils import OPAQUE
from tvm_ext.schedules.simd.small_floats import makes_float8


def float8_apart() -> tvm.transform.Pass:
    """Make the pass; it belongs behind ``AnnotateTIROpPattern``."""
    return with_pattern("tvm_ext.Float8Apart", OPAQUE, lambda func: makes_float8(func.body))
