from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tuners.spaces import bowl, convolution_space, measurements, small_spaces, tune
from tvm_ext.errors import OptionError, TuningError
from tvm_ext.tuners.measurement import Measurement
from tvm_ext.tuners.recipes import RECIPES, recipe
from tvm_ext.tuners.samplers import GreedySampler
from tvm_ext.tuners.space import ConfigSpace, Knob

QUICK = [name for name in RECIPES if "ppo" not in name and name != "chameleon"]


@pytest.mark.parametrize("name", RECIPES)
def test_a_fixed_seed_gives_a_fixed_trace_and_a_dump_goes_on_with_it(name: str) -> None:
    space = convolution_space()
    row = recipe(name, batch=16, initial=16)
    whole = tune(row.tuner(space, seed=3), bowl(space), 48)
    assert whole == tune(row.tuner(space, seed=3), bowl(space), 48)
    assert whole != tune(row.tuner(space, seed=4), bowl(space), 48)

    interrupted = row.tuner(space, seed=3)
    first: list[tuple[int, ...]] = []
    while len(first) < 24:
        batch = interrupted.suggest(48 - len(first))
        interrupted.update(measurements(batch, bowl(space)))
        first += batch
    resumed = row.tuner(space, seed=99)
    resumed.load(interrupted.dump())
    assert first + tune(resumed, bowl(space), 48 - len(first)) == whole
    assert resumed.effort == interrupted.effort or resumed.effort.iterations > interrupted.effort.iterations


@pytest.mark.parametrize("name", QUICK)
@settings(max_examples=8, deadline=None)
@given(space=small_spaces(), seed=st.integers(0, 2**16), noise=st.integers(0, 2**16))
def test_nothing_is_suggested_twice_and_small_spaces_are_exhausted(
    name: str, space: ConfigSpace, seed: int, noise: int
) -> None:
    rng = np.random.default_rng(noise)
    tuner = recipe(name, batch=8, initial=8).tuner(space, seed)
    budget = min(space.size, 60)
    suggested: list[tuple[int, ...]] = []
    while len(suggested) < budget and (batch := tuner.suggest(7)):
        assert len(batch) <= 7
        suggested += batch
        times = [None if rng.random() < 0.3 else float(rng.random()) + 0.1 for _ in batch]
        tuner.update([Measurement(*row) for row in zip(batch, times, strict=True)])
    assert len(set(suggested)) == len(suggested) >= budget
    assert all(space.check(vector) == vector for vector in suggested)


@pytest.mark.parametrize(
    "name", ["autotvm_sa", "sa_as", "sa_as_tiles", "evolution", "ppo", "chameleon", "autotvm_diversity"]
)
def test_learning_beats_random_on_a_bowl(name: str) -> None:
    space = convolution_space()
    learnt, drawn = [], []
    for seed in range(3):
        for result, row in ((learnt, recipe(name, initial=32, batch=32)), (drawn, recipe("random"))):
            tuner = row.tuner(space, seed)
            tune(tuner, bowl(space), 160)
            assert tuner.best is not None
            result.append(tuner.best.seconds)
    assert np.median(learnt) < np.median(drawn)


def test_a_larger_pool_is_handed_to_the_sampler() -> None:
    space = convolution_space()
    handed: list[int] = []

    class Watched(GreedySampler):
        def sample(self, space: ConfigSpace, vectors: np.ndarray, *rest: Any) -> np.ndarray:
            handed.append(len(vectors))
            return super().sample(space, vectors, *rest)

    row = replace(recipe("autotvm_sa", batch=8, initial=8), sampler=Watched, pool=4)
    assert len(tune(row.tuner(space, 0), bowl(space), 24)) == 24
    assert handed == [32, 32]


def test_a_share_of_the_batch_is_around_the_best_measured() -> None:
    """Of half of the batch each differs in one knob from one of the four best; they are the best predicted such."""
    space = convolution_space()
    tuner = replace(recipe("autotvm_sa", batch=16, initial=64), refined_share=0.5).tuner(space, 0)
    tune(tuner, bowl(space), 64)
    ranked = sorted(tuner.measurements, key=lambda row: -row.score)
    best, known = [row.vector for row in ranked[:4]], {row.vector for row in ranked}
    around = {
        (*vector[:knob], choice, *vector[knob + 1 :])
        for vector in best
        for knob, radix in enumerate(space.radices.tolist())
        for choice in range(radix)
    } - known
    batch = tuner.suggest(16)
    assert len(batch) == 16
    refined = [vector for vector in batch if vector in around]
    assert len(refined) >= 8
    score = tuner.cost_model.scorer(space)
    others = around - set(batch)
    assert score(np.array(refined)).min() >= score(np.array(sorted(others))).max() - 1e-6


def test_the_default_configuration_is_measured_first() -> None:
    knobs = [Knob("a", tuple(range(9))), Knob("b", tuple(range(9)))]
    for name in QUICK:
        assert recipe(name).tuner(ConfigSpace(knobs, default=(4, 7)), 0).suggest(5)[0] == (4, 7)


def test_all_invalid_is_no_reason_to_stop() -> None:
    space = convolution_space()
    for name in QUICK:
        tuner = recipe(name, batch=8, initial=8).tuner(space, 0)
        for _ in range(4):
            batch = tuner.suggest(8)
            assert batch
            tuner.update([Measurement(vector, None) for vector in batch])
        assert tuner.best is None


def test_errors() -> None:
    with pytest.raises(OptionError, match="autotvm_sa"):
        recipe("best")
    tuner = recipe("random").tuner(convolution_space())
    with pytest.raises(TuningError, match="damaged"):
        tuner.load('{"format": 1')
    with pytest.raises(TuningError, match="damaged"):
        tuner.load("[]")
    with pytest.raises(TuningError, match=r"knob0 \(3 choices\)"):
        tuner.load(recipe("random").tuner(ConfigSpace([Knob("knob0", (1, 2, 3))])).dump())
    state = json.loads(tuner.dump()) | {"format": 7}
    with pytest.raises(TuningError, match="format 7"):
        tuner.load(json.dumps(state))
    with pytest.raises(TuningError, match="'f'"):
        tuner.update([Measurement((10**6, 0, 0, 0, 0, 0, 0, 0), 1.0)])


@pytest.mark.parametrize("seconds", ["fast", [1.0], b"1"])
def test_seconds_that_are_no_number_are_refused_before_anything_is_learnt(seconds) -> None:
    with pytest.raises(TuningError, match=r"seconds of configuration \(0, 2\) is .*; expected a number, or None"):
        Measurement((0, 2), seconds)
    assert Measurement((0,), np.float32(0.5)).score == Measurement((0,), np.array(0.5)[()]).score == 2.0


def test_scores() -> None:
    assert Measurement((0,), 0.5).score == 2.0
    assert Measurement((0,), None).score == Measurement((0,), float("nan")).score == 0.0
