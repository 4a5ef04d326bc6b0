"""What became of a configuration that was measured."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from numbers import Real

from tvm_ext.errors import TuningError
from tvm_ext.tuners.space import Vector

SHORTEST = 1e-30
"""Seconds below it are no time, and cost models of 32 bits could not hold its inverse."""


class ErrorKind(StrEnum):
    """Why a configuration has no run time."""

    INVALID = "invalid"
    """The target cannot run it: it was refused before it was compiled, or by an oracle."""

    BUILD = "build"
    """It could not be compiled."""

    RUN = "run"
    """It was compiled, and failed or gave no time."""

    TIMEOUT = "timeout"
    """It took too long."""


@dataclass(frozen=True)
class Measurement:
    """What became of one configuration.

    Attributes
    ----------
    vector : tuple of int
    seconds : float or None
        Run time; None when the configuration does not work.
    error : ErrorKind or None
        Why it does not, where that is known. What failed by chance, as a run that was stopped, says nothing of
        validity: only ``invalid`` and ``build`` do, and no kind at all.

    Raises
    ------
    TuningError
        If ``seconds`` is no number, or ``error`` no kind.
    """

    vector: Vector
    seconds: float | None
    error: ErrorKind | None = None

    def __post_init__(self) -> None:
        if self.seconds is not None and not isinstance(self.seconds, Real):
            raise TuningError(
                f"seconds of configuration {self.vector} is {self.seconds!r}; expected a number, or None for "
                "one that does not work"
            )
        if self.error is not None and self.error not in set(ErrorKind):
            raise TuningError(
                f"error of configuration {self.vector} is {self.error!r}; expected None or one of "
                f"{', '.join(ErrorKind)}"
            )

    @property
    def is_valid(self) -> bool | None:
        """Whether the target can run it; None where a failure does not tell."""
        if self.score > 0:
            return True
        return None if self.error in (ErrorKind.RUN, ErrorKind.TIMEOUT) else False

    @property
    def score(self) -> float:
        """Runs a second; 0 for a configuration that does not work, or whose time is none."""
        return 1.0 / self.seconds if self.seconds is not None and self.seconds >= SHORTEST else 0.0
