"""TVM's FuseOps, whose groups are limited in what they read, and which can be asked what it would group.

before: ``t1 = add(x0, x1); t2 = add(t1, x2); ...; t999 = add(t998, x999)``
after:  ``t31 = fused_add(x0, ..., x31); t62 = fused_add(t31, x32, ..., x62); ...``

FuseOps takes up to 256 kernels together, whatever they read. LLVM takes time that grows with the square of a kernel's
parameters, each of which is unpacked and checked: 256 take a hundred times as long as 16.

It does not see that a ``match_cast`` reads a tensor: one that a single kernel reads beside it went inside of a group
with that kernel, and the cast was left with a variable that nothing defined.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx

from tvm_ext.relax_utils import substitute

MOST_OPERANDS = 64
"""Tensors that a group may read; a concatenation of 50 is one kernel, with a batch norm behind it."""

OPERANDS = 32
"""Tensors that the parts of a group read that would read more: as long to compile as 16, and half as many kernels."""


def fuse_ops() -> tvm.transform.Pass:
    """Make the pass: FuseOps, but that groups that would read many tensors are divided."""

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.FuseOps")
    def _fuse_ops(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        mod = mod.clone()
        for variable, func in mod.functions_items():
            if isinstance(func, relax.Function) and not _is_group(func):
                mod.update_func(variable, _with_outputs(func, _cast(func)))
        fused = relax.transform.FuseOps()(mod)
        if all(len(group.params) <= MOST_OPERANDS for group in _groups_in(fused)):
            return fused
        for variable, func in mod.functions_items():
            if isinstance(func, relax.Function) and not _is_group(func):
                mod.update_func(variable, _divided(mod, func)[0])
        return relax.transform.FuseOps()(mod)

    return _fuse_ops


def fuse_ops_groups(mod: tvm.IRModule, func: relax.Function) -> list[list[int]]:
    """List what :func:`fuse_ops` groups in a function, each group as the numbers of its bindings.

    Bindings that stay alone are left out.

    Parameters
    ----------
    mod : tvm.IRModule
        With the kernels, annotated with their patterns.
    func : relax.Function
        Its bindings count from 0, through all blocks.
    """
    return _divided(mod, _with_outputs(func, _cast(func)))[1]


def _divided(mod: tvm.IRModule, func: relax.Function) -> tuple[relax.Function, list[list[int]]]:
    """Let groups that read many tensors end earlier, at results that can be read outside; return all groups, too."""
    while True:
        groups = _groups(mod, func)
        bindings = [binding for block in func.body.blocks for binding in block.bindings]
        ends = {end: None for group in groups for end in _ends([bindings[node] for node in group])}
        if not ends:
            return func, groups
        func = _with_outputs(func, ends)


def _with_outputs(func: relax.Function, variables: Collection[Any]) -> relax.Function:
    """Let variables be seen outside of their blocks: FuseOps puts nothing behind one into its group."""
    if not variables:
        return func
    return substitute(func, {each: relax.Var(each.name, each.ty, each.span) for each in variables})


def _cast(func: relax.Function) -> list[Any]:
    """List the variables of blocks that a ``match_cast`` reads."""
    bindings = [binding for block in func.body.blocks for binding in block.bindings]
    read = [binding.value for binding in bindings if isinstance(binding, relax.MatchCast)]
    return [value for value in read if isinstance(value, relax.DataflowVar)]


def _ends(group: Sequence[Any]) -> list[Any]:
    """Choose results inside a group which reads many tensors, between which its parts read few."""
    operands = [_operands(binding) for binding in group]
    inside = {binding.var for binding in group}
    if len({operand for read in operands for operand in read} - inside) <= MOST_OPERANDS:
        return []
    ends: dict[Any, None] = {}
    needed: dict[Any, set[Any]] = {}  # for each result, what the part that it is in reads to compute it
    for binding, read in zip(group, operands, strict=True):
        parts = {operand: {operand} if operand in ends else needed.get(operand, {operand}) for operand in read}
        while len(set().union(*parts.values())) > OPERANDS:
            widest = max(parts, key=lambda operand: len(parts[operand]))
            if len(parts[widest]) == 1:  # the kernel itself reads as many
                break
            ends[widest], parts[widest] = None, {widest}
        needed[binding.var] = set().union(*parts.values())
    return list(ends)


def _operands(binding: Any) -> list[Any]:
    """List the tensors that a call of a kernel reads, each once."""
    return list(dict.fromkeys(binding.value.args[1].fields))


def _is_group(func: relax.Function) -> bool:
    return bool(func.attrs) and "Primitive" in func.attrs


def _groups_in(mod: tvm.IRModule) -> list[relax.Function]:
    return [func for _, func in mod.functions_items() if isinstance(func, relax.Function) and _is_group(func)]


def _groups(mod: tvm.IRModule, func: relax.Function) -> list[list[int]]:
    """List the groups that FuseOps makes of a function.

    FuseOps names neither the calls nor the variables of a group. So each call gets a kernel of its own name first, by
    which it is found again.
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
    for group in _groups_in(fused):
        found: set[int] = set()

        def note(other: Any, found: set[int] = found) -> None:
            if other.name_hint in numbers:
                found.add(numbers[other.name_hint])

        tvm_ffi.structural_walk(group.body, [(tvm.ir.GlobalVar, note)])
        if len(found) > 1:
            groups.append(sorted(found))
    return groups
