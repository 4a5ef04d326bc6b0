from __future__ import annotations

from itertools import combinations
from math import prod

import numpy as np

from tests.tuners.spaces import convolution_space
from tvm_ext.tuners.space import ConfigSpace, Knob
from tvm_ext.tuners.tile_features import tile_projection


def _log2(values: list[list[int]]) -> set[tuple[float, ...]]:
    return {tuple(np.log2(np.array(row, dtype=np.float32)).round(3).tolist()) for row in values}


def test_columns_are_volumes_of_tiles() -> None:
    """Against products of the factors themselves, for three splits in three, three in two and two other knobs."""
    space, rng = convolution_space(), np.random.default_rng(0)
    vectors = space.random(rng, 40)
    matrix = tile_projection(space)
    seen = space.features(vectors) @ matrix
    np.testing.assert_array_equal(seen[:, : len(matrix)], space.features(vectors))
    rows = [list(space.values(vector).values()) for vector in vectors.tolist()]
    found = {tuple(column) for column in seen[:, len(matrix) :].round(3).T.tolist()}

    expected: list[list[int]] = []
    for loops, splits in ((3, (0, 1, 2)), (2, (3, 4, 5))):
        some = [pick for number in (1, 2, 3) for pick in combinations(splits, number)]
        for pick in some:
            for level in range(1, loops):
                expected.append([prod(prod(row[knob][level:]) for knob in pick) for row in rows])
            expected.append([prod(row[knob][0] for knob in pick) for row in rows])
    reductions = [prod(row[knob][-1] for knob in (3, 4, 5)) for row in rows]
    for pick in [pick for number in (1, 2, 3) for pick in combinations((0, 1, 2), number)]:
        for level in (1, 2):
            inside = [prod(prod(row[knob][level:]) for knob in pick) for row in rows]
            expected.append([a * b for a, b in zip(inside, reductions, strict=True)])
    # What is a single factor is a feature of the space already.
    single = {tuple(column) for column in space.features(vectors).round(3).T.tolist()}
    assert found - single == _log2(expected) - single


def test_without_splits_nothing_is_added() -> None:
    space = ConfigSpace([Knob("a", (1, 2, 3)), Knob("b", (False, True))])
    np.testing.assert_array_equal(tile_projection(space), np.eye(2))


def test_many_splits_do_not_make_too_many_columns() -> None:
    space = ConfigSpace([Knob.split(f"s{i}", 8, 2) for i in range(12)])
    assert tile_projection(space).shape[1] < 3000
