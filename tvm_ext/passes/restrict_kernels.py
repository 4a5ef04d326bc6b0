"""Say of kernels that their buffers do not overlap, where that follows from how they are called.

before: ``call_tir(kernel, (a, b))``, ``kernel`` without the attribute ``tirx.noalias``
after:  the same, with the attribute

``call_tir`` gives a kernel new memory for its results, so the attribute holds. It matters beyond the kernel: one kernel
without it makes TVM's code generator describe all buffers of the module as overlapping, and sums that should stay in
registers are then stored at every step.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax
from tvm.tirx import BufferType, PrimFunc

NOALIAS = "tirx.noalias"


def restrict_kernels() -> tvm.transform.Pass:
    """Make the pass; kernels that are called in any other way than by ``call_tir`` stay as they are."""

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.RestrictKernels")
    def _restrict_kernels(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        called: set[str] = set()
        otherwise: set[str] = set()

        def visit(expr: Any) -> None:
            if isinstance(expr, relax.Call):
                by_call_tir = getattr(expr.op, "name", "") == "relax.call_tir"
                for function in (expr.op, *expr.args):
                    if isinstance(function, tvm.ir.GlobalVar):
                        (called if by_call_tir else otherwise).add(function.name_hint)

        for func in mod.functions.values():
            if isinstance(func, relax.Function):
                relax.analysis.post_order_visit(func, visit)
        updated = tvm.IRModule(mod.functions, attrs=mod.attrs, global_infos=mod.global_infos)
        for global_var, func in mod.functions.items():
            name = global_var.name_hint
            if isinstance(func, PrimFunc) and name in called - otherwise and NOALIAS not in (func.attrs or {}):
                updated.update_func(global_var, func.with_attr(NOALIAS, True))
        return updated

    return _restrict_kernels


def restrict_lone_buffers() -> tvm.transform.Pass:
    """Make the pass that says it of functions with one buffer at most, such as those that compute extents."""

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.RestrictLoneBuffers")
    def _restrict_lone_buffers(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        updated = tvm.IRModule(mod.functions, attrs=mod.attrs, global_infos=mod.global_infos)
        for global_var, func in mod.functions.items():
            if isinstance(func, PrimFunc) and NOALIAS not in (func.attrs or {}):
                buffers = [parameter for parameter in func.params if isinstance(parameter.ty, BufferType)]
                if len(buffers) <= 1:
                    updated.update_func(global_var, func.with_attr(NOALIAS, True))
        return updated

    return _restrict_lone_buffers
