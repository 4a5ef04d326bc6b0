"""How trials are shared out among kernels that are counted, and what is said of those that were not needed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tvm_ext.tuners.recipes import recipe
from tvm_ext.tuning.counted import Candidate, CountedSearch
from tvm_ext.tuning.result import TuningResult
from tvm_ext.tuning.search import Course, Request


def _search(*cycles: int) -> CountedSearch:
    tasks = [SimpleNamespace(func=None, name=f"kernel{row}", calls=1, cycles=row, key=f"kernel{row}") for row in cycles]
    measurer: Any = SimpleNamespace(clock=1.0, kernels=lambda mod: tasks, known=lambda folder: {}, keeps_records=True)
    return CountedSearch(None, measurer)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("trials", "shares"),
    [(0, [0, 0, 0]), (1, [0, 1, 0]), (2, [0, 1, 1]), (3, [1, 1, 1]), (7, [2, 3, 2]), (8, [2, 3, 3])],
)
def test_every_trial_is_a_kernels(trials: int, shares: list[int]) -> None:
    search = _search(10, 30, 20)
    assert search._shares(trials) == shares
    search.resume(Path(), None)  # type: ignore[arg-type]
    assert search.is_pending(trials) == (trials > 0)


def test_trials_that_were_not_needed_are_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = [Candidate("sketch", (0,), None, "too large")]

    class SmallSpace:
        notes, best, candidates = (), None, tried

        def __init__(self, *parts: Any) -> None:
            pass

        def batches(self, trials: int) -> list[list[Candidate]]:
            return [tried]

    monkeypatch.setattr("tvm_ext.tuning.counted.KernelSearch", SmallSpace)
    search = _search(10)
    outcome = TuningResult(search.kernels)
    search.run(Request(3, recipe("random")), Course(outcome, lambda result: None, 0.0))
    assert outcome.notes == ["kernel10: 2 trials were not needed: no configuration is left to try"]
