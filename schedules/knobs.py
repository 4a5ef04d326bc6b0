"""The same rule as one schedule or as a space of schedules: how loops are divided is fixed, or sampled.

A rule divides loops with :func:`divide`. In an ordinary schedule the factors it asks for are used; in a
:class:`TunableSchedule` they become the decision of a sampling instruction, so that the trace holds one instruction a
knob, starts at what the rule would have chosen, and can be mutated and replayed by MetaSchedule.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tvm.s_tir import Schedule
from tvm.s_tir.schedule import ExprRV, LoopRV
from tvm.tirx import IntImm


class TunableSchedule(Schedule):
    """A schedule in which rules emit their choices as sampling instructions."""

    __slots__ = ()


def divide(schedule: Schedule, loop: LoopRV, factors: Sequence[int | None], largest: int = 64) -> list[LoopRV]:
    """Split a loop; in a tunable schedule the factors are a knob.

    Parameters
    ----------
    loop : LoopRV
        The loop to split. Only a loop of known extent that the factors divide is a knob.
    factors : sequence of int or None
        Extents of the new loops, outermost first; None, at most once, is what remains.
    largest : int
        The largest extent of the innermost loop that a tuner may choose.
    """
    extent = schedule.get(loop).extent
    known = prod(factor for factor in factors if factor is not None)
    if isinstance(schedule, TunableSchedule) and isinstance(extent, IntImm) and int(extent) % known == 0:
        decision = [int(extent) // known if factor is None else factor for factor in factors]
        sampled = schedule.sample_perfect_tile(
            loop, n=len(decision), max_innermost_factor=max(largest, decision[-1]), decision=decision
        )
        return list(schedule.split(loop, sampled))
    return list(schedule.split(loop, factors))


def choose(schedule: Schedule, candidates: Sequence[int], choice: int) -> int | ExprRV:
    """Take one of several numbers; in a tunable schedule which one is a knob."""
    if not isinstance(schedule, TunableSchedule):
        return choice
    even = [1.0 / len(candidates)] * len(candidates)
    return schedule.sample_categorical(list(candidates), even, decision=candidates.index(choice))
