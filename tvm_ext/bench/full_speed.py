"""Whether the processors compute at full speed together.

Two processors of a virtual machine are threads of one core for seconds at a time, where the machine that it runs on
places them so; and what others run takes its share. Engines that have their turn then take twice as long.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import tvm

from tvm_ext.bench.peak import MultiplyAdds

LEAST = 0.85
"""Of the best share seen, what counts as full speed."""

LOOK_SECONDS = 0.002
"""What a look measures for, one thread and all."""

PAUSE, PATIENCE = 0.05, 5.0
"""Seconds between looks where it is not full, for the system moves processors that rest; and all seconds to wait."""

WAIT = 0.5
"""Seconds of one wait."""

REST = 0.2
"""Seconds in which threads of an engine, which spin for a while when there is no more work, have come to rest."""


def together(target: tvm.target.Target, threads: int) -> Callable[[], float]:
    """Make what measures which share of ``threads`` times one thread's speed all of them reach.

    Parameters
    ----------
    target : tvm.target.Target
        This machine's CPU.
    threads : int
        At least two, as many as the calling thread's pool has.
    """
    one, all_of_them = (MultiplyAdds(target, count, tiles=1) for count in (1, threads))

    def share() -> float:
        return all_of_them.rate(LOOK_SECONDS) / (threads * one.rate(LOOK_SECONDS))

    return share


@dataclass
class FullSpeed:
    """Looks whether the processors are at full speed, by what they reached at best.

    Attributes
    ----------
    share : callable
        Measures what share of the sum of their speeds the processors reach together.
    best : float
        The largest share seen. It is below 1 where processors lower their clocks together.
    lowest : float
        The smallest share of the best that a wait ended with.
    patience : float
        Seconds that are left to wait for it.
    sleep : callable
        Waits for some seconds.
    """

    share: Callable[[], float]
    best: float = 0.0
    lowest: float = 1.0
    patience: float = PATIENCE
    sleep: Callable[[float], None] = time.sleep
    _last: float = 0.0

    def is_full(self) -> bool:
        """Look once."""
        self._last = self.share()
        self.best = max(self.best, self._last)
        return self._last >= LEAST * self.best

    def wait(self) -> bool:
        """Wait until it is, for :data:`WAIT` and as long as there is patience; gives whether it is."""
        until = max(0.0, self.patience - WAIT)
        while not self.is_full():
            if self.patience <= until:
                return self._slow()
            self.sleep(PAUSE)
            self.patience = max(0.0, round(self.patience - PAUSE, 3))
        return True

    def was_full(self) -> bool:
        """Whether it is behind a turn, once the engine's threads rest."""
        for _ in range(round(REST / PAUSE)):
            if self.is_full():
                return True
            self.sleep(PAUSE)
        return self.is_full() or self._slow()

    def _slow(self) -> bool:
        self.lowest = min(self.lowest, self._last / self.best)
        return False
