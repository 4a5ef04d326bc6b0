"""A guide is followed where it fits; where it does not, the plain tuner is used, and the run says so."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tvm

from scripts.glimpse.family import DESIGNS, LAYERS, describe, template
from scripts.glimpse.landscapes import load
from tests.vta.scheduled_functions import random_arguments, run_on_cpu, run_on_vta
from tvm_ext.backends.description import KernelDescription
from tvm_ext.backends.vta.codegen.compute import Epilogue, conv2d
from tvm_ext.backends.vta.config import config_of_target
from tvm_ext.backends.vta.measurer import CycleMeasurer
from tvm_ext.errors import TuningError
from tvm_ext.tuners.glimpse import artefact as artefacts
from tvm_ext.tuners.glimpse.artefact import SHIPPED, Artefact, shipped
from tvm_ext.tuners.glimpse.ensemble import TAU, ValidityEnsemble
from tvm_ext.tuners.glimpse.guide import Guide
from tvm_ext.tuners.glimpse.networks import Network
from tvm_ext.tuners.glimpse.parts import PriorInitialiser
from tvm_ext.tuners.glimpse.tuner import GuidedTuner
from tvm_ext.tuners.initialisers import Start
from tvm_ext.tuners.measurement import Measurement
from tvm_ext.tuners.metaschedule.trace_space import TraceSpace
from tvm_ext.tuners.recipes import RECIPES, recipe
from tvm_ext.tuners.replay.convergence import converge
from tvm_ext.tuners.space import ConfigSpace, Knob
from tvm_ext.tuning.counted import KernelSearch

KEY = ("1x16b", "resnet18-9")
PACKAGE = Path(artefacts.__file__).parent


def described(key: tuple[str, str] = KEY) -> KernelDescription:
    return describe(DESIGNS[key[0]], LAYERS[key[1]])


def test_what_ships_is_small_and_says_what_it_was_trained_on() -> None:
    for family, name in SHIPPED.items():
        assert (PACKAGE / name).stat().st_size < 2_000_000
        made = shipped(family)
        assert made.family == family
        assert set(made.notes["designs"]) == set(DESIGNS)
        assert set(made.notes["layers"]) == set(LAYERS)


def test_a_network_is_its_layers() -> None:
    rng = np.random.default_rng(0)
    weights = (rng.normal(size=(3, 5)).astype(np.float32), rng.normal(size=(5, 2)).astype(np.float32))
    biases = (rng.normal(size=5).astype(np.float32), rng.normal(size=2).astype(np.float32))
    made = Network(np.array([1.0, 2, 3]), np.array([2.0, 1, 4]), weights, biases)
    rows = rng.normal(size=(7, 3))
    for row, found in zip(rows, made(rows), strict=True):
        normal = [(row[i] - made.mean[i]) / made.scale[i] for i in range(3)]
        hidden = [max(sum(normal[i] * weights[0][i, j] for i in range(3)) + biases[0][j], 0) for j in range(5)]
        expected = [sum(hidden[j] * weights[1][j, k] for j in range(5)) + biases[1][k] for k in range(2)]
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert made(np.empty((0, 3))).shape == (0, 2)
    again = Network.of(made.arrays("n"), "n")
    np.testing.assert_array_equal(again(rows), made(rows))


def test_thresholds_are_learnt_and_votes_are_counted() -> None:
    rng = np.random.default_rng(0)
    blueprints = rng.normal(size=(12, 3))
    limits = np.stack([blueprints @ [1.0, 2.0, 0.0] + 9, blueprints @ [0.0, -1.0, 1.0] + 7], axis=1)
    made = ValidityEnsemble.fit(blueprints, limits)
    new = rng.normal(size=3)
    np.testing.assert_allclose(made.thresholds(new), [new @ [1, 2, 0] + 9, new @ [0, -1, 1] + 7], atol=0.1)
    takes_part = np.array([[True, True, False, False], [False, False, True, False]])
    low, high = made.thresholds(new) - 0.1, made.thresholds(new) + 0.1
    usage = np.array([low, [high[0], low[1]], [low[0], high[1]], high])
    np.testing.assert_allclose(made.against(new, usage, takes_part), [0, 2 / 3, 1 / 3, 1])
    assert (made.against(new, usage, takes_part) > TAU + 1e-9).tolist() == [False, True, False, True]
    assert made.against(new, usage, np.zeros((2, 4), bool)).tolist() == [0, 0, 0, 0]


def test_the_prior_begins_with_what_works_and_is_fast() -> None:
    landscape = load()[KEY]
    guide = Guide(described(), landscape.space)
    taken: set[int] = {0}
    first = PriorInitialiser(guide).propose(50, Start(landscape.space, taken, np.random.default_rng(0)))
    keys = landscape.space.keys(first)
    assert len(set(keys)) == 50
    assert 0 not in keys
    assert taken == {0, *keys}
    assert landscape.works(first).mean() > 0.9
    assert landscape.best_seconds / landscape.seconds(first).min() > 0.95
    assert guide.accepted(first).all()
    others = PriorInitialiser(guide).propose(5, Start(landscape.space, taken, np.random.default_rng(0)))
    assert not set(landscape.space.keys(others)) & set(keys)
    assert PriorInitialiser(guide).propose(0, Start(landscape.space, taken, np.random.default_rng(0))).shape == (0, 8)


def test_numbers_of_a_large_space_are_those_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    space = load()[KEY].space
    vectors = space.random(np.random.default_rng(0), 100)
    table = Guide(described(), space).numbers(vectors)
    monkeypatch.setattr("tvm_ext.tuners.glimpse.guide.TABULATED", 0)
    monkeypatch.setattr("tvm_ext.tuners.glimpse.parts.TABULATED", 0)
    guide = Guide(described(), space)
    np.testing.assert_allclose(guide.numbers(vectors), table, atol=1e-4)
    first = PriorInitialiser(guide).propose(20, Start(space, set(), np.random.default_rng(0)))
    assert len(set(space.keys(first))) == 20
    assert load()[KEY].works(first).mean() > 0.8


@pytest.mark.parametrize("name", [name for name in RECIPES if "glimpse" in name])
def test_every_guided_recipe_finds_what_is_fast_and_exhausts_a_space(name: str) -> None:
    landscape, key = load()["1x32a", "resnet18-12"], ("1x32a", "resnet18-12")
    found = converge(name, recipe(name, 16, 16), landscape, 0, 64, description=described(key))
    assert found.speed_after(64) > 0.9
    tuner = recipe(name, 16, 16).tuner(landscape.space, 0, description=described(key))
    assert isinstance(tuner, GuidedTuner)
    tuner.fit_budget(100)
    assert tuner.guide is not None
    assert tuner.guide.budget == 100
    seen: set[tuple[int, ...]] = set()
    while batch := tuner.suggest(400):
        assert not seen & set(batch)
        seen |= set(batch)
        tuner.update(Measurement(vector, None) for vector in batch)  # nothing ever works
        if len(seen) > 1000:
            break
    assert len(seen) > 1000
    assert tuner.notes == []


def test_the_state_is_carried_on() -> None:
    landscape = load()[KEY]
    whole, first, second = (
        recipe("glimpse", 8, 8).tuner(landscape.space, seed, description=described()) for seed in (1, 1, 9)
    )

    def steps(tuner: object, count: int) -> list[tuple[int, ...]]:
        found = []
        for _ in range(count):
            batch = tuner.suggest(8)
            found += batch
            seconds = landscape.seconds(np.array(batch)).tolist()
            tuner.update(Measurement(v, t if np.isfinite(t) else None) for v, t in zip(batch, seconds, strict=True))
        return found

    expected = steps(whole, 5)
    begun = steps(first, 3)
    second.load(json.loads(json.dumps(first.dump())))
    assert begun + steps(second, 2) == expected


def test_without_a_description_the_plain_tuner_is_used_and_says_so() -> None:
    space = ConfigSpace([Knob.split("a", 64, 2), Knob.split("b", 64, 2)])
    for oracle, name in ((None, "evolution_shared"), (lambda vectors: np.ones(len(vectors), bool), "validity")):
        tuner = recipe("glimpse", 8, 8).tuner(space, 3, oracle=oracle)
        plain = recipe(name).tuner(space, 3, oracle=oracle)
        (note,) = tuner.notes
        assert note.startswith("no prior is used: the target says nothing of the kernel")
        assert note.endswith(f"the tuner is {name}")
        assert tuner.suggest(16) == plain.suggest(16)


def test_spaces_that_the_prior_never_saw_are_searched_plainly() -> None:
    row = described()
    knobs = [Knob("one", (1, 2, 4)), Knob("other", (1, 2))]
    cases = [
        (
            replace(row, family="cuda.conv2d"),
            "nothing was trained for kernels of cuda.conv2d; there is something for vta",
        ),
        (
            replace(row, layer=row.layer[:-1]),
            r"the prior was trained on \d+ numbers of a configuration, this space has",
        ),
        (replace(row, sheet=row.sheet[:-1]), r"this blueprint has columns batch, block"),
        (row, r"6 resources, those of this space are 6 of 8 knobs, and it has 2"),
    ]
    for description, message in cases:
        space = ConfigSpace(knobs) if description is row else load()[KEY].space
        tuner = recipe("glimpse").tuner(space, 0, description=replace(description, features=lambda v: row.features(
            np.zeros((len(v), 8), np.int64)), usage=lambda v: np.zeros((len(v), 6))))  # fmt: skip
        (note,) = tuner.notes
        with pytest.raises(TuningError, match=message):
            raise TuningError(note)
        assert tuner.suggest(4)


def test_an_oracle_that_lies_or_is_late_is_told_of_beside() -> None:
    landscape = load()[KEY]
    tuner = recipe("glimpse", 8, 8).tuner(landscape.space, 0, oracle=lambda vectors: ~landscape.works(vectors))
    for _ in range(6):
        batch = tuner.suggest(20)
        seconds = landscape.seconds(np.array(batch)).tolist()
        tuner.update(Measurement(v, t if np.isfinite(t) else None) for v, t in zip(batch, seconds, strict=True))
    assert [note.split(";")[0] for note in tuner.notes][1].startswith("the validity oracle was wrong about")
    late = recipe("glimpse").tuner(landscape.space, 0, oracle=lambda vectors: time.sleep(5))
    assert late.validity is not None
    late.validity.limit = 0.05
    assert len(late.suggest(16)) == 16
    assert "took more than 0.05 s" in late.notes[1]


@pytest.mark.parametrize("damage", ["cut", "empty", "text", "format", "missing", "infinite", "layer", "gone"])
def test_a_damaged_artefact_is_not_followed(damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = PACKAGE / SHIPPED["vta.conv2d"]
    path = tmp_path / "trained.npz"
    with np.load(original) as file:
        arrays = {name: file[name] for name in file.files}
    if damage == "format":
        arrays["about"] = np.array(str(arrays["about"]).replace('"format": 1', '"format": 9'))
    elif damage == "missing":
        del arrays["prior/weight1"]
    elif damage == "infinite":
        arrays["prior/weight0"][0, 0] = np.inf
    elif damage == "layer":
        arrays["acquisition/weight0"] = arrays["acquisition/weight0"][:-1]
    np.savez_compressed(path, **arrays)
    content = path.read_bytes()
    if damage in ("cut", "empty", "text"):
        path.write_bytes({"cut": content[: len(content) // 2], "empty": b"", "text": b"not an archive"}[damage])
    elif damage == "gone":
        path.unlink()
    with pytest.raises(TuningError, match=r"trained\.npz: nothing trained can be read from it"):
        Artefact.load(path)
    shipped.cache_clear()
    monkeypatch.setattr(artefacts, "SHIPPED", {"vta.conv2d": str(path)})
    tuner = recipe("glimpse").tuner(load()[KEY].space, 0, description=described())
    shipped.cache_clear()
    assert "nothing trained can be read from it" in tuner.notes[0]
    assert len(tuner.suggest(16)) == 16


def test_kernels_of_a_model_for_vta_are_described_as_those_of_the_template() -> None:
    target = tvm.target.Target("tvm-ext/vta-1x16x16")
    measurer = CycleMeasurer(target)
    task = LAYERS["resnet18-9"]
    func = conv2d(measurer.config, (1, 16, 14, 14), (16, 3, 3), 1, 1, Epilogue(8))
    workload = tvm.IRModule({"main": func})
    row = template(DESIGNS["1x16a"], task)
    for sketch, schedule in measurer.sketches(func).items():
        space = TraceSpace.of(schedule, workload).space
        choices = [knob.choices for knob in space.knobs]
        found = measurer.describe(func, sketch, choices)
        assert found is not None
        np.testing.assert_allclose(found.layer, describe(DESIGNS["1x16a"], task).layer)
        assert Guide(found, space).numbers(space.random(np.random.default_rng(0), 5)).shape == (5, 3)
        # The same tiles are described alike, however the knobs of a space are cut.
        rng = np.random.default_rng(1)
        for vector in row.space.random(rng, 40):
            knobs = row.knobs(vector)
            order = list(dict(row.space.values(vector)).values())[-1]
            if f"({order})" not in sketch:
                continue
            wanted = [
                (row.conv.batches // knobs.tile_b, knobs.tile_b),
                (row.conv.out_blocks // (knobs.tile_co * knobs.oc_nthread), knobs.oc_nthread, knobs.tile_co),
                (row.conv.out_height // (knobs.tile_h * knobs.h_nthread), knobs.h_nthread, knobs.tile_h),
                (row.conv.out_width // knobs.tile_w, knobs.tile_w),
                (row.conv.in_blocks // knobs.tile_ci, knobs.tile_ci),
            ]
            if any(
                want not in [tuple(choice) for choice in options] for want, options in zip(wanted, choices, strict=True)
            ):
                continue
            same = np.array(
                [[[tuple(c) for c in options].index(want) for want, options in zip(wanted, choices, strict=True)]]
            )
            np.testing.assert_allclose(found.features(same), describe(DESIGNS["1x16a"], task).features(vector[None]))


def test_a_kernel_of_vta_is_tuned_with_the_prior_and_runs() -> None:
    target = tvm.target.Target("tvm-ext/vta-1x16x16")
    config, measurer = config_of_target(target), CycleMeasurer(target)
    func = conv2d(config, (1, 4, 14, 14), (8, 3, 3), 1, 1, Epilogue(9, 0, 127, "weights"))
    search = KernelSearch(func, measurer, recipe("glimpse"), seed=0, batch=4)
    best = search.run(12)
    assert search.notes == []
    plain = KernelSearch(func, measurer, recipe("random", batch=4, initial=4), seed=0, batch=4).run(12)
    assert best.cycles is not None
    assert plain.cycles is not None
    assert best.cycles <= plain.cycles
    arguments = random_arguments(func, np.random.default_rng(0))
    found, _ = run_on_vta(search.schedule(best).mod["main"], arguments, config)
    np.testing.assert_array_equal(found, run_on_cpu(func, arguments))
    grouped = recipe("glimpse").tuner(ConfigSpace([Knob("a", (1, 2))]), 0, description=measurer.describe(func, "?", []))
    assert grouped.notes
