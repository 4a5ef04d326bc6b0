"""What a vector expression is in one of its lanes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm import tirx
from tvm.ir.prim import expr as prim

from tvm_ext.schedules.simd.vector import lanes_of


def lane_of(expression: Any, lane: int) -> Any:
    """Write what a vector expression is in one lane; an unknown value for a kind that has no such form."""
    if lanes_of(expression) == 1:
        return expression
    take = _LANE.get(type(expression))
    return _unknown(expression) if take is None else take(expression, lane)


def _binary(expression: Any, lane: int) -> Any:
    return type(expression)(lane_of(expression.a, lane), lane_of(expression.b, lane))


def _shuffled(expression: Any, lane: int) -> Any:
    position = int(expression.indices[lane])
    for vector in expression.vectors:
        if position < lanes_of(vector):
            return lane_of(vector, position)
        position -= lanes_of(vector)
    raise TypeError("a shuffle of lanes that there are not")


def _cast(expression: Any, lane: int) -> Any:
    return prim.Cast(str(expression.ty.dtype).partition("x")[0], lane_of(expression.value, lane))


def _called(call: Any, lane: int) -> Any:
    """Give a call in one lane: a masked load is what the lane loads, if it takes part."""
    name = getattr(call.op, "name", "").rpartition(".")[2]
    element = tvm.ir.PrimType(str(call.ty.dtype).partition("x")[0])
    if name == "masked_load":
        return tirx.BufferLoad(call.args[-3], [lane_of(call.args[-2], lane)])
    if name == "reinterpret" and str(call.ty.dtype) == str(call.args[0].ty.dtype):
        return lane_of(call.args[0], lane)
    return tvm.ir.Call(call.op, [lane_of(part, lane) for part in call.args], call.attrs, call.ty_args, ret_ty=element)


def _selected(select: Any, lane: int) -> Any:
    condition, chosen, other = (
        lane_of(part, lane) for part in (select.condition, select.true_value, select.false_value)
    )
    if isinstance(other, prim.IntImm) and str(other.ty.dtype) == "bool" and not other.value:
        return prim.And(condition, chosen)
    return prim.Select(condition, chosen, other)


def _unknown(expression: Any) -> Any:
    return tvm.ir.Var("unknown", tvm.ir.PrimType(str(expression.ty.dtype).partition("x")[0]))


_LANE: dict[type, Callable[[Any, int], Any]] = {
    prim.Ramp: lambda ramp, lane: ramp.base + ramp.stride * tirx.const(lane, ramp.base.ty.dtype),
    prim.Broadcast: lambda broadcast, _lane: broadcast.value,
    prim.Shuffle: _shuffled,
    prim.Cast: _cast,
    tvm.ir.Call: _called,
    tvm.ir.TensorLoad: lambda load, lane: tirx.BufferLoad(load.source, [lane_of(part, lane) for part in load.indices]),
    prim.Not: lambda negation, lane: prim.Not(lane_of(negation.a, lane)),
    prim.Select: _selected,
} | dict.fromkeys(
    (
        prim.Add, prim.Sub, prim.Mul, prim.Div, prim.Mod, prim.FloorDiv, prim.FloorMod, prim.Min, prim.Max,
        prim.EQ, prim.NE, prim.LT, prim.LE, prim.GT, prim.GE, prim.And, prim.Or,
    ),
    _binary,
)  # fmt: skip
