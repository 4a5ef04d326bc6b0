"""What a tuning run found, kernel by kernel, and its course."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tvm_ext.tuning.harmful_records import NetworkTimes


@dataclass
class KernelResult:
    """One kernel: times in seconds, None where nothing was measured.

    Attributes
    ----------
    calls : int
        How often the model calls it.
    before : float or None
        With the rule's own choices.
    best : float or None
    earlier : float or None
        Best time of the run that is compared with.
    trials, failed : int
        Measurements of this run, and how many of them failed.
    error : str or None
        Why the last failed candidate failed.
    left_alone : bool
        Whether its fastest record is left alone, because the whole network is slower with it; ``best`` is then the time
        of the rule's own choice, where that is known.
    """

    name: str
    calls: int
    points: int
    before: float | None = None
    best: float | None = None
    earlier: float | None = None
    trials: int = 0
    failed: int = 0
    error: str | None = None
    left_alone: bool = False


@dataclass
class TuningResult:
    """What a run found, and where its time went (seconds).

    Attributes
    ----------
    curve : list of (seconds, trials, latency)
        After every batch: sum over the kernels of best time and calls, once each was measured.
    noise : list of float
        By how much two measurements of the best candidate of a kernel differed, as shares.
    seconds : dict
        Of ``search`` (proposing candidates), ``model`` (training cost models), ``build``, ``run``, ``confirm`` (timing
        the fastest and the whole network once more) and in ``total``; builds and runs go on side by side where there
        are cores for it. Only ``total`` where nothing was measured.
    resumed : int
        Trials of these kernels that the database held already.
    others : int
        Records of other kernels in the database.
    beside : str or None
        Which other run was at work in the folder when this one began.
    notes : list of str
        Why another tuner was used than the one asked for, or an oracle was not asked any more; which kernels are left
        alone, or why the whole network was not compared with the untuned one.
    network : NetworkTimes or None
        What the whole network takes tuned and untuned; None where it was not compared, or is the same.
    """

    kernels: list[KernelResult]
    curve: list[tuple[float, int, float]] = field(default_factory=list)
    noise: list[float] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    resumed: int = 0
    others: int = 0
    beside: str | None = None
    notes: list[str] = field(default_factory=list)
    network: NetworkTimes | None = None

    def note(self, notes: Iterable[str]) -> None:
        """Keep each note once."""
        self.notes += [row for row in dict.fromkeys(notes) if row not in self.notes]

    @property
    def trials(self) -> int:
        """Measurements of this run."""
        return sum(kernel.trials for kernel in self.kernels)

    def note_latency(self, seconds: float) -> None:
        """Lengthen the curve, once each kernel was measured; ``seconds`` is the time since the run began."""
        best = [kernel.best * kernel.calls for kernel in self.kernels if kernel.best is not None]
        if len(best) == len(self.kernels):
            self.curve.append((seconds, self.trials, sum(best)))
