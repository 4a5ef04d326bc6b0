"""Removes checks of arguments from functions that are only called from within their module.

TVM checks the number of axes, the type and the extents of every tensor that a function takes, wherever it is called
from: two instructions for each. A loop of a few small kernels, whose functions call one another, spends most of its
time on them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import tvm
from tvm import relax

from tvm_ext.relax_utils import static_shape

_CHECKS = ("vm.builtin.check_tensor_info", "vm.builtin.match_shape")


def unchecked_inner_calls() -> tvm.transform.Pass:
    """Make the pass, over instructions of the virtual machine.

    Before and after, where all calls of ``inner`` give it a tensor of that type and shape::

        @R.function(private=True)                                        @R.function(private=True)
        def inner(x: R.Tensor((2, 3), "float32")):                       def inner(x: R.Tensor((2, 3), "float32")):
            R.call_packed("vm.builtin.check_tensor_info", x, ...)   ->       ...
            R.call_packed("vm.builtin.match_shape", x, ...)
            ...
    """

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.UncheckedInnerCalls")
    def _unchecked_inner_calls(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        inner = {
            variable: function
            for variable, function in mod.functions_items()
            if isinstance(function, relax.Function) and not (function.attrs and "global_symbol" in function.attrs)
        }
        if not inner:
            return mod
        calls, handed_on = _uses(mod)
        updated = mod
        for variable, function in inner.items():
            sites = calls.get(variable, [])
            if not sites or variable in handed_on:
                continue
            proved = {
                param
                for index, param in enumerate(function.params)
                if static_shape(param) is not None and all(_is_same(param, site.args[index]) for site in sites)
            }
            if proved:
                updated = mod.clone() if updated is mod else updated
                updated.update_func(variable, _without_checks(function, proved))
        return updated

    return _unchecked_inner_calls


def _uses(mod: tvm.IRModule) -> tuple[dict[Any, list[relax.Call]], set[Any]]:
    """Find the calls of each function of a module, and which of them are named elsewhere than in a call."""
    calls: dict[Any, list[relax.Call]] = {}
    handed_on: set[Any] = set()
    for _, function in mod.functions_items():
        if not isinstance(function, relax.Function):
            continue
        for value in _values(function.body):
            if isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.GlobalVar):
                calls.setdefault(value.op, []).append(value)
            handed_on.update(_leaves(value.args if isinstance(value, relax.Call) else [value]))
    return calls, handed_on


def _leaves(exprs: Iterable[Any]) -> Iterator[Any]:
    for expr in exprs:
        if isinstance(expr, relax.Tuple):
            yield from _leaves(expr.fields)
        elif isinstance(expr, tvm.ir.GlobalVar):
            yield expr


def _values(body: relax.SeqExpr) -> Iterator[Any]:
    """Give what the bindings of a body are bound to, those in branches too, and its result."""
    for block in body.blocks:
        for binding in block.bindings:
            yield binding.value
            if isinstance(binding.value, relax.If):
                yield from _values(binding.value.true_branch)
                yield from _values(binding.value.false_branch)
    yield body.body


def _is_same(param: relax.Var, argument: Any) -> bool:
    return (
        isinstance(argument.ty, relax.TensorType)
        and str(argument.ty.dtype) == str(param.ty.dtype)
        and static_shape(argument) == static_shape(param)
    )


def _without_checks(function: relax.Function, proved: set[Any]) -> relax.Function:
    blocks = [
        relax.BindingBlock([binding for binding in block.bindings if not _checks_one_of(proved, binding.value)])
        for block in function.body.blocks
    ]
    body = relax.SeqExpr(blocks, function.body.body)
    return relax.Function(function.params, body, function.ret_ty, function.is_pure, function.attrs, function.span)


def _checks_one_of(params: set[Any], value: Any) -> bool:
    if not isinstance(value, relax.Call) or not isinstance(value.op, relax.ExternFunc):
        return False
    return value.op.global_symbol in _CHECKS and value.args[0] in params
