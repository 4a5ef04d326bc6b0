"""Winograd's minimal filtering F(2 x 2, 3 x 3) for GPUs: what is around the sixteen products of matrices.

A tile of 2 x 2 results takes 16 multiplications for each pair of channels in place of 36. With these transforms an
element has four terms on the way in and nine on the way back, all of them sums and differences, so that each is a
data-parallel kernel, in which what stands before or behind the convolution is fused.

Source: A. Lavin and S. Gray, "Fast Algorithms for Convolutional Neural Networks", CVPR 2016, section 4.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import te, tirx

TILE, SIDE = 2, 4
"""Results of a tile along an axis, and positions of its transform."""

POSITIONS = SIDE * SIDE

_WEIGHT = np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]])


def transform_weight(weight: np.ndarray, last: bool) -> np.ndarray:
    """Transform filters of float64.

    Parameters
    ----------
    weight : array
        ``(O, I, 3, 3)``, or ``(O, 3, 3, I)`` with ``last``.
    last : bool
        Whether channels lie side by side.

    Returns
    -------
    array
        ``(16, O, I)``, or ``(16, I, O)`` with ``last``: the left or the right factor of a product.
    """
    planes = np.moveaxis(weight, -1, 1) if last else weight
    taps = np.einsum("ka,lb,oiab->kloi", _WEIGHT, _WEIGHT, planes.astype("float64"))
    matrices = taps.reshape(POSITIONS, *planes.shape[:2])
    return np.ascontiguousarray(matrices.transpose(0, 2, 1) if last else matrices)


def transformed_input(data: te.Tensor, padding: Sequence[int], out: Sequence[int], last: bool) -> te.Tensor:
    """Cut an input into overlapping tiles and transform them.

    Parameters
    ----------
    data : te.Tensor
        ``(N, C, H, W)``, or ``(N, H, W, C)`` with ``last``.
    padding : sequence of int
        Above and left of the image.
    out : sequence of int
        Rows and columns of the result of the convolution.
    last : bool

    Returns
    -------
    te.Tensor
        ``(16, C, tiles)``, or ``(16, tiles, C)`` with ``last``; tiles of all images one after the other.
    """
    images, channels = int(data.shape[0]), int(data.shape[3 if last else 1])
    height, width = (int(extent) for extent in (data.shape[1:3] if last else data.shape[2:]))
    down, across = tiles(out)
    count = images * down * across
    wide = str(data.dtype)

    def pixel(image: Any, channel: Any, row: Any, column: Any) -> Any:
        inside = tirx.all(row >= 0, row < height, column >= 0, column < width)
        at = (image, row, column, channel) if last else (image, channel, row, column)
        return tirx.if_then_else(inside, data(*at), tirx.const(0, wide))

    def element(position: Any, channel: Any, tile: Any) -> Any:
        image, rest = tirx.floordiv(tile, down * across), tirx.floormod(tile, down * across)
        top = tirx.floordiv(rest, across) * TILE - padding[0]
        left = tirx.floormod(rest, across) * TILE - padding[1]
        (row, next_row, row_sign), (column, next_column, column_sign) = (
            _terms(part, wide) for part in (tirx.floordiv(position, SIDE), tirx.floormod(position, SIDE))
        )

        def along(which: Any) -> Any:
            first = pixel(image, channel, top + which, left + column)
            return first + column_sign * pixel(image, channel, top + which, left + next_column)

        return along(row) + row_sign * along(next_row)

    if last:
        return te.compute((POSITIONS, count, channels), lambda p, t, c: element(p, c, t), name="winograd_input")
    return te.compute((POSITIONS, channels, count), element, name="winograd_input")


def _terms(part: Any, dtype: str) -> tuple[Any, Any, Any]:
    """Give the two values that a row of the transform takes, and the sign of the second: 0 - 2, 1 + 2, 2 - 1, 1 - 3."""
    first = tirx.Select(part == 0, 0, tirx.Select(part == 2, 2, 1))
    second = tirx.Select(part == 3, 3, tirx.Select(part == 2, 1, 2))
    return first, second, tirx.Select(part == 1, tirx.const(1, dtype), tirx.const(-1, dtype))


def transformed_back(products: te.Tensor, shape: Sequence[int], dtype: str, last: bool) -> te.Tensor:
    """Transform products ``(16, O, tiles)``, or ``(16, tiles, O)`` with ``last``, to a result of a shape and type."""
    height, width = shape[1:3] if last else shape[2:]
    down, across = tiles((height, width))

    def element(image: Any, channel: Any, row: Any, column: Any) -> Any:
        tile = (image * down + tirx.floordiv(row, TILE)) * across + tirx.floordiv(column, TILE)
        upper, left = tirx.floormod(row, TILE), tirx.floormod(column, TILE)
        total: Any = None
        for i in range(SIDE - 1):
            for j in range(SIDE - 1):
                position = (upper + i) * SIDE + left + j
                value = products(position, tile, channel) if last else products(position, channel, tile)
                value = _sign(upper, i, products.dtype) * _sign(left, j, products.dtype) * value
                total = value if total is None else total + value
        return total.astype(dtype)

    if last:
        return te.compute(tuple(shape), lambda n, y, x, c: element(n, c, y, x), name="winograd_output")
    return te.compute(tuple(shape), element, name="winograd_output")


def _sign(odd: Any, term: int, dtype: Any) -> Any:
    """Give the sign of a term: the first result of a tile adds three values up, the second takes two from the first."""
    return tirx.Select(tirx.all(odd == 1, term > 0), tirx.const(-1, str(dtype)), tirx.const(1, str(dtype)))


def tiles(out: Sequence[int]) -> tuple[int, int]:
    """Count the tiles along the rows and columns of a result."""
    return -(-int(out[0]) // TILE), -(-int(out[1]) // TILE)
