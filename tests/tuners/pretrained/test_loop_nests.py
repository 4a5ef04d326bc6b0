"""A cost model that looks at loop nests: what it knows beforehand, what it learns of siblings, what ships."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm.s_tir import meta_schedule as ms

from scripts import pretrain_loops
from scripts.pretrain_loops import kernels, one_core_target
from tests.tuners.metaschedule.kernels import matmul, tiled
from tests.tuners.metaschedule.test_strategy import _tune, measurer
from tvm_ext.errors import TvmExtWarning
from tvm_ext.system.tensor_intrinsics import only_tensor_intrinsics
from tvm_ext.tuners.measure.measurer import Measurer
from tvm_ext.tuners.measurement import Measurement
from tvm_ext.tuners.metaschedule.loop_nests import LoopNestSpaces
from tvm_ext.tuners.metaschedule.strategy import TunerStrategy
from tvm_ext.tuners.pretrained.artefact import LOOP_NEST_FEATURES, Pretrained, shipped
from tvm_ext.tuners.pretrained.loop_nests import LoopNestModel
from tvm_ext.tuners.pretrained.recipe import LoopNestRecipe
from tvm_ext.tuners.recipes import recipe
from tvm_ext.tuners.shared_model import Examples
from tvm_ext.tuners.space import ConfigSpace, Knob, Vector

__all__ = ["measurer"]  # a fixture

RECORDED = Path(__file__).resolve().parents[3] / "docs/results/loop_nests.jsonl"
SPACE = ConfigSpace([Knob("a", tuple(range(16))), Knob("b", tuple(range(16)))])


def described(vector: Vector) -> np.ndarray | None:
    """Features that tell a's distance from 11 and b; no schedule where both are 0."""
    features = np.zeros(LOOP_NEST_FEATURES, np.float32)
    features[:2] = abs(vector[0] - 11), vector[1]
    return features if any(vector) else None


def speeds(vectors: np.ndarray, scale: float = 1.0) -> np.ndarray:
    return scale * 2.0 ** (-np.abs(vectors[:, 0] - 11) / 4)


def looking(**more: object) -> LoopNestModel:
    model = LoopNestModel(**more)  # type: ignore[arg-type]
    model.look_at(described)
    return model


def examples(seed: int, scale: float) -> Examples:
    vectors = SPACE.random(np.random.default_rng(seed), 40)
    return np.nan_to_num(looking().features(SPACE, vectors)), speeds(vectors, scale)


def test_other_kernels_tell_where_to_begin() -> None:
    trained = looking(prior_rounds=60).train([examples(seed, 10.0**seed) for seed in range(5)])
    model = looking(trained=trained)
    assert model.informed
    vectors = SPACE.random(np.random.default_rng(9), 100)
    chosen = vectors[np.argmax(model.predict(model.features(SPACE, vectors)))]
    assert abs(chosen[0] - 11) <= 1
    assert not LoopNestModel(trained=trained).informed, "knobs alone say nothing of loops"


def test_what_cannot_be_scheduled_is_worth_nothing_and_is_not_learnt_from() -> None:
    model = looking()
    vectors = np.array([[0, 0], [11, 3], [2, 5]])
    features = model.features(SPACE, vectors)
    assert np.isnan(features).any(axis=1).tolist() == [True, False, False]
    model.fit(features, np.array([0.0, 2.0, 1.0]))
    predicted = model.predict(features)
    assert predicted[0] == 0
    assert np.isfinite(predicted).all()
    assert predicted[1:].min() > 0


def test_other_forms_of_the_kernel_are_learnt_from() -> None:
    alone, together = looking(), looking()
    together.look_at(described, lambda: [examples(1, 1.0)])
    few = np.array([[0, 5], [1, 5]])
    for model in (alone, together):
        model.fit(model.features(SPACE, few), speeds(few))
    at = np.array([[11, 5], [3, 5]])
    fast, slow = together.predict(together.features(SPACE, at))
    assert fast > 1.5 * slow
    fast, slow = alone.predict(alone.features(SPACE, at))
    assert fast < 1.5 * slow


def test_a_tuner_finds_the_best_with_it_even_where_nothing_was_trained() -> None:
    row = recipe("evolution_loops")
    assert isinstance(row, LoopNestRecipe)
    tuner = replace(row, artefact=Pretrained({})).tuner(SPACE, 0)
    assert tuner.notes == [
        "no pretrained cost model is used: it has no trees for loop nests; the tuner learns from nothing"
    ]
    assert isinstance(tuner.cost_model, LoopNestModel)
    tuner.cost_model.look_at(described)
    for _ in range(4):
        vectors = tuner.suggest(16)
        tuner.update(
            Measurement(vector, 1 / float(speeds(np.array([vector]))[0]) if any(vector) else None) for vector in vectors
        )
    assert tuner.best is not None
    assert tuner.best.vector[0] == 11


