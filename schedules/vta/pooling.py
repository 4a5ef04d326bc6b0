"""Maxima over windows on packed data for VTA: parts of rows and columns, block by block."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import tvm
from tvm.s_tir import Schedule
from tvm.tirx import PrimFunc

from tvm_ext.schedules.rule import new_schedule
from tvm_ext.schedules.vta.common import SCOPES, Axis, extents_of, is_sum, tile_result


@dataclass(frozen=True)
class PoolingKnobs:
    """Rows and columns of a tile."""

    tile_h: int = 1
    tile_w: int = 1


Choose = Callable[[PrimFunc, tvm.target.Target], PoolingKnobs | None]
"""Chooses the knobs of a function for a target; None if nothing fits, or it is no maximum."""


class MaxPool2d:
    """Schedule a maximum over windows.

    Parameters
    ----------
    knobs : PoolingKnobs, optional
    choose : callable, optional
        Chooses the knobs where they are left out.
    """

    name = "vta.max_pool2d"

    def __init__(self, knobs: PoolingKnobs | None = None, choose: Choose = lambda func, target: None) -> None:
        self.knobs, self.choose = knobs, choose

    def apply(self, func: PrimFunc, target: tvm.target.Target, tunable: bool = False) -> Schedule | None:
        """Schedule ``func`` when it is a maximum over windows of packed data, and fits the target."""
        names = [str(parameter.name) for parameter in func.params]
        if names != ["data", "identity", "out"]:
            return None
        knobs = self.knobs or self.choose(func, target)
        return None if knobs is None else self.schedule(func, knobs, tunable)

    def schedule(self, func: PrimFunc, knobs: PoolingKnobs, tunable: bool = False) -> Schedule:
        """Schedule a maximum with the given knobs."""
        schedule = new_schedule(func, tunable)
        _schedule(schedule, knobs)
        return schedule


def _schedule(schedule: Schedule, knobs: PoolingKnobs) -> None:
    """Compute everything in tiles of the result; the inputs of a tile are loaded once for both that widen them."""
    *others, store = schedule.get_child_blocks(schedule.get_sblock("root"))
    padding = [block for block in others if str(schedule.get(block).writes[0].source.dtype) == "int8"]
    others = others[len(padding) :]
    widening = [block for block in others if is_sum(schedule, block)]
    for block in others:
        schedule.set_scope(block, 0, SCOPES["acc"])
    names = [str(region.source.name) for region in schedule.get(widening[0]).reads]
    identity = names.index("identity")
    data = schedule.cache_read(widening[0], 1 - identity, SCOPES["inp"], widening)
    schedule.cache_read(widening[0], identity, SCOPES["wgt"], widening)
    for block in padding:
        schedule.compute_inline(block)
    batches, channels, height, width = extents_of(schedule, store)[:4]
    axes = [Axis(batches, 1), Axis(channels, 1), Axis(height, knobs.tile_h), Axis(width, knobs.tile_w)]
    place, count = tile_result(schedule, store, axes, (1, 0, 2, 3))
    comparing = [block for block in others if not is_sum(schedule, block)]
    for block in (*reversed(comparing), *reversed(widening), data):
        schedule.compute_at(block, place, preserve_unit_loops=True)
    for block in widening:
        schedule.decompose_reduction(block, schedule.get_loops(block)[count])
