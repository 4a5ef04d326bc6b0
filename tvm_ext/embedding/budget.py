"""How much searches may take: a count, which is the same on every machine, and a time as well where one is wanted."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from time import perf_counter

from tvm_ext.errors import OptionError

CHECKS = 150_000
"""Checks of one search: about half a second."""

SET_QUESTION = 50
"""Checks that asking whether sets of integers have common elements counts as."""

_CLOCK_EVERY = 64


class SearchEnd(Exception):
    """Ends one search: its budget is spent."""


@dataclass
class Budget:
    """What searches may take, and what they took.

    A check is a look at one candidate: what an axis could be, or whether a constraint holds for some of them together.

    Attributes
    ----------
    checks : int
        Of each search: one setting, factors in one order.
    seconds : float
        Of all searches together; without, their results are the same everywhere.
    used : int
        Checks of all searches.
    stopped : list of str
        For each search that came to an end before it had seen everything, what stopped it.
    """

    checks: int = CHECKS
    seconds: float = inf
    used: int = 0
    stopped: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Refuse what is no budget, and start the clock."""
        if self.checks < 1:
            raise OptionError(f"a budget of {self.checks} checks; expected at least 1")
        if not self.seconds > 0:
            raise OptionError(f"a budget of {self.seconds} seconds; expected more than 0")
        self._until = perf_counter() + self.seconds
        self._left = self.checks

    def begin(self) -> None:
        """Begin a search."""
        self._left = self.checks

    def spend(self, checks: int = 1) -> None:
        """Count checks of the search that was begun.

        Raises
        ------
        SearchEnd
            If there are none left, or no time.
        """
        before = self.used
        self.used += checks
        self._left -= checks
        if self._left < 0:
            self._stop(f"{self.checks:,} checks")
        if self.seconds < inf and self.used // _CLOCK_EVERY > before // _CLOCK_EVERY and perf_counter() > self._until:
            self._stop(f"{self.seconds:g} seconds")

    def _stop(self, why: str) -> None:
        self.stopped.append(why)
        raise SearchEnd

    def note(self) -> str:
        """Say that searches were stopped; empty if they saw everything."""
        if not self.stopped:
            return ""
        reasons = ", ".join(dict.fromkeys(self.stopped))
        return f"not searched to the end (stopped after {reasons}); what was found until then is kept"
