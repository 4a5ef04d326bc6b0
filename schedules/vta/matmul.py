"""Matrix products on packed data for VTA: data (N/B, K/k, B, k) times weights (M/m, K/k, m, k) transposed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import tvm
from tvm.s_tir import Schedule
from tvm.tirx import PrimFunc

from tvm_ext.schedules.rule import new_schedule
from tvm_ext.schedules.vta.common import Axis, extents_of, find_blocks, schedule_product

ORDERS = {"co n": (1, 0), "n co": (0, 1)}
"""Orders of the loops over tiles, outermost first, by axis of the result."""


@dataclass(frozen=True)
class MatmulKnobs:
    """Tiles of the rows, of the output blocks and of the input blocks, and virtual threads over output blocks."""

    tile_b: int = 1
    tile_co: int = 1
    tile_ci: int = 1
    oc_nthread: int = 1


Choose = Callable[[PrimFunc, tvm.target.Target], MatmulKnobs | None]
"""Chooses the knobs of a function for a target; None if nothing fits, or it is no product."""


class Matmul:
    """Schedule a matrix product with the sums and element-wise blocks after it.

    Parameters
    ----------
    order : str
        A key of :data:`ORDERS`.
    knobs : MatmulKnobs, optional
    choose : callable, optional
        Chooses the knobs where they are left out.
    """

    def __init__(
        self, order: str = "co n", knobs: MatmulKnobs | None = None, choose: Choose = lambda func, target: None
    ) -> None:
        self.order = ORDERS[order]
        self.knobs, self.choose = knobs, choose
        self.name = f"vta.matmul ({order})"

    def apply(self, func: PrimFunc, target: tvm.target.Target, tunable: bool = False) -> Schedule | None:
        """Schedule ``func`` when it is a matrix product on packed data that fits the memories of the target."""
        schedule = new_schedule(func, tunable)
        blocks = find_blocks(schedule, summed=1)
        if blocks is None:
            return None
        extents = extents_of(schedule, blocks.anchor)
        if len(extents) != 6:
            return None
        knobs = self.knobs or self.choose(func, target)
        if knobs is None:
            return None
        axes = [Axis(extents[0], knobs.tile_b), Axis(extents[1], knobs.tile_co, knobs.oc_nthread)]
        schedule_product(schedule, blocks, axes, self.order, knobs.tile_ci)
        return schedule
