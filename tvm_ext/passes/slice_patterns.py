"""Say of slices that they are no element-wise operators.

``AnnotateTIROpPattern`` looks at indices only: a slice that begins at the first element reads ``x[i, j]`` for
``y[i, j]``, as an element-wise operator does, and is fused behind a convolution, whose kernel has other extents then.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx
from tvm.ir.prim import expr as prim

from tvm_ext.relax_utils import BROADCAST, INJECTIVE


def slice_patterns() -> tvm.transform.Pass:
    """Make the pass; it belongs behind ``AnnotateTIROpPattern``."""

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.SlicePatterns")
    def _slice_patterns(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        changed = {
            variable: func.with_attr("op_pattern", INJECTIVE)
            for variable, func in mod.functions_items()
            if isinstance(func, tirx.PrimFunc)
            and int((func.attrs or {}).get("op_pattern", INJECTIVE)) <= BROADCAST
            and _reads_more_than_it_stores(func)
        }
        if not changed:
            return mod
        result = mod.clone()
        for variable, func in changed.items():
            result.update_func(variable, func)
        return result

    return _slice_patterns


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
