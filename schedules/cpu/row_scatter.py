"""The kernel that copies a table and writes rows to places in it that come from a tensor, one after the other."""

# mypy: ignore-errors
# (what the script builder gives has no types)
from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import tvm
from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T
from tvm.tirx import PrimFunc

from tvm_ext.schedules.cpu.machine import Machine
from tvm_ext.schedules.cpu.open_tiles import ZERO
from tvm_ext.schedules.cpu.running_sum import strip_width
from tvm_ext.schedules.cpu.tasks import ROUGH
from tvm_ext.schedules.rule import RULE_ATTRIBUTE
from tvm_ext.schedules.simd.loops import SIMD_ATTRIBUTE

ROW_SCATTER_RULE = "cpu.row_scatter"
"""Stands as the schedule rule of the kernel: it is written as it should be."""


def row_scatter(
    extents: Sequence[Any],
    updates: Any,
    width: Any,
    index_type: str,
    dtype: str,
    join: Callable[[Any, Any], Any] | None,
    machine: Machine,
) -> PrimFunc:
    """Make the kernel.

    Parameters
    ----------
    extents : sequence of int or None
        What the places go along; the first of them may be known only when the kernel runs (None).
    updates, width : int or None
        How many rows are written, and the elements of a row; None as above.
    index_type, dtype : str
        Types of the places, and of the elements.
    join : callable, optional
        Joins an element of the table with one that is written to its place. By default the latter replaces it.
    machine : Machine

    Returns
    -------
    tvm.tirx.PrimFunc
        Arguments: the table ``(rows, width)``, where ``rows`` is the product of ``extents``, the places
        ``(updates, len(extents))``, the rows that are written ``(updates, width)``, and the result ``(rows, width)``.
        Rows with a place outside are left out. Cores share the columns, so that each writes to a place in the order of
        the updates.
    """
    tasks = _tasks(extents, updates, width, tvm.DataType(dtype).bits // 8, machine)
    begin = T.parallel if tasks > 1 else T.serial
    behind = prod(extents[1:])
    rows = None if extents[0] is None else extents[0] * behind
    along = {"annotations": {SIMD_ATTRIBUTE: machine.lanes(dtype)}}

    with IRBuilder() as builder:
        with T.prim_func(is_private=True, s_tir=True):
            T.func_name("row_scatter")
            sizes = (T.int64() if size is None else tirx.const(size, "int64") for size in (rows, updates, width))
            total, count, columns = sizes
            table = T.arg("table", T.buffer((total, columns), dtype))
            places = T.arg("places", T.buffer((count, tirx.const(len(extents), "int64")), index_type))
            written = T.arg("written", T.buffer((count, columns), dtype))
            result = T.arg("result", T.buffer((total, columns), dtype))
            strip = columns if tasks == 1 else tirx.const(width // tasks, "int64")
            limits = [tirx.floordiv(total, behind), *extents[1:]]
            with T.sblock("root"), begin(ZERO, tirx.const(tasks, "int64")) as task, T.sblock("strip"):
                first = T.axis.spatial(tirx.const(tasks, "int64"), task) * strip
                if tasks == 1:
                    with T.serial(ZERO, total * columns, **along) as x:
                        T.buffer_store(result, table[x // columns, x % columns], [x // columns, x % columns])
                else:
                    with T.serial(ZERO, total) as row, T.serial(ZERO, strip, **along) as x:
                        T.buffer_store(result, table[row, first + x], [row, first + x])
                with T.serial(ZERO, count) as update:
                    place, inside = ZERO, []
                    for number, limit in enumerate(limits):
                        at = tirx.Cast("int64", places[update, number])
                        place = place * limit + at
                        inside += [at >= 0, at < limit]
                    with T.If(tirx.all(*inside)), T.Then():
                        row = T.bind(place)
                        with T.serial(ZERO, strip, **along) as x:
                            value = written[update, first + x]
                            value = value if join is None else join(result[row, first + x], value)
                            T.buffer_store(result, value, [row, first + x])
    attributes = {RULE_ATTRIBUTE: ROW_SCATTER_RULE, "tirx.is_scheduled": True, "tirx.noalias": True, "op_pattern": 8}
    return builder.get().with_attrs(attributes)


def _tasks(extents: Sequence[Any], updates: Any, width: Any, size: int, machine: Machine) -> int:
    """Choose how many strips the columns, of elements of ``size`` bytes, are divided into."""
    if None in (*extents, updates, width):
        return 1
    strip = strip_width(1, width, size, machine)
    moved = (2 * prod(extents) + 3 * updates) * width * size
    seconds = updates * width * machine.operation_seconds + moved / machine.stream_bandwidth
    return width // strip if machine.cores > 1 and seconds >= ROUGH * machine.forking_pays_from() else 1
