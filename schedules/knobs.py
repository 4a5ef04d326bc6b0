"""The same rule as one schedule or as a space of schedules: how loops are divided is fixed, or sampled.

A rule divides loops with :func:`divide`. In an ordinary schedule the factors it asks for are used; in a
:class:`TunableSchedule` they become the decision of a sampling instruction, so that the trace holds one instruction a
knob, starts at what the rule would have chosen, and can be mutated and replayed by MetaSchedule.

Where the steps of a schedule depend on a number, as on the tile of a product, :func:`pick` takes it. It is a knob as
well, but one that no later instruction looks at: another choice needs another trace, which the rule makes under
:func:`decided`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from math import prod

from tvm.s_tir import Schedule, ScheduleError
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


class Decisions:
    """What is to be picked, in the order in which a rule asks.

    Attributes
    ----------
    used : int
        How many were asked for.
    """

    def __init__(self, values: Sequence[int]) -> None:
        self._values, self.used = tuple(values), 0

    def take(self, candidates: Sequence[int]) -> int:
        """Give the next one.

        Raises
        ------
        ScheduleError
            If it is none of the candidates.
        """
        self.used += 1
        if self.used > len(self._values) or self._values[self.used - 1] not in candidates:
            raise ScheduleError(f"pick {self.used} of {self._values} is none of {tuple(candidates)}")
        return self._values[self.used - 1]


_decisions: ContextVar[Decisions | None] = ContextVar("decisions", default=None)


@contextmanager
def decided(values: Sequence[int]) -> Iterator[Decisions]:
    """Let tunable schedules pick ``values`` instead of what rules would."""
    token = _decisions.set(Decisions(values))
    try:
        found = _decisions.get()
        assert found is not None
        yield found
    finally:
        _decisions.reset(token)


def pick(schedule: Schedule, candidates: Sequence[int], choice: int) -> int:
    """Take one of several numbers on which the steps of a schedule depend; which one is a knob of a tunable schedule.

    Parameters
    ----------
    candidates : sequence of int
        Positive. They must depend on nothing that was picked before; ``choice`` is put among them where it is missing.

    Raises
    ------
    ScheduleError
        If what is :func:`decided` is none of them.
    """
    if not isinstance(schedule, TunableSchedule):
        return choice
    sorted_candidates = sorted({*candidates, choice})
    decisions = _decisions.get()
    if decisions is not None:
        choice = decisions.take(sorted_candidates)
    even = [1.0 / len(sorted_candidates)] * len(sorted_candidates)
    schedule.sample_categorical(sorted_candidates, even, decision=sorted_candidates.index(choice))
    return choice
