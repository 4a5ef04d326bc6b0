"""The kernel that finds the places of the few largest, or smallest, elements of each row."""

# mypy: ignore-errors
# (what the script builder gives has no types)
from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T
from tvm.tirx import PrimFunc

from tvm_ext.schedules.cpu.machine import Machine
from tvm_ext.schedules.cpu.open_tiles import ZERO
from tvm_ext.schedules.cpu.tasks import ROUGH
from tvm_ext.schedules.rule import RULE_ATTRIBUTE

FEW_LARGEST_RULE = "cpu.few_largest"
"""Stands as the schedule rule of the kernel: it is written as it should be."""

BLOCK_VECTORS = 2
"""Vectors of elements that are looked through at once: most hold nothing that is among the few so far."""


def few_largest(
    rows: int | None, length: int, count: int, largest: bool, dtype: str, place_type: str, machine: Machine
) -> PrimFunc:
    """Make the kernel.

    Parameters
    ----------
    rows : int or None
        None where it is known only when the kernel runs.
    length, count : int
        Elements of a row, and how many of them are found.
    largest : bool
        Or the smallest.
    dtype, place_type : str
        Types of the elements, which are integers, and of the places.
    machine : Machine

    Returns
    -------
    tvm.tirx.PrimFunc
        Arguments: the elements ``(rows, length)`` and the places ``(rows, count)``, those of the largest first; of
        equal elements the one in front comes first.
    """
    block = BLOCK_VECTORS * machine.lanes(dtype)
    ahead = count + (length - count) % block  # elements in front of the first block
    seconds = (rows or 1) * length * machine.operation_seconds
    forks = rows is None or (rows > 1 and seconds >= ROUGH * machine.forking_pays_from())

    def precedes(one: Any, other: Any) -> Any:
        return one > other if largest else one < other

    with IRBuilder() as builder:
        with T.prim_func(is_private=True, s_tir=True):
            T.func_name("few_largest")
            total = T.int64() if rows is None else tirx.const(rows, "int64")
            extents = [tirx.const(extent, "int64") for extent in (length, count, 1)]
            source = T.arg("source", T.buffer((total, extents[0]), dtype))
            result = T.arg("result", T.buffer((total, extents[1]), place_type))
            begin = T.parallel if forks else T.serial
            with T.sblock("root"), begin(ZERO, total) as task, T.sblock("row"):
                row = T.axis.spatial(total, task)
                found = T.sblock_alloc_buffer((extents[1],), dtype, scope="local")
                places = T.sblock_alloc_buffer((extents[1],), place_type, scope="local")
                extreme = T.sblock_alloc_buffer((extents[2],), dtype, scope="local")

                def insert(place: Any, filled: Any) -> None:
                    """Move what it precedes by one; of the first ``filled`` places is known what they hold."""
                    element = T.bind(source[row, place])
                    for at in range(count - 1, -1, -1):
                        here = precedes(element, found[at])
                        if filled is not None:
                            here = tirx.any(at >= filled, here)
                        before = None
                        if at:
                            before = precedes(element, found[at - 1])
                            if filled is not None:
                                before = tirx.any(at - 1 >= filled, before)
                        for kept, new in ((places, tirx.Cast(place_type, place)), (found, element)):
                            moved = new if before is None else tirx.Select(before, kept[at - 1], new)
                            T.buffer_store(kept, tirx.Select(here, moved, kept[at]), [at])

                def look_at(place: Any) -> None:
                    with T.If(precedes(source[row, place], found[count - 1])), T.Then():
                        insert(place, None)

                for at in range(count):
                    T.buffer_store(found, tirx.const(0, dtype), [at])
                    T.buffer_store(places, tirx.const(0, place_type), [at])
                with T.serial(ZERO, extents[1]) as place:
                    insert(place, place)
                with T.serial(ZERO, tirx.const(ahead - count, "int64")) as place:
                    look_at(place + count)
                with T.serial(ZERO, tirx.const((length - ahead) // block, "int64")) as number:
                    first = T.bind(ahead + number * block)
                    T.buffer_store(extreme, source[row, first], [0])
                    join = tirx.max if largest else tirx.min
                    with T.serial(ZERO, tirx.const(block, "int64")) as x:
                        T.buffer_store(extreme, join(extreme[0], source[row, first + x]), [0])
                    with T.If(precedes(extreme[0], found[count - 1])), T.Then():
                        with T.serial(ZERO, tirx.const(block, "int64")) as x:
                            look_at(first + x)
                for at in range(count):
                    T.buffer_store(result, places[at], [row, at])
    attributes = {RULE_ATTRIBUTE: FEW_LARGEST_RULE, "tirx.is_scheduled": True, "tirx.noalias": True, "op_pattern": 8}
    return builder.get().with_attrs(attributes)
