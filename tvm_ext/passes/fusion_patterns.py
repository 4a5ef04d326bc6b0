"""Passes that give kernels another pattern for fusion than ``AnnotateTIROpPattern`` does."""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm import tirx


def with_pattern(name: str, pattern: int, applies: Callable[[tirx.PrimFunc], bool]) -> tvm.transform.Pass:
    """Make the pass that gives ``pattern`` to the kernels that ``applies`` says it is for."""

    @tvm.transform.module_pass(opt_level=0, name=name)
    def _with_pattern(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        changed = {
            variable: func.with_attr("op_pattern", pattern)
            for variable, func in mod.functions_items()
            if isinstance(func, tirx.PrimFunc) and applies(func)
        }
        if not changed:
            return mod
        result = mod.clone()
        for variable, func in changed.items():
            result.update_func(variable, func)
        return result

    return _with_pattern
