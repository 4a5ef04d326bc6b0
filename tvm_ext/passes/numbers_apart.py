"""Keep kernels that take numbers, such as the extent that ``shape_to_tensor`` stores, out of fusion.

TVM's ``FuseTIR`` fails where such a kernel meets one that gets an open extent from a shape: the variable is defined
twice in what it makes of them.
"""

from __future__ import annotations

import tvm
from tvm import tirx

OPAQUE = 8
"""``TOpPattern``: fused with nothing."""


def numbers_apart() -> tvm.transform.Pass:
    """Make the pass; it belongs behind ``AnnotateTIROpPattern``."""

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.NumbersApart")
    def _numbers_apart(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        changed = {
            variable: func.with_attr("op_pattern", OPAQUE)
            for variable, func in mod.functions_items()
            if isinstance(func, tirx.PrimFunc) and not all(map(tirx.is_buffer_var, func.params))
        }
        if not changed:
            return mod
        result = mod.clone()
        for variable, func in changed.items():
            result.update_func(variable, func)
        return result

    return _numbers_apart
