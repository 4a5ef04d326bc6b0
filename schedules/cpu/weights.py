"""Weights of products and convolutions of few positions: fetched from memory while others are used."""

from __future__ import annotations

from collections.abc import Sequence

from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvm_ext.schedules.knobs import choose
from tvm_ext.schedules.simd.prefetch import mark_prefetch

FETCHING_PASSES = 16
"""Passes over the same weights up to which fetching the next ones ahead pays.

Measured with weights that come from the last cache or from memory: 5 to 35 % with up to 8 passes, 3 to 5 % with 14,
nothing or a loss of as much from 28 on, where waiting for the first pass is a small part.
"""

MOST_PASSES = 64
"""Passes up to which a tuner may try it."""


def fetch_next_weights(
    schedule: Schedule,
    block: SBlockRV,
    passes: Sequence[LoopRV],
    reduction: LoopRV,
    pays: bool,
    is_part: bool = False,
    tiles: LoopRV | None = None,
    skip: int = 0,
) -> None:
    """Let a reduction fetch the weights of the next tiles; in a tunable schedule whether it does is a knob.

    Parameters
    ----------
    block : SBlockRV
        The product or convolution, not decomposed yet; the weights are what it reads last.
    passes : sequence of LoopRV
        Loops, outermost first, in all iterations of which the same weights are used.
    reduction : LoopRV
        The outermost loop of the reduction.
    pays : bool
        What the rule chooses.
    is_part : bool
        Whether the reduction is a part of a sum that goes on when all tiles have passed.
    tiles, skip
        See :func:`~tvm_ext.schedules.simd.prefetch.mark_prefetch`.
    """
    weights = str(schedule.get(block).reads[-1].source.name)
    mark_prefetch(schedule, passes, reduction, weights, choose(schedule, (0, 1), int(pays)), is_part, tiles, skip)
