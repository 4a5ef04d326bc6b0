"""The order in which VTA stores a result: that of its blocks, or that of the tensor which reads it next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.s_tir import Schedule

LANES = 2
"""Axes at the end that are one element of VTA."""

_RESULTS = ("conv", "requantized", "out")


@dataclass(frozen=True)
class ResultOrder:
    """An order of the parts of a result's axes.

    Attributes
    ----------
    parts : tuple of tuple of int
        For each axis but lanes the extents of the parts that it is divided into, outermost first.
    order : tuple of (int, int)
        Axes and parts in the order of memory, outermost first.
    """

    parts: tuple[tuple[int, ...], ...]
    order: tuple[tuple[int, int], ...]

    def apply(self, func: tirx.PrimFunc, accumulators: bool) -> tirx.PrimFunc:
        """Let a convolution without bias and residual store its result in this order.

        Where the accumulators lie in it as well, a tile is stored in as long runs as in the order of blocks.
        """
        schedule = Schedule(func)
        for block in _RESULTS if accumulators else _RESULTS[-1:]:
            schedule.transform_layout(block, ("write", 0), self._place, assume_injective_transform=True)
        return schedule.mod["main"]

    def _place(self, *at: Any) -> list[Any]:
        values: dict[tuple[int, int], Any] = {}
        for axis, extents in enumerate(self.parts):
            below = 1
            for part in reversed(range(len(extents))):
                value = tirx.floordiv(at[axis], below) if below > 1 else at[axis]
                values[axis, part] = tirx.floormod(value, extents[part]) if part else value
                below *= extents[part]
        return [*(values[place] for place in self.order), *at[len(self.parts) :]]


def channels_last(extents: Sequence[int]) -> ResultOrder:
    """Return the order (N, H, W, C) of a result (N, C, H, W) of blocks."""
    return ResultOrder(tuple((extent,) for extent in extents), ((0, 0), (2, 0), (3, 0), (1, 0)))