def test_a_tuner_looks_at_few_configurations_of_a_space_that_it_could_tabulate() -> None:
    """Each is scheduled, which takes milliseconds: tens of minutes for all of a space."""
    space = ConfigSpace([Knob(name, tuple(range(20))) for name in "abc"])
    tuner = recipe("evolution_loops").tuner(space, 0)
    assert isinstance(tuner.cost_model, LoopNestModel)
    seen: set[Vector] = set()

    def described_once(vector: Vector) -> np.ndarray | None:
        assert vector not in seen
        seen.add(vector)
        return described(vector)

    tuner.cost_model.look_at(described_once)
    for _ in range(3):
        vectors = tuner.suggest(16)
        tuner.update(Measurement(vector, 1 / float(speeds(np.array([vector]))[0])) for vector in vectors)
    assert len(seen) < space.size / 4


@pytest.mark.parametrize("name", ["convolution_48_192_13_1", "product_17_256_256"])
def test_what_ships_orders_what_it_was_trained_on(name: str) -> None:
    """The features are those of training: another TVM, or another order of them, would end it."""
    rows = [json.loads(line) for line in RECORDED.read_text("utf-8").splitlines()]
    rows = [row for row in rows if row["kernel"] == name and row["seconds"] is not None]
    model = LoopNestModel(trained=shipped().of_loop_nests())
    model.look_at(lambda vector: None)
    with only_tensor_intrinsics("x86"):
        spaces = LoopNestSpaces(kernels()[name](), one_core_target())
        found = [(spaces.features(row["sketch"], tuple(row["choices"])), row["seconds"]) for row in rows]
    features = np.array([row for row, _ in found if row is not None])
    seconds = np.array([seconds for row, seconds in found if row is not None])
    assert len(seconds) > 10
    ranks = [np.argsort(np.argsort(values)) for values in (-model.predict(features), seconds)]
    assert np.corrcoef(*ranks)[0, 1] > 0.6


def test_metaschedule_searches_with_it(measurer: Measurer, tmp_path: Path) -> None:
    space = ms.space_generator.ScheduleFn(tiled, sch_rules=[], postprocs=[], mutator_probs={})
    strategy = TunerStrategy(recipe("evolution_loops"))
    database = _tune(matmul(64, 64, 64), tmp_path, 16, measurer, space, strategy)
    assert len(database.get_all_tuning_records()) == 16
    assert any(float(record.run_secs[0]) < 1 for record in database.get_all_tuning_records())
    assert strategy.notes == []


def test_loops_of_a_gpu_are_learnt_from_nothing_and_the_run_says_so() -> None:
    mod, target = matmul(64, 64, 64), tvm.target.Target("nvidia/nvidia-h100")
    space = ms.space_generator.ScheduleFn(tiled, sch_rules=[], postprocs=[], mutator_probs={})
    strategy = TunerStrategy(recipe("evolution_loops"))
    with only_tensor_intrinsics():
        context = ms.TuneContext(mod, target=target, space_generator=space, search_strategy=strategy, rand_state=1)
    strategy._initialize_with_tune_context(context)
    strategy.pre_tuning(16, 8, context.generate_design_space())
    candidates = strategy.generate_measure_candidates()
    assert candidates
    with pytest.warns(TvmExtWarning, match="it was trained on kernels of CPUs; the tuner learns from nothing"):
        strategy.post_tuning()


def test_another_machine_measures_and_trains_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pretrain_loops, "CONVOLUTIONS", ())
    monkeypatch.setattr(pretrain_loops, "PRODUCTS", ((7, 31, 33),))
    kept, output = tmp_path / "loops.jsonl", tmp_path / "trees.npz"
    with only_tensor_intrinsics("x86"):
        pretrain_loops.measure(kept, 6, 1)
        rows = [json.loads(line) for line in kept.read_text("utf-8").splitlines()]
        pretrain_loops.train(rows, output, [])
        with pytest.raises(SystemExit, match=r"no measurement of a kernel that is left"):
            pretrain_loops.train(rows, output, ["product"])
    assert len(rows) == 6
    assert all(row["kernel"] == "product_7_31_33" for row in rows)
    assert any(row["seconds"] is not None and 0 < row["seconds"] < 1 for row in rows)
    made = Pretrained.load(output)
    assert made.notes["loop nests"] == {"kernels": 1, "measurements": 6}
    assert looking(trained=made.of_loop_nests()).informed
