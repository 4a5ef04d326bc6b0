"""What looks fastest by luck does not take the place of the rule's choice; what is faster does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tvm.s_tir import meta_schedule as ms

from tests.tuning.test_loop import model
from tvm_ext.backends.cpu.target import native_target
from tvm_ext.database.folders import best_seconds, open_database
from tvm_ext.tuners.space import Vector
from tvm_ext.tuning import kernels_to_tune
from tvm_ext.tuning.confirmation import RIVALS, ROUNDS, Confirmation, confirm

Compare = Callable[[Sequence[Sequence[Vector]]], list[list[list[float]] | None]]


def _side_by_side(true: Sequence[dict[Vector, float]], asked: list[list[int]]) -> Compare:
    def compare(wanted: Sequence[Sequence[Vector]]) -> list[list[list[float]] | None]:
        asked.append([len(vectors) for vectors in wanted])
        return [
            [[of_kernel[vector]] * 3 for vector in vectors] for of_kernel, vectors in zip(true, wanted, strict=True)
        ]

    return compare


@given(st.lists(st.lists(st.floats(0.5, 2.0), min_size=1, max_size=12), max_size=4), st.randoms(use_true_random=False))
def test_the_fastest_is_the_rules_choice_or_faster(true: list[list[float]], random: Any) -> None:
    times = [{(number,): value for number, value in enumerate(of_kernel)} for of_kernel in true]
    lucky = [
        {vector: [value * random.choice([0.3, 1.0, 1.0])] * 3 for vector, value in of_kernel.items()}
        for of_kernel in times
    ]
    asked: list[list[int]] = []
    confirmed = confirm(lucky, [(0,)] * len(true), _side_by_side(times, asked))
    assert len(asked) <= ROUNDS
    assert all(count <= RIVALS + 1 and count != 1 for counts in asked for count in counts)
    for of_kernel, seen, new in zip(times, lucky, confirmed, strict=True):
        assert {vector: values[0] for vector, values in new.items()} == {vector: of_kernel[vector] for vector in new}
        best = min(seen, key=lambda vector: np.mean(new.get(vector, seen[vector])))
        assert of_kernel[best] <= of_kernel[0,]


def test_what_is_slower_side_by_side_leaves_the_rules_choice() -> None:
    true = {(0,): 1.0, (1,): 1.5, (2,): 0.9, (3,): 1.2}
    seen = {(0,): [1.1], (1,): [0.8], (2,): [1.0], (3,): [1.3]}
    asked: list[list[int]] = []
    (new,) = confirm([seen], [(0,)], _side_by_side([true], asked))
    assert asked == [[3]]  # what seems slower than the rule's choice is not timed again
    assert min(new, key=lambda vector: new[vector][0]) == (2,)
    assert next(iter(new)) == (0,)


def test_kernels_that_are_settled_keep_their_place() -> None:
    true = [{(0,): 1.0, (1,): 0.9}, {(0,): 1.0}, {(0,): 1.0} | {(n,): 1.0 + n for n in range(1, 6)}]
    seen = [{(0,): [1.0], (1,): [0.9]}, {(0,): [1.0]}, {(n,): [1.0 - n / 10] for n in range(6)}]
    asked: list[list[int]] = []
    confirm(seen, [(0,)] * 3, _side_by_side(true, asked))
    assert asked == [[2, 0, 4], [0, 0, 3]]


def test_nothing_is_timed_where_the_rules_choice_is_fastest_or_has_no_time() -> None:
    asked: list[list[int]] = []
    times = [{(0,): [1.0], (1,): [1.1]}, {(0,): [1.0], (1,): [0.9]}, {(1,): [0.9]}]
    assert confirm(times, [(0,), None, (0,)], _side_by_side([{}] * 3, asked)) == [{}, {}, {}]
    assert asked == []


def test_a_comparison_that_fails_changes_nothing() -> None:
    assert confirm([{(0,): [1.0], (1,): [0.9]}], [(0,)], lambda wanted: [None]) == [{}]


@pytest.mark.parametrize(("gain", "kept"), [(0.5, False), (2.0, True)])
def test_records_get_the_times_of_the_comparison(gain: float, kept: bool, tmp_path: Path) -> None:
    (task,) = kernels_to_tune(model(), native_target())
    default = tuple(task.space.space.default)
    other = next(vector for vector in task.space.space.neighbours(default) if task.space.schedule(vector) is not None)
    database = open_database(tmp_path)
    workload = database.commit_workload(task.mod)
    arguments = ms.arg_info.ArgInfo.from_entry_func(task.mod, remove_preproc=True)
    for vector, seconds in ((default, 1.0), (other, 0.9)):
        schedule = task.space.schedule(vector)
        schedule.enter_postproc()
        database.commit_tuning_record(
            ms.database.TuningRecord(schedule.trace, workload, [seconds], native_target(), arguments)
        )
    faster = SimpleNamespace(candidate=lambda mod, target: mod, compare=lambda groups: [[[1.5, 1.5], [1.5 * gain] * 2]])
    first = Confirmation([task.space], database, tmp_path)
    assert first.is_due
    assert first.run(native_target(), faster) == [1.5]
    again = open_database(tmp_path)
    assert len(again.get_all_tuning_records()) == 2
    assert best_seconds(again, task.mod) == 1.5 * min(gain, 1.0)
    (best,) = again.get_top_k(again.commit_workload(task.mod), 1)
    assert (task.space.vector(best.trace) == default) is kept
    assert not Confirmation([task.space], again, tmp_path).is_due, "what was compared is not compared again"


def test_a_confirmation_that_was_killed_is_gone_on_with() -> None:
    """Each round is kept: a second run compares what the first one did not come to, beside the rule's choice."""
    true = {(0,): 1.0} | {(n,): 1.0 + n / 100 for n in range(1, 8)}
    seen: dict[Vector, list[float]] = {(0,): [1.0]} | {(n,): [1.0 - n / 100] for n in range(1, 8)}
    kept: list[dict[Vector, Any]] = []
    asked: list[list[Vector]] = []

    def compare(wanted: Sequence[Sequence[Vector]]) -> list[list[list[float]] | None]:
        if len(asked) == 1:
            raise KeyboardInterrupt
        asked.append(list(wanted[0]))
        return [[[true[vector]] for vector in wanted[0]]]

    with pytest.raises(KeyboardInterrupt):
        confirm([seen], [(0,)], compare, keep=lambda new: kept.append(dict(new[0])))
    known = seen | kept[-1]
    rest: list[list[int]] = []
    (new,) = confirm([known], [(0,)], _side_by_side([true], rest), compared=[set(kept[-1])])
    assert rest == [[4], [2]]
    assert not (set(new) & set(kept[-1])) - {(0,)}
    assert min(known | new, key=lambda vector: (known | new)[vector]) == (0,)
