"""Features of tiles: what the factors of several splits make together."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import numpy as np

from tvm_ext.tuners.space import ConfigSpace

MOST_SPLITS = 4
"""Tiles of so many loops at most are looked at, beside those of all loops."""


def tile_projection(space: ConfigSpace) -> np.ndarray:
    """Give the matrix (features of the space × features) that turns logarithms of factors into those of products.

    The first columns are the features of the space themselves. Splits into equally many loops are nested alike: each
    further column is the logarithm of a tile's volume at one level, the product of what lies within that level for some
    of these splits. A volume of the splits into most loops is also multiplied with the innermost factors of all others,
    which are a kernel's reductions.

    References
    ----------
    Chen et al., "Learning to Optimize Tensor Programs", NeurIPS 2018, section 3.1: trees there see the memory that each
    loop level touches. Here the products that such sizes are made of are enough.
    """
    starts: dict[int, list[int]] = {}
    width = 0
    for rows in space.choice_features:
        if rows.shape[1] > 1:
            starts.setdefault(rows.shape[1], []).append(width)
        width += rows.shape[1]
    products = [columns for loops, first in starts.items() for columns in _volumes(loops, first, from_level=0)]
    if len(starts) > 1:
        most = max(starts)
        innermost = tuple(first + loops - 1 for loops, rows in starts.items() if loops < most for first in rows)
        products += [columns + innermost for columns in _volumes(most, starts[most], from_level=1)]
    matrix = np.eye(width, dtype=np.float32)
    if products:
        sums = np.zeros((width, len(products)), dtype=np.float32)
        for column, rows_of_it in enumerate(products):
            sums[list(rows_of_it), column] = 1.0
        matrix = np.concatenate([matrix, np.unique(sums[:, sums.sum(axis=0) > 1], axis=1)], axis=1)
    return np.ascontiguousarray(matrix)


def _volumes(loops: int, starts: list[int], from_level: int) -> Iterator[tuple[int, ...]]:
    """Columns of the factors of each tile: of level 0 the outermost factors, of others what lies within the level."""
    for level in range(from_level, loops):
        inside = [tuple(range(first + level, first + loops)) if level else (first,) for first in starts]
        for number in {*range(1, min(len(inside), MOST_SPLITS) + 1), len(inside)}:
            for some in combinations(inside, number):
                yield tuple(column for columns in some for column in columns)
