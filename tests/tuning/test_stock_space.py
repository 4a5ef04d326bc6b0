"""Searches at equal time: when they end, what counts, and how their ratios are put together."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

from scripts.glimpse.bound import LEAST, bound_of, mean_of
from scripts.glimpse.landscapes import load
from scripts.stock_space import Deadline, Over, processor_time, summarise


class Result(NamedTuple):
    """Of a runner."""

    run_secs: list[float] | None


def end_of(counts_late: bool, batches: list[tuple[float, list[Result]]]) -> Deadline:
    """Let batches end at their times, with a limit of ten seconds."""
    now = [0.0]
    deadline = Deadline(10.0, counts_late, lambda: now[0])
    for seconds, results in batches:
        now[0] = seconds
        if seconds > 10:
            with pytest.raises(Over):
                deadline.note(results)
        else:
            deadline.note(results)
    return deadline


BATCHES = [(4.0, [Result([1.0]), Result(None)]), (10.0, [Result([1.0])]), (13.0, [Result([1.0])] * 5)]


@pytest.mark.parametrize(("counts_late", "expected"), [(True, (13.0, 8, 1)), (False, (10.0, 3, 1))])
def test_a_batch_after_the_limit_ends_a_search(counts_late: bool, expected: tuple[float, int, int]) -> None:
    found = end_of(counts_late, BATCHES)
    assert found.is_over
    assert (found.seconds, found.trials, found.failed) == expected


def test_the_processor_time_of_a_process_rises_with_its_work() -> None:
    start = processor_time()
    while processor_time() - start < 0.05:
        np.linalg.norm(np.ones(1000))
    assert 0.05 <= processor_time() - start < 5


def pair(task: str, ratio: float | None, ours: int = 32) -> dict[str, Any]:
    return {"task": task, "ratio": ratio, "stock_trials": 16, "our_trials": ours, "seconds": 60.0, "load": 1.0}


def test_tasks_count_alike_whatever_their_seeds() -> None:
    found = summarise([pair("a", 0.5), pair("a", 2.0), pair("a", 0.5), pair("b", 2.0), pair("c", None)])
    assert found["stock_space_equal_time_in_part"] == 1.0
    assert "stock_space_equal_time" not in found  # which is of all convolutions
    assert summarise([pair(str(task), 0.5) for task in range(12)])["stock_space_equal_time"] == 0.5
    assert (found["stock_space_tasks"], found["stock_space_seeds"], found["stock_space_without_result"]) == (2, 1, 1)
    assert found["stock_space_trials"] == 2.0
    nothing = summarise([pair("a", None, 0)])
    assert not any(name.startswith("stock_space_equal_time") for name in nothing)


def test_no_first_configurations_are_better_than_their_bound() -> None:
    (design, layer), landscape = next(iter(load().items()))
    row = {"design": design, "layer": layer, "prior_best": 0.9, "transfer_best": 0.8, "random_best": 0.0}
    found = bound_of(row | {"prior_first": 0.5, "transfer_first": 0.0})
    assert found["bound"] == 1.25
    assert found["gain"] == 1.125
    assert found["random_bound"] == 1 / LEAST
    cycles = landscape.cycles[landscape.cycles > 0]
    counted = sum(int(value) * 0.95 <= int(cycles.min()) for value in cycles)
    assert found["near_best"] == pytest.approx(counted / len(cycles), abs=1e-4)
    assert mean_of([0.5, 2.0]) == pytest.approx(1.0)
