"""Asks TVM's FuseOps which kernels it would make one, without changing the module."""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx


def fuse_ops_groups(mod: tvm.IRModule, func: relax.Function) -> list[list[int]]:
    """List the groups of a function, each as the numbers of its bindings; bindings that stay alone are left out.

    FuseOps names neither the calls nor the variables of a group. So each call gets a kernel of its own name first, by
    which it is found again.

    Parameters
    ----------
    mod : tvm.IRModule
        With the kernels, annotated with their patterns.
    func : relax.Function
        Its bindings count from 0, through all blocks.
    """
    functions: dict[Any, Any] = {
        variable: other for variable, other in mod.functions_items() if not isinstance(other, relax.Function)
    }
    number = 0
    numbers: dict[str, int] = {}
    blocks = []
    for block in func.body.blocks:
        bindings = []
        for binding in block.bindings:
            call: Any = getattr(binding, "value", None)
            kernel: Any = call.args[0] if isinstance(call, relax.Call) and call.args else None
            if getattr(getattr(call, "op", None), "name", "") == "relax.call_tir" and isinstance(
                functions.get(kernel), tirx.PrimFunc
            ):
                name = f"call{number}"
                variable = tvm.ir.GlobalVar(name)
                relax.expr._update_type(variable, kernel.ty)
                functions[variable] = functions[kernel]
                numbers[name] = number
                named = relax.Call(call.op, [variable, *call.args[1:]], call.attrs, call.ty_args)
                relax.expr._update_type(named, call.ty)
                binding = relax.VarBinding(binding.var, named)
            bindings.append(binding)
            number += 1
        kind = relax.DataflowBlock if isinstance(block, relax.DataflowBlock) else relax.BindingBlock
        blocks.append(kind(bindings))
    main = tvm.ir.GlobalVar("main")
    functions[main] = relax.Function(
        func.params, relax.SeqExpr(blocks, func.body.body), func.ret_ty, func.is_pure, func.attrs
    )
    fused = relax.transform.FuseOps()(tvm.IRModule(functions))
    groups = []
    for _, group in fused.functions_items():
        if isinstance(group, relax.Function) and group.attrs and "Primitive" in group.attrs:
            found: set[int] = set()

            def note(other: Any, found: set[int] = found) -> None:
                if other.name_hint in numbers:
                    found.add(numbers[other.name_hint])

            tvm_ffi.structural_walk(group.body, [(tvm.ir.GlobalVar, note)])
            if len(found) > 1:
                groups.append(sorted(found))
    return groups
