"""Rewritings that are found for a function as a whole: means and factors that constants take up.

before: ``d = x - mean(x); y = matmul(d * v, w)``, ``x`` a sum of products and rows of tables
after:  ``d = x; y = matmul(d, w')`` with the constants of ``x`` centred, and ``w' = column(v) * w``

What is looked for is told by :mod:`tvm_ext.algebra.centering` and :mod:`tvm_ext.algebra.scaling`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import tvm
from tvm import relax

from tvm_ext.algebra.centering import plan_centering
from tvm_ext.algebra.relax.terms import in_range, new_weight, weight_values
from tvm_ext.algebra.rule import Mode
from tvm_ext.algebra.scaling import Scaling, plan_scaling
from tvm_ext.errors import GraphError
from tvm_ext.graph import from_relax
from tvm_ext.graph.dataflow import DataflowGraph

_CACHED = 16384  # elements of a weight that are looked at together
Place = tuple[int, int]  # a node and the position of an operand


def centre(func: Any) -> tuple[Any, int]:
    """Remove the means that vanish when constants are centred; gives the function, and how many there were."""
    graph = _graph_of(func)
    plan = plan_centering(graph) if graph else None
    if plan is None or not plan.differences:
        return func, 0
    values = _values(func)
    constants = {(node, position): _centred(values[node].args[position]) for node, position in plan.constants}
    return _changed(func, dict.fromkeys(plan.differences, 0), constants), len(plan.differences)


def take_up_factors(func: Any, mode: Mode) -> tuple[Any, int]:
    """Remove the factors that constants take up; gives the function, and how many there were."""
    graph = _graph_of(func)
    if graph is None:
        return func, 0
    values = _values(func)
    numbers, left_out = _numbers(graph, values), set[int]()
    while True:
        removed: dict[int, int] = {}
        constants: dict[Place, Any] = {}
        for scaling in plan_scaling(graph, numbers, mode, left_out):
            taken = _taken_up(scaling, values, constants)
            if taken is None:
                left_out.add(scaling.node)  # and those behind it may rely on it
                break
            constants |= taken
            removed[scaling.node] = 1 - scaling.factor
        else:
            return (_changed(func, removed, constants), len(removed)) if removed else (func, 0)


def with_blocks(func: Any, blocks: list[Any]) -> Any:
    """Give a function other bindings."""
    body = relax.SeqExpr(blocks, func.body.body)
    return relax.Function(func.params, body, func.ret_ty, func.is_pure, func.attrs)


def _graph_of(func: Any) -> DataflowGraph | None:
    try:
        return from_relax(func)
    except GraphError:  # not in A-normal form
        return None


def _values(func: Any) -> list[Any]:
    """List what variables are bound to, in the order of the graph's nodes."""
    return [binding.value for block in func.body.blocks for binding in block.bindings]


def _changed(func: Any, removed: Mapping[int, int], constants: Mapping[Place, Any]) -> Any:
    """Put an operand in the place of each removed node, and other constants in theirs."""
    number, blocks = 0, []
    for block in func.body.blocks:
        bindings = []
        for binding in block.bindings:
            value = binding.value
            places = [place for place in constants if place[0] == number] if isinstance(value, relax.Call) else []
            if number in removed:
                binding = relax.VarBinding(binding.var, value.args[removed[number]])
            elif places:
                arguments = list(value.args)
                for place in places:
                    arguments[place[1]] = constants[place]
                call = relax.Call(value.op, arguments, value.attrs, value.ty_args)
                binding = relax.VarBinding(binding.var, call)
            bindings.append(binding)
            number += 1
        blocks.append(type(block)(bindings))
    return with_blocks(func, blocks)


def _numbers(graph: DataflowGraph, values: Collection[Any]) -> dict[str, float]:
    """Read the constants of one element."""
    found = {}
    for node, value in zip(graph.nodes, values, strict=True):
        if node.op in ("multiply", "divide"):
            for name, argument in zip(node.operands, value.args, strict=True):
                if isinstance(argument, tvm.ir.GenericConst) and all(extent == 1 for extent in argument.value.shape):
                    found[name] = float(argument.value.numpy().reshape(()))
    return found


def _taken_up(scaling: Scaling, values: list[Any], constants: Mapping[Place, Any]) -> dict[Place, Any] | None:
    """Compute the constants that take up a factor; None where one of them leaves the range of its type."""
    call = values[scaling.node]
    factors = weight_values(call.args[scaling.factor]).reshape(-1).astype("float64")
    with np.errstate(all="ignore"):
        factors = 1 / factors if call.op.name == "relax.divide" else factors
    found = {}
    for edit in scaling.edits:
        place = (edit.node, edit.position)
        constant = constants.get(place, values[edit.node].args[edit.position])
        given = weight_values(constant)
        shape = [1] * given.ndim
        if edit.axis is not None:
            shape[edit.axis] = factors.size
        tensor, made = new_weight(given.shape, str(given.dtype))
        with np.errstate(all="ignore"):
            np.multiply(given, factors.reshape(shape), out=made, dtype="float64", casting="same_kind")
        if not in_range(made) and in_range(given):
            return None
        found[place] = relax.const(tensor, str(given.dtype))
    return found


def _centred(constant: Any) -> Any:
    value = weight_values(constant)
    rows = value.reshape(-1, value.shape[-1])
    tensor, values = new_weight(value.shape, str(value.dtype))
    centred = values.reshape(rows.shape)
    step = max(1, _CACHED // rows.shape[1])
    for start in range(0, len(rows), step):  # what is read twice is still in the cache then
        part = centred[start : start + step]
        np.subtract(rows[start : start + step], rows[start : start + step].mean(axis=-1, keepdims=True), out=part)
        part -= part.mean(axis=-1, keepdims=True)  # what rounding left of the mean
    return relax.const(tensor, str(value.dtype))
