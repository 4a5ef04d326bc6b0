from __future__ import annotations

import json

import numpy as np
import pytest

from tvm_ext.tuners.recipes import recipe
from tvm_ext.tuners.replay.experiment import (
    Run,
    bootstrap_interval,
    fewer_measurements,
    geometric_mean,
    oracle_run,
    run,
)
from tvm_ext.tuners.replay.simulator import SimulatedLandscape
from tvm_ext.tuners.replay.tasks import LAYERS


def _made(tuner: str, seed: int, curve: list[float], ends: list[int] | None = None) -> Run:
    return Run(tuner, "task", seed, np.array(curve), np.array(ends or [len(curve)]), 0, 1.0, 1.0, 0.0)


def test_measurements_are_counted() -> None:
    row = _made("a", 0, [1.0, 1.0, 2.0, 3.0], [2, 4])
    assert [row.measurements_to(speed) for speed in (0.5, 1.0, 1.5, 3.0, 3.1)] == [1, 1, 3, 4, None]
    assert (row.best(), row.best(1), row.best(2), row.best(9)) == (3.0, 1.0, 3.0, 3.0)


def test_comparison() -> None:
    slow = [_made("sa", seed, [1.0] * 9 + [10.0]) for seed in range(3)]
    fast = [_made("as", seed, [1.0, 9.95]) for seed in range(2)] + [_made("as", 2, [1.0] * 5)]
    ((ratio, reached),) = fewer_measurements([*slow, *fast], "sa", "as", budget=10).values()
    assert ratio == 10 / 2
    assert reached == pytest.approx(2 / 3)


def test_a_run_is_the_same_again_and_survives_the_log() -> None:
    landscape = SimulatedLandscape(LAYERS[7])
    small = recipe("evolution", batch=16, initial=16)
    first = run("evolution", landscape, 3, budget=64, recipe=small)
    second = run("evolution", landscape, 3, budget=64, recipe=small)
    np.testing.assert_array_equal(first.curve, second.curve)
    assert len(first.curve) == 64
    assert (np.diff(first.curve) >= 0).all()
    read = Run.from_dump(json.loads(json.dumps(first.dump())))
    np.testing.assert_array_equal(read.curve, first.curve)
    assert read.row() == first.row()
    stopped = run("evolution", landscape, 3, budget=64, stop_at=first.curve[20], least_iterations=1, recipe=small)
    assert len(stopped.curve) < 64


def test_the_oracle_measures_in_the_order_of_the_model() -> None:
    """Against the order of all 35,640 configurations; equal ones may change places."""
    landscape = SimulatedLandscape(LAYERS[7], unevenness=0.0)
    space = landscape.space
    every = np.array([space.vector(index) for index in range(space.size)])
    best = np.sort(1.0 / landscape.modelled_seconds(every))[::-1]
    row = oracle_run(landscape, budget=200)
    assert row.curve[0] == pytest.approx(best[0])
    uneven = oracle_run(SimulatedLandscape(LAYERS[7]), budget=200)
    fastest = np.sort(1.0 / SimulatedLandscape(LAYERS[7]).seconds(every))[::-1]
    assert len(uneven.curve) == 200
    assert (np.diff(uneven.curve) >= 0).all()
    assert 0.95 * fastest[0] < uneven.best() <= fastest[0]


def test_statistics() -> None:
    assert geometric_mean([1.0, 4.0]) == pytest.approx(2.0)
    low, high = bootstrap_interval([2.0, 2.1, 1.9, 2.2, 1.8])
    assert 1.8 < low < 2.0 < high < 2.2
