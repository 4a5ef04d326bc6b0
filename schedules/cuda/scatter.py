"""Scatters: a thread for each element that is written, however many of them go to the same place.

Sums, products and extremes are joined by atomic operations, those of short types in 32 bits. Where the last update of a
place is to win, threads agree on the number of the last one first, by maxima, and then each element of the result
takes what is its own.
"""

# mypy: ignore-errors
# (what the script builder gives has no types)
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T
from tvm.tirx import PrimFunc

from tvm_ext.schedules.cuda.atomics import TYPES, atomic, start
from tvm_ext.schedules.rule import RULE_ATTRIBUTE

NAME = "cuda.scatter"
THREADS = 256
ZERO = tirx.const(0, "int64")


@dataclass(frozen=True)
class Scatter:
    """What is written where.

    Attributes
    ----------
    table, index, updates : tuple of int or Var
        Shapes. Of ``scatter_elements``, an extent of the index may be 1 where the updates have more: they share it.
    index_dtype, dtype : str
    reduction : str
        ``"update"``, ``"add"``, ``"mul"``, ``"max"`` or ``"min"``.
    axis : int or None
        What the index goes along, as in ``scatter_elements``. With None, the last axis of the index holds a place along
        each of the first axes of the table, as in ``scatter_nd``.
    """

    table: tuple[Any, ...]
    index: tuple[Any, ...]
    updates: tuple[Any, ...]
    index_dtype: str
    dtype: str
    reduction: str
    axis: int | None

    @property
    def wide(self) -> str:
        """The type that updates are joined in."""
        if self.dtype in TYPES:
            return self.dtype
        return "float32" if "float" in self.dtype else "int32"

    @property
    def scratch(self) -> tuple[tuple[Any, ...], str] | None:
        """Shape and type of what the kernel needs beside its result; None for nothing."""
        if self.reduction == "update":
            return (self.table if self.axis is not None else self.table[: int(self.index[-1])]), "int32"
        return None if self.wide == self.dtype else (self.table, self.wide)

    def is_supported(self) -> bool:
        """Whether there are such atomic operations."""
        if self.reduction == "update":
            return True
        short = ("float16", "bfloat16", "int8", "uint8", "int16", "uint16")
        return self.reduction in ("add", "mul", "max", "min") and (self.dtype in TYPES or self.dtype in short)


def scatter_kernel(scatter: Scatter) -> PrimFunc:
    """Make the kernel: arguments are the table, the index, the updates, the result and the scratch, if there is any."""
    with IRBuilder() as builder:
        with T.prim_func(is_private=True, s_tir=True):
            T.func_name("scatter")
            table = T.arg("table", T.buffer(scatter.table, scatter.dtype))
            index = T.arg("index", T.buffer(scatter.index, scatter.index_dtype))
            updates = T.arg("updates", T.buffer(scatter.updates, scatter.dtype))
            result = T.arg("result", T.buffer(scatter.table, scatter.dtype))
            scratch = result
            if scatter.scratch is not None:
                scratch = T.arg("scratch", T.buffer(*scatter.scratch))
            with T.sblock("root"):
                steps = _last_wins if scatter.reduction == "update" else _joined
                steps(scatter, table, index, updates, result, scratch)
    attributes = {RULE_ATTRIBUTE: NAME, "tirx.is_scheduled": True, "tirx.noalias": True, "op_pattern": 8}
    return builder.get().with_attrs(attributes)


def _joined(scatter: Scatter, table: Any, index: Any, updates: Any, result: Any, scratch: Any) -> None:
    operation, wide = scatter.reduction, scatter.wide

    def begin(at: list[Any]) -> None:
        T.buffer_store(scratch, start(operation, _as(wide, table[tuple(at)])), at)

    def join(at: list[Any]) -> None:
        place, inside = _place(scatter, index, at)
        with T.If(inside), T.Then():
            T.evaluate(atomic(operation, scratch, place, _as(wide, updates[tuple(at)])))

    _launch("begin", scatter.table, begin)
    _launch("join", scatter.updates, join)
    if scatter.scratch is not None:
        _launch("end", scatter.table, lambda at: T.buffer_store(result, _as(scatter.dtype, scratch[tuple(at)]), at))


