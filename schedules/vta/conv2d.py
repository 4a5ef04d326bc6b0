"""Convolutions on packed data for VTA: data NCHWnc, weights OIHWoi, upstream's knobs.

Upstream's names of the knobs: tile_b, tile_co, tile_h, tile_w are the parts of the result's axes, tile_ci of the input
blocks, oc_nthread and h_nthread the virtual threads over output blocks and rows. Groups of blocks are an axis of their
own, with tile_g of them in a tile.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import tvm
from tvm.s_tir import Schedule
from tvm.tirx import PrimFunc

from tvm_ext.schedules.divisors import divisors
from tvm_ext.schedules.rule import new_schedule
from tvm_ext.schedules.vta.common import Axis, extents_of, find_blocks, schedule_product

ORDERS = {"co n y x": (1, 0, 2, 3), "n y x co": (0, 2, 3, 1), "n y co x": (0, 2, 1, 3), "n x co y": (0, 3, 1, 2)}
"""Orders of the loops over tiles, outermost first, by axis of the result."""

SKETCHES = ("co n y x", "n y x co", "n y co x")
"""Orders that are searched by default."""

AXES = (10, 11)
"""Axes of the product: of the result, of an element, and those that are summed over; one more with groups."""


@dataclass(frozen=True)
class ConvKnobs:
    """Upstream's knobs; tiles that do not divide the axis are cut off at its end."""

    tile_b: int = 1
    tile_co: int = 1
    tile_h: int = 1
    tile_w: int = 1
    tile_ci: int = 1
    oc_nthread: int = 1
    h_nthread: int = 1
    tile_g: int = 1


Choose = Callable[[PrimFunc, tvm.target.Target], ConvKnobs | None]
"""Chooses the knobs of a function for a target; None if nothing fits, or it is no convolution."""


class Conv2d:
    """Schedule a convolution with the sums and element-wise blocks after it.

    Parameters
    ----------
    order : str
        A key of :data:`ORDERS`.
    knobs : ConvKnobs, optional
    choose : callable, optional
        Chooses the knobs where they are left out.
    """

    def __init__(
        self, order: str = "co n y x", knobs: ConvKnobs | None = None, choose: Choose = lambda func, target: None
    ) -> None:
        self.order = ORDERS[order]
        self.knobs, self.choose = knobs, choose
        self.name = f"vta.conv2d ({order})"

    def apply(self, func: PrimFunc, target: tvm.target.Target, tunable: bool = False) -> Schedule | None:
        """Schedule ``func`` when it is a convolution on packed data that fits the memories of the target."""
        knobs = self.knobs or self.choose(func, target)
        return None if knobs is None else self.schedule(func, knobs, tunable)

    def schedule(self, func: PrimFunc, knobs: ConvKnobs, tunable: bool = False) -> Schedule | None:
        """Schedule a convolution with the given knobs; None for other functions."""
        schedule = new_schedule(func, tunable)
        blocks = find_blocks(schedule, summed=3)
        if blocks is None or len(extents := extents_of(schedule, blocks.anchor)) not in AXES:
            return None
        batches, *groups, channels, height, width = extents[:-6]
        if tunable:  # a choice is a divisor
            knobs = replace(
                knobs, tile_b=_divisor(batches, knobs.tile_b), tile_co=_divisor(channels, knobs.tile_co),
                tile_h=_divisor(height, knobs.tile_h), tile_w=_divisor(width, knobs.tile_w),
                tile_ci=_divisor(extents[-4], knobs.tile_ci), tile_g=_divisor(groups[0] if groups else 1, knobs.tile_g),
            )  # fmt: skip
        axes = [
            Axis(batches, knobs.tile_b),
            Axis(channels, knobs.tile_co, knobs.oc_nthread),
            Axis(height, knobs.tile_h, knobs.h_nthread),
            Axis(width, knobs.tile_w),
        ]
        order: tuple[int, ...] = self.order
        if groups:
            axes.insert(1, Axis(groups[0], knobs.tile_g))
            order = (1, *(axis + (axis > 0) for axis in order))
        schedule_product(schedule, blocks, axes, order, knobs.tile_ci)
        return schedule


def _divisor(extent: int, tile: int) -> int:
    """Return the largest divisor that is no larger than a tile."""
    return max(divisor for divisor in divisors(extent) if divisor <= max(tile, 1))
