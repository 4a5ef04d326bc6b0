from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tuners.spaces import small_spaces
from tvm_ext.errors import TuningError
from tvm_ext.tuners.space import ConfigSpace, Knob


def _vgg_first_layer() -> ConfigSpace:
    """The first layer of VGG-16 in the direct convolution template of AutoTVM for CUDA."""
    splits = [("tile_f", 64, 4), ("tile_y", 224, 4), ("tile_x", 224, 4)]
    reductions = [("tile_rc", 3, 2), ("tile_ry", 3, 2), ("tile_rx", 3, 2)]
    knobs = [Knob.split(*row) for row in splits + reductions]
    knobs += [Knob("auto_unroll_max_step", (0, 512, 1500)), Knob("unroll_explicit", (False, True))]
    return ConfigSpace(knobs)


def test_size_of_the_first_layer_of_vgg16() -> None:
    space = _vgg_first_layer()
    assert space.size == 202_309_632
    assert space.radices.tolist() == [84, 224, 224, 2, 2, 2, 3, 2]


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.data())
def test_index_vector_and_values_are_the_same_thing(radices: list[int], data: st.DataObject) -> None:
    space = ConfigSpace([Knob(f"knob{i}", tuple(range(10, 10 + radix))) for i, radix in enumerate(radices)])
    index = data.draw(st.integers(0, space.size - 1))
    vector = space.vector(index)
    assert space.index(vector) == index
    assert space.keys(np.array([vector])) == [index]
    assert list(space.values(vector).values()) == [10 + choice for choice in vector]


def test_the_first_knob_is_the_fastest_and_every_point_comes_once() -> None:
    space = ConfigSpace([Knob("a", (1, 2, 3)), Knob("b", (True, False))])
    assert [space.vector(i) for i in range(6)] == [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1)]


def test_a_space_beyond_64_bits() -> None:
    space = ConfigSpace([Knob(f"knob{i}", tuple(range(100))) for i in range(12)])
    assert space.size == 10**24
    vectors = space.random(np.random.default_rng(0), 5)
    assert [space.vector(key) for key in space.keys(vectors)] == [tuple(row) for row in vectors.tolist()]


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.data())
def test_neighbours_differ_by_one_step(radices: list[int], data: st.DataObject) -> None:
    space = ConfigSpace([Knob(f"knob{i}", tuple(range(radix))) for i, radix in enumerate(radices)])
    vector = space.vector(data.draw(st.integers(0, space.size - 1)))
    found = set(space.neighbours(vector))
    every = [space.vector(index) for index in range(space.size)]
    assert found == {row for row in every if sum(abs(a - b) for a, b in zip(row, vector, strict=True)) == 1}


def test_features_hold_logarithms_of_factors() -> None:
    space = ConfigSpace([Knob.split("tile", 8, 2), Knob("unroll", (0, 16)), Knob("order", ("a", "b"))])
    choices = [space.values(space.vector(index)) for index in range(space.size)]
    features = space.features(np.array([space.vector(index) for index in range(space.size)]))
    for row, choice in zip(features, choices, strict=True):
        np.testing.assert_allclose(row, [*np.log2(choice["tile"]), choice["unroll"], "ab".index(choice["order"])])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ConfigSpace([]), "nothing to tune"),
        (lambda: Knob("tile", ()), "'tile' has no choices"),
        (lambda: ConfigSpace([Knob("a", (1,)), Knob("a", (2,))]), "different names"),
        (lambda: _vgg_first_layer().vector(202_309_632), "202309631"),
        (lambda: _vgg_first_layer().check([0]), "8 entries"),
        (lambda: _vgg_first_layer().index([0, 224, 0, 0, 0, 0, 0, 0]), "'tile_y'"),
        (lambda: ConfigSpace([Knob("a", (1,))], default=[1]), "'a'"),
    ],
)
def test_errors_name_the_place(make: object, words: str) -> None:
    with pytest.raises(TuningError, match=words):
        make()  # type: ignore[operator]


@given(space=small_spaces(), seed=st.integers(0, 2**16))
def test_changes_are_those_within_one_knob(space: ConfigSpace, seed: int) -> None:
    vectors = space.random(np.random.default_rng(seed), 3)
    every = [space.vector(index) for index in range(space.size)]
    near = {row for row in every if ((np.array(row) != vectors).sum(axis=1) <= 1).any()}
    assert {tuple(row) for row in space.changes(vectors).tolist()} == near