def _last_wins(scatter: Scatter, table: Any, index: Any, updates: Any, result: Any, scratch: Any) -> None:
    rows = list(scatter.index[:-1])  # of `scatter_nd`, which are numbered; of `scatter_elements`, places along the axis

    def vote(at: list[Any]) -> None:
        place, inside = _place(scatter, index, at)
        number = at[scatter.axis] if scatter.axis is not None else _flat(at[: len(rows)], rows)
        with T.If(inside), T.Then():
            T.evaluate(atomic("max", scratch, place[: len(scatter.scratch[0])], tirx.Cast("int32", number)))

    def take(at: list[Any]) -> None:
        winner = T.bind(scratch[tuple(at[: len(scatter.scratch[0])])])
        number = tirx.Cast("int64", winner)
        if scatter.axis is not None:
            source = [number if axis == scatter.axis else one for axis, one in enumerate(at)]
        else:
            source = [*_apart(number, rows), *at[int(scatter.index[-1]) :]]
        T.buffer_store(result, tirx.if_then_else(winner >= 0, updates[tuple(source)], table[tuple(at)]), at)

    _launch("begin", scatter.scratch[0], lambda at: T.buffer_store(scratch, tirx.const(-1, "int32"), at))
    _launch("vote", scatter.updates if scatter.axis is not None else rows, vote)
    _launch("take", scatter.table, take)


def _place(scatter: Scatter, index: Any, at: list[Any]) -> tuple[list[Any], Any]:
    """Give where an update goes to, counted from the end where that is negative, and whether that is in the table."""
    if scatter.axis is not None:
        own = [ZERO if extent == 1 else one for one, extent in zip(at, scatter.index, strict=True)]
        places = [(scatter.axis, T.bind(tirx.Cast("int64", index[tuple(own)])))]
    else:
        batch = at[: len(scatter.index) - 1]
        places = [(axis, T.bind(tirx.Cast("int64", index[(*batch, axis)]))) for axis in range(int(scatter.index[-1]))]
    result = list(at) if scatter.axis is not None else [ZERO] * len(places) + at[len(scatter.index) - 1 :]
    inside = []
    for axis, place in places:
        extent = scatter.table[axis]
        if scatter.axis is not None:
            place = T.bind(tirx.if_then_else(place < 0, place + extent, place))
        result[axis] = place
        inside += [place >= 0, place < extent]
    return result, tirx.all(*inside)


def _launch(name: str, shape: Sequence[Any], body: Callable[[list[Any]], None]) -> None:
    """Give each element of a shape a thread."""
    count = prod(shape)
    blocks = -(-count // THREADS) if isinstance(count, int) else tirx.floordiv(count + THREADS - 1, THREADS)
    if not isinstance(blocks, int):
        blocks = tirx.max(blocks, tirx.const(1, "int64"))  # no launch is empty
    with T.thread_binding(0, blocks, thread="blockIdx.x") as block:
        with T.thread_binding(0, THREADS, thread="threadIdx.x") as thread, T.sblock(name):
            flat = T.bind(tirx.Cast("int64", block) * THREADS + tirx.Cast("int64", thread))
            with T.If(flat < count), T.Then():
                body(_apart(flat, shape))


def _apart(flat: Any, shape: Sequence[Any]) -> list[Any]:
    """Give the place of an element by its number."""
    found: list[Any] = []
    for axis, extent in reversed(list(enumerate(shape))):
        found.insert(0, tirx.floormod(flat, extent) if axis else flat)
        flat = tirx.floordiv(flat, extent)
    return found


def _flat(at: Sequence[Any], shape: Sequence[Any]) -> Any:
    number = ZERO
    for one, extent in zip(at, shape, strict=True):
        number = number * extent + one
    return number


def _as(dtype: str, value: Any) -> Any:
    return value if str(value.ty.dtype) == dtype else tirx.Cast(dtype, value)
