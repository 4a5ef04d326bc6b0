from __future__ import annotations

import numpy as np
import pytest

from tests.tuners.spaces import measurements, tune
from tvm_ext.tuners.measurement import Measurement
from tvm_ext.tuners.recipes import recipe
from tvm_ext.tuners.shared_model import Peers, SharedModel
from tvm_ext.tuners.space import ConfigSpace, Knob


def space_of(filters: int, rows: int, default: bool = False) -> ConfigSpace:
    """Spaces of one rule for kernels of two extents."""
    knobs = [Knob.split("f", filters, 3), Knob.split("y", rows, 3), Knob("unroll", (0, 16, 64, 512))]
    return ConfigSpace(knobs, (0, 0, 0) if default else None)


def seconds(space: ConfigSpace, vectors: np.ndarray) -> np.ndarray:
    """A law of all of them: tiles of 32 points are the fastest, and longer vectors; more than 256 points fail."""
    features = space.features(np.asarray(vectors))
    points = features[:, 2] + features[:, 5]
    time = 1e-3 * (1.0 + np.abs(points - 5.0) + 0.3 * np.abs(features[:, 2] - 4.0)) * (1.0 + rows_of(space))
    return np.where(points > 8, np.inf, time)


def rows_of(space: ConfigSpace) -> float:
    return float(space.choice_features[1][0].sum())


def examples(model: SharedModel, space: ConfigSpace, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    vectors = space.random(np.random.default_rng(seed), count)
    return model.features(space, vectors), 1.0 / seconds(space, vectors)


OTHERS = (space_of(64, 56), space_of(128, 28), space_of(96, 48), space_of(256, 14))
NEW = space_of(192, 24)


def test_a_space_is_known_from_others_before_anything_was_measured() -> None:
    model = SharedModel()
    model.learn([examples(model, space, 150, number) for number, space in enumerate(OTHERS)])
    assert model.fitted
    vectors = NEW.random(np.random.default_rng(9), 400)
    model.fit(model.features(NEW, vectors[:0]), np.empty(0))
    true = 1.0 / seconds(NEW, vectors)
    scores = model.scorer(NEW)(vectors)
    works = true > 0
    ranks = [np.argsort(np.argsort(row[works])) for row in (scores, true)]
    assert np.corrcoef(ranks)[0, 1] > 0.85
    assert np.median(scores[~works]) < 0.2 * np.median(scores[works])
    # Its ten best are among the best there are.
    assert true[np.argsort(-scores)[:10]].mean() > 0.8 * true.max()


def test_what_is_measured_corrects_what_others_say() -> None:
    """A space that likes what the others like least, and where one choice fails that works for the others."""
    model = SharedModel()
    model.learn([examples(model, space, 150, number) for number, space in enumerate(OTHERS)])
    vectors = NEW.random(np.random.default_rng(5), 400)
    fails = vectors[:, 2] == 3
    contrary = np.where(fails, 0.0, np.minimum(seconds(NEW, vectors), 0.1))
    model.fit(model.features(NEW, vectors[:200]), contrary[:200])
    scores, true, fails = model.scorer(NEW)(vectors[200:]), contrary[200:], fails[200:]
    ranks = [np.argsort(np.argsort(row[~fails])) for row in (scores, true)]
    assert np.corrcoef(ranks)[0, 1] > 0.7
    assert scores[fails].mean() < 0.2 * scores[~fails].mean()


def test_without_others_it_learns_from_its_own_measurements_alone() -> None:
    model, plain = SharedModel(), SharedModel()
    model.learn([])
    model.learn([(np.ones((3, len(model.features(NEW, NEW.random(np.random.default_rng(0), 1))[0]))), np.zeros(3))])
    assert not model.fitted
    features, scores = examples(model, NEW, 100, 3)
    for row in (model, plain):
        row.fit(features, scores)
    np.testing.assert_array_equal(model.predict(features), plain.predict(features))


def test_peers_have_the_same_knobs_and_see_what_comes_later() -> None:
    first, second, stranger = space_of(64, 56), space_of(128, 28), ConfigSpace([Knob.split("f", 64, 3)])
    rows: list[Measurement] = []
    peers = Peers()
    for space, found in ((first, rows), (second, []), (stranger, [Measurement((0,), 1.0)])):
        peers.join(space, found)
    assert peers.others(second) == []
    rows.append(Measurement((0, 0, 0), 1.0))
    assert peers.others(second) == [(first, rows)]
    assert peers.others(first) == []
    apart = peers.copy()
    apart.join(space_of(8, 8), [Measurement((0, 0, 0), 1.0)])
    assert (len(apart.others(second)), len(peers.others(second))) == (2, 1)


@pytest.mark.parametrize("name", ["evolution_shared", "sa_as_shared", "chameleon_shared"])
def test_tuners_begin_where_others_were_fast(name: str) -> None:
    peers = Peers()
    for space in OTHERS:
        tuner = recipe("random").tuner(space, 1, peers)
        tune(tuner, lambda vectors, space=space: seconds(space, vectors), 100)
    informed, alone = (recipe(name).tuner(NEW, 2, known) for known in (peers, None))
    first = informed.suggest(16)
    assert len(first) > 1
    assert np.median(seconds(NEW, np.array(first))) < 0.7 * np.median(seconds(NEW, np.array(alone.suggest(64))))
    informed.update(measurements(first, lambda vectors: seconds(NEW, vectors)))
    assert informed.suggest(16)


def test_the_default_is_measured_first_all_the_same() -> None:
    peers = Peers()
    for space in OTHERS:
        tune(recipe("random").tuner(space, 1, peers), lambda vectors, space=space: seconds(space, vectors), 100)
    space = space_of(192, 24, default=True)
    tuner = recipe("evolution_shared").tuner(space, 0, peers)
    assert tuner.suggest(16) == [(0, 0, 0)]
    tuner.update([Measurement((0, 0, 0), None)])
    assert len(tuner.suggest(16)) > 1  # that it fails is no reason to forget the others


def test_others_of_whom_nothing_works_are_no_prior() -> None:
    peers = Peers()
    space = OTHERS[0]
    peers.join(space, [Measurement(space.vector(index), None) for index in range(100)])
    tuner = recipe("evolution_shared").tuner(NEW, 0, peers)
    assert len(tuner.suggest(64)) == recipe("evolution_shared").initial
    assert not tuner.cost_model.fitted


def test_few_measurements_of_others_are_not_trusted() -> None:
    peers = Peers()
    peers.join(OTHERS[0], [Measurement((0, 0, 0), 1.0)] * 10)
    tuner = recipe("evolution_shared").tuner(NEW, 0, peers)
    tuner.suggest(16)
    assert not tuner.cost_model.fitted
