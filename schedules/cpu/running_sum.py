"""The kernel of running sums and products along an axis that is not the last: row by row, in vectors along the row."""

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
from tvm_ext.schedules.cpu.open_tiles import ZERO, digits
from tvm_ext.schedules.cpu.tasks import ROUGH
from tvm_ext.schedules.divisors import divisors
from tvm_ext.schedules.rule import RULE_ATTRIBUTE
from tvm_ext.schedules.simd.loops import SIMD_ATTRIBUTE

RUNNING_SUM_RULE = "cpu.running_sum"
"""Stands as the schedule rule of the kernel: it is written as it should be."""

LINE = 64
"""Bytes of a cache line."""

STRIP_LINES = 8
"""Cache lines of a strip of columns at least, where cores divide the columns: less is a page for a line or two."""


def running_sum(
    shape: Sequence[int],
    source_type: str,
    dtype: str,
    join: Callable[[Any, Any], Any],
    machine: Machine,
    first: int | None = None,
) -> PrimFunc:
    """Make the kernel.

    Parameters
    ----------
    shape : sequence of int
        Extents of the tensors, none of them 0; the axis is the last but one.
    source_type, dtype : str
        Types of what is read, and of the results, in which is computed.
    join : callable
        Joins a result with the next element.
    machine : Machine
    first : int, optional
        The first result, for sums that leave out the element itself. By default it is the first element.

    Returns
    -------
    tvm.tirx.PrimFunc
        Arguments: the tensor that is read, and the one that is written, both of ``shape``.
    """
    *outer, length, inside = shape
    outside = prod(outer)
    strip = strip_width(outside, inside, tvm.DataType(dtype).bits // 8, machine)
    tasks = outside * (inside // strip)
    moved = prod(shape) * sum(tvm.DataType(kind).bits // 8 for kind in (source_type, dtype))
    seconds = prod(shape) * machine.operation_seconds + moved / machine.stream_bandwidth
    begin = T.parallel if tasks > 1 and seconds >= ROUGH * machine.forking_pays_from() else T.serial

    def along(extent: int) -> Any:
        return T.serial(ZERO, tirx.const(extent, "int64"), annotations={SIMD_ATTRIBUTE: machine.lanes(dtype)})

    with IRBuilder() as builder:
        with T.prim_func(is_private=True, s_tir=True):
            T.func_name("running_sum")
            extents = [tirx.const(extent, "int64") for extent in shape]
            source = T.arg("source", T.buffer(extents, source_type))
            target = T.arg("target", T.buffer(extents, dtype))
            with T.sblock("root"), begin(ZERO, tirx.const(tasks, "int64")) as task, T.sblock("strip"):
                number = T.axis.spatial(tirx.const(tasks, "int64"), task)
                column = number % (inside // strip) * strip
                *places, _ = digits(number, [*extents[:-2], tirx.const(inside // strip, "int64")])

                def element(row: Any, x: Any) -> Any:
                    value = source[*places, row, column + x]
                    return value if dtype == source_type else value.astype(dtype)

                with along(strip) as x:
                    start = element(ZERO, x) if first is None else tirx.const(first, dtype)
                    T.buffer_store(target, start, [*places, ZERO, column + x])
                with T.serial(ZERO, tirx.const(length - 1, "int64")) as row, along(strip) as x:
                    value = join(target[*places, row, column + x], element(row + (first is None), x))
                    T.buffer_store(target, value, [*places, row + 1, column + x])
    attributes = {RULE_ATTRIBUTE: RUNNING_SUM_RULE, "tirx.is_scheduled": True, "tirx.noalias": True, "op_pattern": 8}
    return builder.get().with_attrs(attributes)


def strip_width(outside: int, inside: int, size: int, machine: Machine) -> int:
    """Choose how many columns of elements of ``size`` bytes go together.

    All do, so that memory is read from end to end, if there are rows outside for every core and the results of one row
    stay in the L1 cache until the next; else a divisor that gives each core a strip.
    """
    if outside >= machine.cores and size * inside <= machine.l1 // 4:
        return inside
    least, most = STRIP_LINES * LINE // size, machine.l1 // 4 // size
    shares = [width for width in divisors(inside) if least <= width <= min(most, max(least, inside // machine.cores))]
    return max(shares, default=inside)
