"""What the extents of kernels are where they are called, given those of the functions that call them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx

from tvm_ext.relax_utils import substitute

_CALL_TIR = tvm.ir.Op.get("relax.call_tir")


def extents_of_calls(
    mod: tvm.IRModule, extents_of: Callable[[relax.Function], Mapping[str, int]]
) -> dict[Any, list[dict[Any, Any]]]:
    """Give the extents of kernels, by variable or name, for each call of a kernel.

    Parameters
    ----------
    mod : IRModule
        With calls by ``call_tir``.
    extents_of : callable
        Of a function, gives extents by the names that it has for them. What is made of others stays an expression.

    Returns
    -------
    dict from GlobalVar to list of dict
    """
    found: dict[Any, list[dict[Any, Any]]] = {}
    for function in mod.functions.values():
        if not isinstance(function, relax.Function):
            continue
        known = {name: tirx.const(extent, "int64") for name, extent in extents_of(function).items()}

        def call(node: Any, known: dict[str, Any] = known) -> None:
            callee = node.args[0] if node.op == _CALL_TIR else None
            func = mod.functions.get(callee) if isinstance(callee, tvm.ir.GlobalVar) else None
            if isinstance(func, tirx.PrimFunc) and isinstance(node.args[1], relax.Tuple):
                found.setdefault(callee, []).append(_of_call(func, node, known))

        tvm_ffi.structural_walk(function.body, [(tvm.ir.Call, call)])
    return found


def _of_call(func: tirx.PrimFunc, call: Any, known: Mapping[str, Any]) -> dict[Any, Any]:
    results = call.ty_args[0]
    given_types = (item.ty for item in call.args[1].fields if not isinstance(item.ty, tvm.ir.PrimType))
    types = [*given_types, *(getattr(results, "fields", None) or [results])]
    bound: dict[Any, Any] = dict(known)  # a kernel may name extents of the function that calls it
    for tensor, given in zip(filter(tirx.is_buffer_var, func.params), types, strict=False):
        if getattr(given, "shape", None) is None:
            continue
        for extent, value in zip(tensor.ty.shape, given.shape.values, strict=False):
            if isinstance(extent, tvm.ir.Var):
                named = {variable: known[variable.name] for variable in _variables(value) if variable.name in known}
                bound[extent] = substitute(value, named)
    return bound


def _variables(node: Any) -> dict[Any, None]:
    found: dict[Any, None] = {}
    tvm_ffi.structural_walk(node, [(tvm.ir.Var, lambda variable: found.setdefault(variable))])
    return found
