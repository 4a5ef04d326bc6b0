"""What is known of which configurations work, and of whom to ask: validity oracles of targets.

An oracle tells whether configurations work without running them: it compiles them, or compares what they need with what
the target has. It is only a hint. What was measured counts more, and an oracle that is often wrong, fails or takes too
long is not asked again: the tuner goes on without one and says so.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np

from tvm_ext.errors import TuningError, first_line
from tvm_ext.tuners.space import ConfigSpace

Oracle = Callable[[np.ndarray], np.ndarray]
"""Tells of vectors (n x knobs) whether they work (n, bool); it may be asked for any of the space."""

Score = Callable[[np.ndarray], np.ndarray]

INVALID = -1e6
"""Score of what is known not to work."""

LEAST_CHECKED = 8
"""So many answers are compared with measurements before an oracle is judged."""

MOST_WRONG = 0.25
"""An oracle of which a larger share of the answers was wrong is not believed."""


@dataclass
class Validity:
    """Which configurations of a space work.

    Attributes
    ----------
    space : ConfigSpace
    oracle : callable, optional
    limit, whole : float
        Seconds that the oracle may take for one call, and in all.
    notes : list of str
        Why the oracle is not asked any more.
    asked : int
        Configurations it was asked for.
    seconds : float
        What it took.
    """

    space: ConfigSpace
    oracle: Oracle | None = None
    limit: float = 60.0
    whole: float = 60.0
    notes: list[str] = field(default_factory=list)
    asked: int = 0
    seconds: float = 0.0
    answers: dict[int, bool] = field(default_factory=dict)
    measured: dict[int, bool] = field(default_factory=dict)

    @property
    def has_oracle(self) -> bool:
        """Whether there is an oracle that is believed."""
        return self.oracle is not None

    def ask(self, vectors: np.ndarray) -> np.ndarray | None:
        """Tell which vectors (n x knobs) work (n), as far as is known; None without an oracle, or when it fails."""
        if self.oracle is None:
            return None
        keys = self.space.keys(vectors)
        new = [at for at, key in enumerate(keys) if key not in self.answers and key not in self.measured]
        if new and not self._ask(vectors[new], [keys[at] for at in new]):
            return None
        return np.array([self._known(key) for key in keys], bool)

    def _known(self, key: int) -> bool | None:
        return self.measured.get(key, self.answers.get(key))

    def _ask(self, vectors: np.ndarray, keys: list[int]) -> bool:
        start = time.perf_counter()
        try:
            found = _within(self.oracle, vectors, self.limit)
        except TuningError as error:
            self._dismiss(f"the validity oracle failed ({error})")
            return False
        self.seconds += time.perf_counter() - start
        if found is None:
            self._dismiss(f"the validity oracle took more than {self.limit:g} s for {len(vectors)} configurations")
            return False
        if found.shape != (len(vectors),) or found.dtype != np.bool_:
            self._dismiss(
                f"the validity oracle gave {found.dtype}{list(found.shape)} for {len(vectors)} configurations; "
                "expected as many booleans"
            )
            return False
        self.asked += len(vectors)
        self.answers.update(zip(keys, found.tolist(), strict=True))
        if self.seconds > self.whole:
            # What it said so far still counts.
            self.notes.append(
                f"the validity oracle took {self.seconds:.0f} s for {self.asked} configurations; "
                "the tuner goes on without it"
            )
            self.oracle = None
        return True

    def known_to_work(self) -> list[int]:
        """List indices of configurations that work, as far as was asked or measured."""
        return sorted(key for key, works in (self.answers | self.measured).items() if works)

    def known_to_fail(self) -> list[int]:
        """List indices of configurations that do not work, as far as was asked or measured."""
        return sorted(key for key, works in (self.answers | self.measured).items() if not works)

    def record(self, key: int, works: bool) -> None:
        """Note a measurement, and judge the oracle by it."""
        self.measured[key] = works
        checked = [(self.answers[known], truth) for known, truth in self.measured.items() if known in self.answers]
        wrong = sum(answer != truth for answer, truth in checked)
        if self.oracle is not None and len(checked) >= LEAST_CHECKED and wrong > MOST_WRONG * len(checked):
            self._dismiss(f"the validity oracle was wrong about {wrong} of {len(checked)} configurations measured")

    def _dismiss(self, reason: str) -> None:
        self.notes.append(f"{reason}; the tuner goes on without it")
        self.oracle = None
        self.answers.clear()

    def biased(self, score: Score, bonus: float) -> Score:
        """Add ``bonus`` to the predicted scores of what is known to work, and put what is known not to last.

        References
        ----------
        Rieber, "Deployment of Deep Neural Networks on Dedicated Hardware Accelerators", dissertation, Heidelberg
        University, 2023, section 5.2.3.
        """
        known = self.answers | self.measured
        if not known:
            return score
        keys = np.array(sorted(known))
        works = np.array([known[key] for key in keys.tolist()])

        def adjusted(vectors: np.ndarray) -> np.ndarray:
            scores = np.asarray(score(vectors), dtype=np.float64)
            wanted = np.array(self.space.keys(vectors))
            at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
            found = keys[at] == wanted
            return np.where(found, np.where(works[at], scores + bonus, INVALID), scores)

        return adjusted

    def dump(self) -> dict[str, list[int]]:
        """Give what the oracle said as JSON values."""
        return {
            "works": sorted(key for key, works in self.answers.items() if works),
            "fails": sorted(key for key, works in self.answers.items() if not works),
        }

    def load(self, state: dict[str, list[int]]) -> None:
        """Take over what :meth:`dump` gave."""
        self.answers = dict.fromkeys(state["works"], True) | dict.fromkeys(state["fails"], False)


def first_of_each(oracle: Oracle, programs: Callable[[np.ndarray], Sequence[Hashable]]) -> Oracle:
    """Make an oracle that lets only one configuration of each program pass: the first it is asked for.

    Parameters
    ----------
    oracle : callable
    programs : callable
        Gives keys of vectors that work (n x knobs), equal where configurations are compiled to the same program: loops
        of one turn have no order, for instance.
    """
    first: dict[Hashable, tuple[int, ...]] = {}

    def distinct(vectors: np.ndarray) -> np.ndarray:
        works = np.array(oracle(vectors), bool)
        at = np.flatnonzero(works)
        for row, key in zip(at.tolist(), programs(vectors[at]) if at.size else (), strict=True):
            vector = tuple(vectors[row].tolist())
            works[row] = first.setdefault(key, vector) == vector
        return works

    return distinct


def _within(oracle: Oracle | None, vectors: np.ndarray, seconds: float) -> np.ndarray | None:
    """Call an oracle; None if it has not answered after so many seconds: it is left alone in its thread then."""
    if oracle is None:
        raise TuningError("there is no validity oracle to ask")
    answer: list[np.ndarray] = []
    problem: list[BaseException] = []

    def call() -> None:
        try:
            answer.append(np.asarray(oracle(vectors)))
        except BaseException as error:  # one that wants to end the process, too: it ends its thread
            problem.append(error)

    thread = threading.Thread(target=call, name="validity oracle", daemon=True)
    thread.start()
    thread.join(seconds)
    if problem:
        raise TuningError(f"{type(problem[0]).__name__}: {first_line(problem[0])}")
    return answer[0] if answer else None
