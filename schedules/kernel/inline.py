"""Inlining the blocks whose values cost less to compute again than to store and load."""

from __future__ import annotations

from math import prod
from typing import Any

import tvm
import tvm_ffi
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import SBlockRV
from tvm.tirx import IntImm

from tvm_ext.schedules.kernel.blocks import is_spatial, top_blocks
from tvm_ext.schedules.kernel.operations import expensive_operations, has_condition, is_simple

LARGEST_BODY = 512
"""Loads in one element's expression beyond which nothing more is inlined into it."""

MOST_FUNCTIONS = 8
"""Transcendental functions that the uses of a value may come to if it is inlined although there are several."""


def inline_producers(schedule: Schedule) -> list[SBlockRV]:
    """Inline data-parallel blocks into their consumers where that is worth it, and return the blocks that remain.

    What stays: outputs; reductions; values of a small tensor that are dear and would be computed again for every
    element of a large one; dear values that a reduction and another block both need; those that would make an
    expression of very many functions, as each use repeats them; and tensors with conditions in them, such as padded
    ones, from which a reduction takes every element several times.
    """
    outputs = {_name(schedule, block) for block in schedule.get_output_blocks(schedule.get_sblock("root"))}
    for block in top_blocks(schedule):
        name = _name(schedule, block)
        if name in outputs or not is_spatial(schedule, block) or not is_simple(schedule, block):
            continue
        consumers = list(schedule.get_consumers(block))
        if not consumers or _loads(schedule, block) > LARGEST_BODY or _worth_keeping(schedule, block, consumers):
            continue
        try:
            schedule.compute_inline(block)
        except tvm.s_tir.ScheduleError:
            continue
    return top_blocks(schedule)


def _worth_keeping(schedule: Schedule, block: SBlockRV, consumers: list[SBlockRV]) -> bool:
    reductions = [consumer for consumer in consumers if not is_spatial(schedule, consumer)]
    if any(_points(schedule, consumer) >= 2 * _points(schedule, block) for consumer in reductions):
        if has_condition(schedule, block):
            return True
    functions = expensive_operations(schedule, block)
    if not functions:
        return False
    if len(consumers) > 1 and reductions:
        return True
    uses = sum(_loads(schedule, consumer, _name(schedule, block)) for consumer in consumers)
    if uses > 1 and uses * functions > MOST_FUNCTIONS:
        return True
    size = _points(schedule, block)
    return any(_points(schedule, consumer) >= 4 * size for consumer in consumers)


def _loads(schedule: Schedule, block: SBlockRV, producer: str | None = None) -> int:
    """Count the loads of a block's body as it stands, inlined producers included: all, or those of a producer."""
    count = [0]
    stored = (
        [] if producer is None else [region.source for region in schedule.get(schedule.get_sblock(producer)).writes]
    )

    def load(node: Any) -> None:
        count[0] += producer is None or any(node.source.same_as(buffer) for buffer in stored)

    tvm_ffi.structural_walk(schedule.get(block).body, (tvm.ir.TensorLoad, load))
    return count[0]


def _points(schedule: Schedule, block: SBlockRV) -> int:
    extents = [iter_var.dom.extent for iter_var in schedule.get(block).iter_vars]
    return prod(int(extent) if isinstance(extent, IntImm) else 1 for extent in extents)


def _name(schedule: Schedule, block: SBlockRV) -> str:
    return str(schedule.get(block).name_hint)
