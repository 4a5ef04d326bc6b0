"""Oracles are hints: what they say is used, and those that lie, fail or do not answer are left alone."""

from __future__ import annotations

import json
import re
import sys
import time

import numpy as np
import pytest

from tests.tuners.test_presampling import GRID, ball
from tvm_ext.tuners.measurement import ErrorKind, Measurement
from tvm_ext.tuners.recipes import recipe
from tvm_ext.tuners.tuner import Tuner
from tvm_ext.tuners.validity import INVALID, Oracle, Validity


def speed(vectors: np.ndarray) -> np.ndarray:
    """Fastest at the edge of what works."""
    return vectors.sum(axis=1) + 1.0


def search(tuner: Tuner, trials: int, truth: Oracle = ball) -> list[bool]:
    """Let a tuner measure; tells of each trial whether it worked."""
    worked: list[bool] = []
    while len(worked) < trials and (batch := tuner.suggest(trials - len(worked))):
        vectors = np.array(batch)
        works = truth(vectors).tolist()
        times = [1.0 / value if ok else None for value, ok in zip(speed(vectors).tolist(), works, strict=True)]
        tuner.update(Measurement(*row) for row in zip(batch, times, strict=True))
        worked += works
    return worked


def test_an_oracle_saves_trials_that_fail() -> None:
    def tuner(name: str) -> Tuner:
        return recipe(name, 20, 20).tuner(GRID, 1, oracle=ball)

    plain, biased, asked = (tuner(name) for name in ("autotvm_sa", "validity", "validity_asked"))
    assert plain.validity is None
    shares = [float(np.mean(search(row, 100))) for row in (plain, biased, asked)]
    assert shares[0] < 0.5 * shares[1] < shares[2]
    assert shares[2] >= 0.9  # all but half of the first batch
    assert not asked.notes


def test_what_is_known_not_to_work_is_not_suggested_again() -> None:
    validity = Validity(GRID, ball)
    vectors = GRID.vectors(np.arange(0, GRID.size, 7))
    validity.ask(vectors)
    scores = validity.biased(lambda rows: np.zeros(len(rows)), 0.5)(vectors)
    np.testing.assert_array_equal(scores, np.where(ball(vectors), 0.5, INVALID))
    others = GRID.vectors(np.arange(1, GRID.size, 7))
    np.testing.assert_array_equal(validity.biased(lambda rows: np.ones(len(rows)), 0.5)(others), 1.0)
    key = GRID.keys(vectors[:1])[0]
    validity.record(key, not bool(ball(vectors[:1])[0]))  # a measurement counts more than the oracle
    assert validity.ask(vectors[:1]) == [not bool(ball(vectors[:1])[0])]


def broken(vectors: np.ndarray) -> np.ndarray:
    raise OSError("no licence")


def gives_up(vectors: np.ndarray) -> np.ndarray:
    sys.exit(3)


def slow(vectors: np.ndarray) -> np.ndarray:
    time.sleep(0.5)
    return ball(vectors)


@pytest.mark.parametrize(
    ("oracle", "reason"),
    [
        (broken, r"failed \(OSError: no licence\)"),
        (slow, r"took more than 0.05 s"),
        (lambda vectors: np.ones(3), r"gave float64\[3\]"),
        (lambda vectors: None, r"gave object\[\]"),
        (gives_up, r"failed \(SystemExit: 3\)"),
        (lambda vectors: ~ball(vectors), r"was wrong about"),
        (lambda vectors: np.ones(len(vectors), bool), r"was wrong about"),
    ],
)
def test_bad_oracles_are_left_alone_and_the_run_says_so(oracle: Oracle, reason: str) -> None:
    tuner = recipe("validity_asked", 20, 20).tuner(GRID, 2, oracle=oracle)
    assert tuner.validity is not None
    if oracle is slow:
        tuner.validity.limit = 0.05
    assert len(search(tuner, 60)) == 60
    (note,) = tuner.notes
    assert re.search(reason, note), note
    assert note.endswith("the tuner goes on without it")
    assert not tuner.validity.has_oracle


def test_an_oracle_has_so_many_seconds_in_all_and_what_it_said_counts_on() -> None:
    validity = Validity(GRID, ball, whole=0.0)
    vectors = GRID.vectors(np.arange(GRID.size))
    answers = validity.ask(vectors)
    assert answers is not None
    assert not validity.has_oracle
    (note,) = validity.notes
    assert re.search(rf"took \d+ s for {GRID.size} configurations", note), note
    assert validity.known_to_work() == np.flatnonzero(ball(vectors)).tolist()


def test_failures_by_chance_say_nothing_of_validity() -> None:
    validity = Validity(GRID, ball)
    tuner = recipe("validity", 20, 20).tuner(GRID, 2, oracle=ball)
    tuner.validity = validity
    working = GRID.vectors(np.flatnonzero(ball(GRID.vectors(np.arange(GRID.size)))))[:20]
    validity.ask(working)
    tuner.update(Measurement(tuple(row), None, ErrorKind.TIMEOUT) for row in working[:10].tolist())
    assert validity.has_oracle
    assert not validity.measured
    tuner.update(Measurement(tuple(row), None, ErrorKind.BUILD) for row in working[10:].tolist())
    assert not validity.has_oracle


def test_a_dump_keeps_what_the_oracle_said() -> None:
    row = recipe("validity", 20, 20)
    tuner = row.tuner(GRID, 3, oracle=ball)
    search(tuner, 7)
    tuner.update([Measurement((0, 0, 0, 0), None, ErrorKind.RUN)])
    again = row.tuner(GRID, 9, oracle=ball)
    again.load(tuner.dump())
    assert again.validity is not None
    assert again.measurements == tuner.measurements
    assert search(again, 60) == search(tuner, 60)
    assert again.validity.asked == 0, "what was asked for is not asked for again"
    state = json.loads(tuner.dump())
    state["measurements"] = [row[:2] for row in state["measurements"]]  # as earlier versions wrote them
    del state["validity"]
    row.tuner(GRID, 9, oracle=ball).load(json.dumps(state))
