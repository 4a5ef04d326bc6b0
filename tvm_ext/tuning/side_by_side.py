"""Networks timed in turns in one process, and what their times say.

What others do on the machine, and how warm it is, changes from second to second, and falls on neighbouring turns alike:
not the times are compared, but their ratios, turn by turn. A turn is a block of runs behind one that does not count,
for what the other networks left in the caches is not what a network finds there that is run again and again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

ROUNDS = 12
"""Turns that every network takes at least."""

BLOCK_SECONDS = 0.005
"""Runs of a block take about so long together; a longer one is alone."""

MOST_RUNS = 200
"""Of a block."""

DEVIATIONS = 2.6
"""Of the rank of a median, to either side: about 99 of 100 intervals hold the true one."""

Clock = Callable[[], float]
Run = Callable[[], object]
Laps = Sequence[float]
"""Times of a network (seconds), turn by turn."""


@dataclass(frozen=True)
class Ratio:
    """Times over those of another network.

    Attributes
    ----------
    median : float
    low, high : float
        The true median lies between them, as far as chance is all that there is.
    """

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, laps: Laps, base: Laps) -> Ratio:
        """Compare times turn by turn."""
        ratios = sorted(lap / other for lap, other in zip(laps, base, strict=True))
        count = len(ratios)
        reach = DEVIATIONS * math.sqrt(count) / 2
        low = max(math.floor((count - 1) / 2 - reach), 0)
        middle = ratios[count // 2] if count % 2 else (ratios[count // 2 - 1] + ratios[count // 2]) / 2
        return cls(middle, ratios[low], ratios[count - 1 - low])


def in_turns(
    runs: Sequence[Run],
    seconds: float,
    clock: Clock = time.perf_counter,
    is_settled: Callable[[Sequence[Laps]], bool] = lambda laps: False,
) -> list[list[float]]:
    """Run networks in turns, back and forth.

    Parameters
    ----------
    runs : sequence of callable
        Each runs a network once.
    seconds : float
        How long all of them take together, by the wall clock; each takes :data:`ROUNDS` turns at least.
    clock : callable
        Seconds.
    is_settled : callable
        Told of the times so far after each round; there are no further ones once it says so.

    Returns
    -------
    list of list of float
        Of each network the time of a run (seconds) in each turn.
    """
    counts = [_runs_of_block(run, clock) for run in runs]
    laps: list[list[float]] = [[] for _ in runs]
    end = time.perf_counter() + seconds
    while len(laps[0]) < ROUNDS or (time.perf_counter() < end and not is_settled(laps)):
        order = range(len(runs)) if len(laps[0]) % 2 else reversed(range(len(runs)))
        for number in order:
            run, count = runs[number], counts[number]
            if count > 1:
                run()
            start = clock()
            for _ in range(count):
                run()
            laps[number].append((clock() - start) / count)
    return laps


def _runs_of_block(run: Run, clock: Clock) -> int:
    """Warm a network up, and tell how many runs make a block."""
    run()
    start = clock()
    run()
    seconds = clock() - start
    return max(1, min(MOST_RUNS, round(BLOCK_SECONDS / seconds))) if seconds > 0 else MOST_RUNS
