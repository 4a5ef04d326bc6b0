"""Limits that are counted work: a busy machine gets the same plan as an idle one, later.

A step is about a microsecond on one core of a server of 2024. What the searches do is charged by how much they look at,
so that a limit takes about as long whatever a search is made of; nothing asks a clock.
"""

from __future__ import annotations

SECOND = 1_000_000
"""Steps of about a second."""


class Work:
    """Steps that may be spent.

    Parameters
    ----------
    limit : float
        Steps; infinite without a limit.
    whole : Work, optional
        The work that this is a share of: what is spent here is spent there, too.

    Attributes
    ----------
    spent : float
        Steps, which may go beyond the limit by those of one indivisible piece.
    """

    def __init__(self, limit: float = float("inf"), whole: Work | None = None) -> None:
        self.limit, self.spent, self._whole = limit, 0.0, whole

    @property
    def left(self) -> float:
        """Steps that may still be spent; not below zero."""
        mine = max(0.0, self.limit - self.spent)
        return mine if self._whole is None else min(mine, self._whole.left)

    @property
    def is_over(self) -> bool:
        """Whether all of it, or of the whole, is spent."""
        return not self.left

    def spend(self, steps: float) -> None:
        """Charge some steps to this and to the whole."""
        self.spent += steps
        if self._whole is not None:
            self._whole.spend(steps)

    def share(self, share: float) -> Work:
        """Give a part of what is left: 0.2 is a fifth."""
        return Work(share * self.left, self)
