"""A cost model trained on other spaces: what it knows before anything is measured; damaged files."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tvm_ext.errors import TuningError
from tvm_ext.tuners.measurement import Measurement
from tvm_ext.tuners.pretrained.artefact import LOOP_NEST_FEATURES, LOOP_NESTS, Pretrained
from tvm_ext.tuners.pretrained.model import PretrainedModel
from tvm_ext.tuners.recipes import RECIPES, PretrainedRecipe
from tvm_ext.tuners.replay.rule_cost import costed_space
from tvm_ext.tuners.replay.simulator import SimulatedLandscape
from tvm_ext.tuners.replay.tasks import TASKS
from tvm_ext.tuners.shared_model import Examples, structure
from tvm_ext.tuners.space import ConfigSpace, Knob

OTHERS, TASK = (TASKS[1], TASKS[2], TASKS[6]), TASKS[19]


def landscape(task=TASK, costs: bool = True) -> SimulatedLandscape:
    made = SimulatedLandscape(task)
    if costs:
        made.space = costed_space(task)
    return made


def examples(task, model: PretrainedModel, costs: bool) -> Examples:
    of = landscape(task, costs)
    vectors = of.space.random(np.random.default_rng(0), 300)
    return model.features(of.space, vectors), 1.0 / of.measure(vectors, 0)


def trained(costs: bool) -> Pretrained:
    model = PretrainedModel(costs=costs, prior_rounds=40)
    trees = model.train([examples(task, model, costs) for task in OTHERS])
    return Pretrained({structure(costed_space(TASK)): trees}, {"by": "a test"})


@pytest.fixture(scope="module", params=[True, False], ids=["with cost", "without"])
def made(request: pytest.FixtureRequest) -> tuple[Pretrained, bool]:
    return trained(request.param), request.param


def test_it_ranks_a_space_that_it_never_saw(made: tuple[Pretrained, bool]) -> None:
    pretrained, costs = made
    of = landscape(costs=costs)
    model = PretrainedModel(trained=pretrained.of(of.space), costs=costs)
    vectors = of.space.random(np.random.default_rng(1), 500)
    speeds = 1.0 / of.seconds(vectors)
    assert model.informed
    assert model.fitted
    chosen = np.argsort(-model.predict(model.features(of.space, vectors)))[:50]
    assert speeds[chosen].mean() > 2 * speeds.mean()


def test_measurements_correct_what_was_learnt(made: tuple[Pretrained, bool]) -> None:
    pretrained, costs = made
    of = landscape(costs=costs)
    model = PretrainedModel(trained=pretrained.of(of.space), costs=costs)
    vectors = of.space.random(np.random.default_rng(1), 2000)
    speeds, features = 1.0 / of.seconds(vectors), model.features(of.space, vectors)

    def error() -> float:
        works = speeds[1600:] > 0
        missed = np.log(model.predict(features[1600:])[works] / speeds[1600:][works])
        return float(np.std(missed))

    before = error()
    model.fit(features[:1600], speeds[:1600])
    assert error() < before


def test_the_first_suggestions_follow_the_model(made: tuple[Pretrained, bool]) -> None:
    pretrained, costs = made
    of = landscape(costs=costs)
    recipe = RECIPES["sa_as_pretrained"]
    assert isinstance(recipe, PretrainedRecipe)
    tuner = replace(recipe, artefact=pretrained).tuner(of.space, 0)
    first = np.array(tuner.suggest(16))
    random = of.space.random(np.random.default_rng(0), 200)
    assert (1.0 / of.seconds(first)).mean() > 1.5 * (1.0 / of.seconds(random)).mean()
    assert tuner.notes == []


def test_a_file_gives_back_what_was_written(made: tuple[Pretrained, bool], tmp_path: Path) -> None:
    pretrained, costs = made
    of = landscape(costs=costs)
    pretrained.save(tmp_path / "trees.npz")
    again = Pretrained.load(tmp_path / "trees.npz")
    assert again.notes == {"by": "a test"}
    vectors = of.space.random(np.random.default_rng(1), 50)
    one, other = (PretrainedModel(trained=found.of(of.space), costs=costs) for found in (pretrained, again))
    np.testing.assert_array_equal(
        one.predict(one.features(of.space, vectors)), other.predict(other.features(of.space, vectors))
    )


def test_damaged_files_are_told(tmp_path: Path) -> None:
    path = tmp_path / "trees.npz"
    trained(False).save(path)
    whole = path.read_bytes()
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    for number, content in enumerate((b"", b"nothing", whole[: len(whole) // 2])):
        (tmp_path / f"{number}.npz").write_bytes(content)
        with pytest.raises(TuningError, match="no pretrained cost model can be read"):
            Pretrained.load(tmp_path / f"{number}.npz")
    flipped = dict(arrays)
    flipped["speed_0"] = arrays["speed_0"].copy()
    flipped["speed_0"][100] ^= 1
    np.savez(path, **flipped)
    with pytest.raises(TuningError, match="not those that were written"):
        Pretrained.load(path)
    newer = dict(arrays)
    newer["about"] = np.array(json.dumps({"format": 99}))
    np.savez(path, **newer)
    with pytest.raises(TuningError, match="format 99, expected 1"):
        Pretrained.load(path)
    with pytest.raises(TuningError, match="no pretrained cost model can be read"):
        Pretrained.load(tmp_path / "missing.npz")
    (tmp_path / "text.npz").write_bytes(b"nothing")
    with pytest.raises(TuningError, match=r"no archive of NumPy, \.npz\); scripts/pretrain\.py writes"):
        Pretrained.load(tmp_path / "text.npz")


def unseen(artefact: Pretrained | None, space: ConfigSpace):
    recipe = RECIPES["sa_as_pretrained"]
    assert isinstance(recipe, PretrainedRecipe)
    return replace(recipe, artefact=artefact).tuner(space, 0)


@pytest.mark.parametrize("default", [None, (0, 0)])
def test_a_space_that_was_not_seen_is_tuned_from_nothing(default) -> None:
    space = ConfigSpace([Knob.split("rows", 64, 3), Knob("unroll", (0, 1, 2))], default)
    tuner = unseen(trained(False), space)
    assert tuner.notes == [
        "no pretrained cost model is used: no space with knobs rows, unroll was seen in training; "
        "the tuner learns from nothing"
    ]
    while batch := tuner.suggest(20):
        tuner.update([Measurement(row, 1.0 + abs(row[0] - 5) + row[1]) for row in batch])
    assert tuner.best is not None
    assert tuner.best.vector == (5, 0)


def test_a_damaged_artefact_of_the_package_is_told_and_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    def damaged() -> Pretrained:
        raise TuningError("cpu_kernels.npz: no pretrained cost model can be read from it (cut short)")

    monkeypatch.setattr("tvm_ext.tuners.pretrained.recipe.shipped", damaged)
    tuner = unseen(None, ConfigSpace([Knob("a", tuple(range(9)))]))
    assert "cut short" in tuner.notes[0]
    assert "learns from nothing" in tuner.notes[0]
    assert len(tuner.suggest(4)) == 4


def test_trees_that_look_at_other_numbers_are_told_and_passed_over(tmp_path: Path) -> None:
    """As another release may have written them: asking them would end the run."""
    of = landscape(costs=False)
    model = PretrainedModel(prior_rounds=5)
    rows = [(features[:, 1:], scores) for features, scores in (examples(task, model, False) for task in OTHERS)]
    other = Pretrained({structure(of.space): model.train(rows), LOOP_NESTS: model.train(rows)})
    other.save(tmp_path / "trees.npz")
    again = Pretrained.load(tmp_path / "trees.npz")
    tuner = unseen(again, of.space)
    (note,) = tuner.notes
    assert "numbers of a configuration where this release has" in note
    assert "scripts/pretrain.py; the tuner learns from nothing" in note
    batch = tuner.suggest(8)
    tuner.update(
        [Measurement(row, seconds) for row, seconds in zip(batch, of.measure(np.array(batch), 0), strict=True)]
    )
    assert tuner.suggest(8)
    with pytest.raises(TuningError, match=f"where this release has {LOOP_NEST_FEATURES}"):
        again.of_loop_nests()


def test_a_cost_alone_is_heard_from_the_beginning() -> None:
    knobs = [Knob("a", tuple(range(30))), Knob("b", tuple(range(30)))]
    space = ConfigSpace(knobs, cost=lambda vectors: 1.0 + (vectors[:, 0] - 7) ** 2 + (vectors[:, 1] - 3) ** 2)
    tuner = unseen(Pretrained({}), space)
    assert (7, 3) in tuner.suggest(8)


@pytest.mark.parametrize("value", [np.nan, np.inf, 0.0])
def test_costs_that_are_no_numbers_say_nothing(value: float) -> None:
    space = ConfigSpace([Knob("a", tuple(range(50)))], cost=lambda vectors: np.full(len(vectors), value))
    model = PretrainedModel(costs=True)
    features = model.features(space, space.random(np.random.default_rng(0), 20))
    assert np.isfinite(features).all()
    model.fit(features, np.linspace(0, 1, 20))
    assert np.isfinite(model.predict(features)).all()


def fails(vectors: np.ndarray) -> np.ndarray:
    raise RuntimeError("no such file\nmore")


@pytest.mark.parametrize(
    ("cost", "reason"),
    [
        (fails, "RuntimeError: no such file"),
        (lambda vectors: None, r"ValueError: it gave object\[\] for \d+ configurations, expected as many numbers"),
        (lambda vectors: np.ones(len(vectors) - 1), "ValueError: it gave float64"),
        (lambda vectors: np.array(["fast"] * len(vectors)), "ValueError: it gave <U4"),
        (lambda vectors: np.ones((len(vectors), 1)), "ValueError: it gave float64"),
    ],
)
def test_a_cost_that_fails_is_told_and_passed_over(cost, reason: str) -> None:
    space = ConfigSpace([Knob("a", tuple(range(30))), Knob("b", tuple(range(30)))], cost=cost)
    tuner = RECIPES["evolution_expected"].tuner(space, 0)
    for _ in range(8):
        tuner.update([Measurement(row, 1.0 + abs(row[0] - 7) + abs(row[1] - 3)) for row in tuner.suggest(16)])
    (note,) = tuner.notes
    assert re.match(f"what is expected of configurations cannot be heard \\({reason}.*the tuner goes on", note)
    assert tuner.best is not None
    assert tuner.best.seconds is not None
    assert tuner.best.seconds < 4


def test_costs_are_heard_as_lists_and_integers() -> None:
    space = ConfigSpace(
        [Knob("a", tuple(range(300)))], cost=lambda vectors: [abs(int(row[0]) - 7) + 1 for row in vectors]
    )
    tuner = RECIPES["evolution_expected"].tuner(space, 0)
    assert (7,) in tuner.suggest(8)
    assert tuner.notes == []


def test_a_wrong_cost_is_corrected() -> None:
    knobs = [Knob("a", tuple(range(40))), Knob("b", tuple(range(40)))]
    space = ConfigSpace(knobs, cost=lambda vectors: 100.0 - vectors[:, 0])  # the other way round
    tuner = unseen(Pretrained({}), space)
    for _ in range(12):
        batch = tuner.suggest(16)
        tuner.update([Measurement(row, 1.0 + row[0] + row[1]) for row in batch])
    assert tuner.best is not None
    assert tuner.best.seconds is not None
    assert tuner.best.seconds < 6
