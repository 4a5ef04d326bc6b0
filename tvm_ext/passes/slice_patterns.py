"""Say of slices that they are no element-wise operators.

``AnnotateTIROpPattern`` looks at indices only: a slice that begins at the first element reads ``x[i, j]`` for
``y[i, j]``, as an element-wise operator does, and is fused behind a convolution, whose kernel has other extents then.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx
from tvm.ir.prim import expr as prim

from tvm_ext.passes.fusion_patterns import with_pattern
from tvm_ext.relax_utils import BROADCAST, INJECTIVE


def slice_patterns() -> tvm.transform.Pass:
    """Make the pass; it belongs behind ``AnnotateTIROpPattern``."""
    return with_pattern("tvm_ext.SlicePatterns", INJECTIVE, _is_slice)


def _is_slice(func: tirx.PrimFunc) -> bool:
    return int((func.attrs or {}).get("op_pattern", INJECTIVE)) <= BROADCAST and _reads_more_than_it_stores(func)


def _reads_more_than_it_stores(func: tirx.PrimFunc) -> bool:
    """Whether an operand is longer than the last parameter, the result, along an axis."""
    if not all(map(tirx.is_buffer_var, func.params)):
        return False
    *operands, result = [_extents(param.ty.shape) for param in func.params]
    return any(_is_longer(extents, result) for extents in operands if len(extents) == len(result))


def _is_longer(operand: list[int | None], result: list[int | None]) -> bool:
    return any(a is not None and b is not None and a > b for a, b in zip(operand, result, strict=True))


def _extents(shape: Any) -> list[int | None]:
    return [int(extent) if isinstance(extent, int | prim.IntImm) else None for extent in shape]
