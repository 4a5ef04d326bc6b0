"""Strassen's algorithm for products with a constant: seven products of quarters in place of eight.

Rows and columns are divided into halves inside small groups, so that what is added lies close together, and the sums of
the constant's quarters are made when a model is compiled.

Source: V. Strassen, "Gaussian Elimination is not Optimal", Numerische Mathematik 13 (1969).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from tvm import te, tirx
from tvm.ir import Expr

from tvm_ext.schedules.annotations import (
    BATCH_AXES_ATTRIBUTE,
    KERNEL_ATTRIBUTE,
    OUT_AXES_ATTRIBUTE,
    TILE_ATTRIBUTE,
    USED_ATTRIBUTE,
)
from tvm_ext.schedules.compute.matmul import MatmulShape, rows_of, store

# Of each of the seven products: the factors of the quarters (11, 12, 21, 22) of the left and of the right operand.
LEFT = ((1, 0, 0, 1), (0, 0, 1, 1), (1, 0, 0, 0), (0, 0, 0, 1), (1, 1, 0, 0), (-1, 0, 1, 0), (0, 1, 0, -1))
RIGHT = ((1, 0, 0, 1), (1, 0, 0, 0), (0, 1, 0, -1), (-1, 0, 1, 0), (0, 0, 0, 1), (1, 1, 0, 0), (0, 0, 1, 1))
# Of each quarter of the result: the factors of the products.
RESULT = ((1, 0, 0, 1, -1, 0, 1), (0, 0, 1, 0, 1, 0, 0), (0, 1, 0, 1, 0, 0, 0), (1, -1, 1, 0, 0, 1, 0))

PRODUCTS = len(LEFT)


def strassen_weight(
    matrix: np.ndarray, vectors: int, lanes: int, empty: Callable[..., np.ndarray] = np.empty
) -> np.ndarray:
    """Make the right operands of the products of a matrix, packed in the order in which they are read.

    Parameters
    ----------
    matrix : np.ndarray
        Shape ``(K, N)``, with ``K`` even. Halves of columns are ``vectors * lanes`` wide; columns of zeros fill up the
        last two.
    empty : callable
        Gives an array of a shape and a type to write to.

    Returns
    -------
    np.ndarray
        Shape ``(groups, 7, vectors, K / 2, lanes)``, with a group for each ``2 * vectors * lanes`` columns; sums are
        rounded once.
    """
    (reduction, columns), width = matrix.shape, 2 * vectors * lanes
    if reduction % 2:
        raise ValueError(f"a matrix of {reduction} x {columns} has no halves of rows")
    half, groups = reduction // 2, -(-columns // width)
    result = empty((groups, PRODUCTS, vectors, half, lanes), matrix.dtype)
    sums = [sorted(np.flatnonzero(factors), key=lambda place: -factors[place]) for factors in map(np.array, RIGHT)]
    # Group by group, as their quarters stay in a core's cache.
    for group in range(groups):
        part = matrix[:, group * width : (group + 1) * width]
        if part.shape[1] < width:
            part = np.pad(part, ((0, 0), (0, width - part.shape[1])))
        part = part.reshape(2, half, 2, vectors, lanes).transpose(0, 2, 3, 1, 4)
        quarters = np.ascontiguousarray(part).reshape(4, vectors, half, lanes)
        for number, (first, *others) in enumerate(sums):
            if not others:
                result[group, number] = quarters[first]
            for place in others:  # one at most
                add = np.add if RIGHT[number][place] > 0 else np.subtract
                add(quarters[first], quarters[place], out=result[group, number])
    return result


def strassen(
    data: te.Tensor,
    weight: te.Tensor,
    data_shape: Sequence[int],
    weight_shape: Sequence[int],
    data_axes: Sequence[int],
    out_axes: Sequence[int],
    sequence: int,
    tile: Sequence[int],
    lanes: int,
) -> te.Tensor:
    """Multiply matrices.

    Parameters
    ----------
    data : te.Tensor
        The left operand in memory; its axis ``data_axes[i]`` is the logical axis ``i`` of ``(..., M, K)``.
    weight : te.Tensor
        As :func:`strassen_weight` makes it of a right operand of ``weight_shape``.
    data_shape, weight_shape : sequence of int
        Logical shapes ``(..., M, K)`` and ``(..., K, N)``.
    out_axes : sequence of int
        Axis ``i`` of the result is the logical axis ``out_axes[i]`` of ``(..., M, N)``.
    sequence : int
        Rows that belong together, as the tokens of a text do. Groups hold rows of one sequence only; rows of zeros fill
        up the last one of each.
    tile : sequence of two int
        Rows and vectors of columns of a register tile, which are those of half a group.
    lanes : int
        Columns of a vector.

    Returns
    -------
    te.Tensor
        The transposed product.
    """
    shape = MatmulShape(tuple(map(int, data_shape)), tuple(map(int, weight_shape)))
    out_axes = [int(axis) for axis in out_axes]
    rows, vectors = map(int, tile)
    groups, column_groups = -(-sequence // (2 * rows)), -(-shape.columns // (2 * vectors * lanes))
    row_groups, half = shape.rows // sequence * groups, shape.reduction // 2
    read = rows_of(data, shape, data_axes, shape.rows, copy=False)

    def element(g: Expr, upper: int, i: Expr, k: Expr) -> Expr:
        if sequence % (2 * rows) == 0:
            return read(0, (g * 2 + upper) * rows + i, k)
        row = (g % groups * 2 + upper) * rows + i
        return tirx.if_then_else(row < sequence, read(0, g // groups * sequence + row, k), tirx.const(0, data.dtype))

    def summed(p: tirx.Var, g: tirx.Var, i: tirx.Var, k: tirx.Var) -> Expr:
        return _combine(LEFT, p, lambda place: element(g, place // 2, i, k + half * (place % 2)))

    left = te.compute(
        (PRODUCTS, row_groups, rows, half), summed, name="left", attrs={KERNEL_ATTRIBUTE: "strassen_left"}
    )
    k = te.reduce_axis((0, half), "k")
    extents = PRODUCTS, row_groups, rows, column_groups, vectors, lanes
    product = te.compute(
        extents,
        lambda p, g, i, c, v, j: te.sum(left[p, g, i, k] * weight[c, p, v, k, j], k),
        name="product",
        attrs={KERNEL_ATTRIBUTE: "strassen_product"},
    )
    kept = te.compute(extents, lambda *index: product[index], name="kept", attrs={KERNEL_ATTRIBUTE: "strassen_kept"})
    result = te.compute(
        (row_groups, 2, rows, column_groups, 2, vectors, lanes),
        lambda g, r, i, c, s, v, j: _combine(RESULT, r * 2 + s, lambda place: kept[place, g, i, c, v, j]),
        name="quarters",
        attrs={
            KERNEL_ATTRIBUTE: "strassen",
            OUT_AXES_ATTRIBUTE: out_axes,
            BATCH_AXES_ATTRIBUTE: shape.batch_axes,
            TILE_ATTRIBUTE: [rows, vectors],
            USED_ATTRIBUTE: [sequence, shape.columns],
        },
    )

    def stored(_batch: Expr, m: Expr, n: Expr) -> Expr:
        if sequence % (2 * rows) == 0:
            row = m // (2 * rows), m // rows % 2, m % rows
        else:
            row = m // sequence * groups + m % sequence // (2 * rows), m % sequence // rows % 2, m % sequence % rows
        return result[*row, n // (2 * vectors * lanes), n // (vectors * lanes) % 2, n // lanes % vectors, n % lanes]

    return store(shape, out_axes, stored)


def _combine(matrix: Sequence[Sequence[int]], row: Expr, element: Callable[[int], Expr]) -> Expr:
    """Give row ``row`` of a matrix of -1, 0 and 1 times a vector; unrolling the loop over rows settles the choice."""
    sums = []
    for factors in matrix:
        places = sorted((place for place, factor in enumerate(factors) if factor), key=lambda place: -factors[place])
        total = element(places[0])
        for place in places[1:]:
            total = total + element(place) if factors[place] > 0 else total - element(place)
        sums.append(total)
    chosen = sums[-1]
    for number in range(len(sums) - 2, -1, -1):
        chosen = tirx.Select(row == number, sums[number], chosen)
    return chosen
