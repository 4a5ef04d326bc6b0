"""How many runs an engine gets, and in which rounds: decided on one number, its time for a run."""

from __future__ import annotations

import math
from dataclasses import dataclass

ROUNDS = 10
MINIMUM_RUNS = 3
MAXIMUM_RUNS = 1000

# A quick model gets more runs than asked for, until they fill this many seconds: its median is then worth more.
FILL_SECONDS = 0.5

# Untimed runs at the start of a turn last this long: they bring caches and threads back after the other engines.
WARM_SECONDS = 0.02

# A run that lasts longer than this refills the caches in a negligible part of itself, and needs no untimed one before.
SLOW_SECONDS = 0.5


@dataclass(frozen=True)
class TurnPlan:
    """Timed runs of one engine.

    Attributes
    ----------
    runs : tuple of int
        Timed runs in each round.
    warm_runs : int
        Untimed runs at the start of a turn, at least.
    warm_seconds : float
        Seconds the untimed runs take, at least.
    shortened : bool
        Whether the engine gets fewer runs than were asked for, because it is too slow.
    """

    runs: tuple[int, ...]
    warm_runs: int
    warm_seconds: float
    shortened: bool


def plan_turns(run_seconds: float, repeats: int, budget: float, rounds: int = ROUNDS) -> TurnPlan:
    """Spread the runs of an engine over the rounds.

    Parameters
    ----------
    run_seconds : float
        Estimated time of one run (seconds).
    repeats : int
        Runs asked for.
    budget : float
        Seconds the timed runs may take; fewer runs are made when ``repeats`` of them would take longer, but never
        fewer than :data:`MINIMUM_RUNS`.
    rounds : int
        Rounds to spread over.
    """
    run_seconds = max(run_seconds, 1e-9)
    shortened = repeats * run_seconds > budget
    if shortened:
        total = min(repeats, max(MINIMUM_RUNS, int(budget / run_seconds)))
        shortened = total < repeats
    else:
        fill = math.ceil(FILL_SECONDS / run_seconds)
        total = max(repeats, min(MAXIMUM_RUNS, fill))
    ends = [(index + 1) * total // rounds for index in range(rounds)]
    runs = tuple(end - start for start, end in zip([0, *ends], ends, strict=False))
    slow = run_seconds > SLOW_SECONDS
    return TurnPlan(runs, 0 if slow else 1, 0.0 if slow else WARM_SECONDS, shortened)


def turn_order(contenders: int, round_number: int) -> list[int]:
    """Order of the engines in a round: it rotates, and every second round runs backwards, so that over the rounds each
    engine follows different ones.
    """
    order = [(index + round_number // 2) % contenders for index in range(contenders)]
    return order[::-1] if round_number % 2 else order
