"""Which convolutions on tensor cores read their channels side by side, selected for a whole network.

Convolutions have a plan for each order of axes, operators that work element by element or on windows have both for
nothing, and all others take and give planes. What stands between two orders is a transpose (GCD2, Eq. 4.1).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tvm
from tvm import relax

from tvm_ext.layout.selection import (
    Edge,
    Operator,
    Plan,
    Selection,
    SelectionProblem,
    edge_between,
    plan_selection,
    verify_selection,
)

PLANES, LAST = "NCHW", "NHWC"

INDIFFERENT = frozenset(
    f"relax.{name}"
    for name in (
        "abs", "add", "astype", "clip", "concat", "divide", "erf", "exp", "maximum", "minimum", "multiply", "negative",
        "nn.avg_pool2d", "nn.conv2d", "nn.gelu", "nn.leakyrelu", "nn.max_pool2d", "nn.relu", "nn.silu", "power",
        "rsqrt", "sigmoid", "sqrt", "subtract", "tanh",
    )
)  # fmt: skip
"""Operators that ConvertLayout carries either order through; convolutions of other kinds are among them."""

Seconds = Callable[[relax.Call, str], float | None]
"""What a convolution takes with its channels in an order; None for what is not computed on tensor cores."""

UNIT = 1e12
"""Picoseconds: the planner takes integers."""


def select_orders(
    function: relax.Function, seconds: Seconds, transposed: Callable[[Any], float]
) -> tuple[Selection, list[relax.Call]] | None:
    """Select an order of axes for each operator of a function.

    Parameters
    ----------
    function : relax.Function
    seconds : callable
    transposed : callable
        What it takes to transpose a tensor, in seconds.

    Returns
    -------
    (Selection, list of relax.Call) or None
        The selection, verified, and the convolutions that shall have their channels side by side; None where a
        function has branches.
    """
    operators: list[Operator] = []
    calls: list[relax.Call | None] = []
    places: dict[Any, int] = {}
    edges: list[Edge] = []

    def add(name: str, plans: Sequence[Plan], call: relax.Call | None, operands: Sequence[Any]) -> int:
        operators.append(Operator(f"{len(operators)} {name}", tuple(plans)))
        calls.append(call)
        for operand in operands:
            source = places.get(operand)
            if source is not None:
                cost = round(UNIT * transposed(operand))
                edges.append(edge_between(operators, source, len(operators) - 1, lambda *_, cost=cost: cost))
        return len(operators) - 1

    plane = (Plan(PLANES, 0, PLANES, PLANES),)
    for param in function.params:
        places[param] = add(str(param.name), plane, None, ())
    for block in function.body.blocks:
        for binding in block.bindings:
            value = binding.value
            if isinstance(value, relax.If):
                return None
            call = value if isinstance(value, relax.Call) else None
            if isinstance(value, relax.Var) and value in places:
                places[binding.var] = places[value]
                continue
            operands = [] if call is None else list(_variables(call.args))
            places[binding.var] = add(str(getattr(getattr(call, "op", None), "name", "value")), _plans(call, seconds),
                                      call, operands)  # fmt: skip
    add("results", plane, None, list(_variables([function.body.body])))
    problem = SelectionProblem(tuple(operators), tuple(edges))
    selection = plan_selection(problem)
    verify_selection(selection, problem)
    chosen = [
        call
        for call, operator, index in zip(calls, operators, selection.choice, strict=True)
        if call is not None and call.op.name == "relax.nn.conv2d" and operator.plans[index].name == LAST
    ]
    return selection, chosen


def convert(mod: tvm.IRModule, chosen: Sequence[relax.Call]) -> tvm.IRModule:
    """Give the chosen convolutions their channels side by side; what is between them follows."""

    def layout_of(call: relax.Call) -> dict[str, list[str]]:
        if getattr(call.op, "name", "") == "relax.nn.conv2d_transpose":
            return {"relax.nn.conv2d_transpose": ["NCHW", "IOHW"]}  # TVM has no kernel for another order
        if getattr(call.op, "name", "") != "relax.nn.conv2d":
            return {}
        last = any(call.same_as(item) for item in chosen)
        return {"relax.nn.conv2d": ["NHWC", "OHWI"] if last else ["NCHW", "OIHW"]}

    transform = relax.transform
    passes = [transform.ConvertLayout({}, layout_cb=layout_of), transform.Normalize(), transform.FoldConstant()]
    return tvm.transform.Sequential(passes)(mod)


def _plans(call: relax.Call | None, seconds: Seconds) -> tuple[Plan, ...]:
    name = "" if call is None else str(getattr(call.op, "name", ""))
    if call is None or name not in INDIFFERENT or not _is_picture(call):
        return (Plan(PLANES, 0, PLANES, PLANES),)
    costs = {order: seconds(call, order) or 0.0 for order in (PLANES, LAST)}
    return tuple(Plan(order, round(UNIT * cost), order, order) for order, cost in costs.items())


def _is_picture(expr: Any) -> bool:
    return getattr(expr.ty, "ndim", 0) == 4


def _variables(operands: Sequence[Any]) -> list[Any]:
    found: list[Any] = []
    for operand in operands:
        if isinstance(operand, relax.Tuple):
            found += _variables(operand.fields)
        elif isinstance(operand, relax.Var):
            found.append(operand)
    return found
