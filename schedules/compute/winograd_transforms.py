"""The matrices of Winograd's minimal filtering for 3 taps, and filters transformed by them.

Source: A. Lavin and S. Gray, "Fast Algorithms for Convolutional Neural Networks", CVPR 2016, section 4.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import cache
from itertools import product

import numpy as np
from tvm import tirx
from tvm.ir import Expr

KERNEL = 3
"""Taps of the filters along an axis."""

# Interpolation points beside infinity, for outputs of a tile along an axis. Among points that float32 holds exactly,
# these round best. With 2 and 4 outputs the errors of whole networks are those of direct convolutions; with 6 they are
# seven times as large (four times those of 4), so that no heuristic chooses them: a search may.
POINTS = {
    2: (Fraction(0), Fraction(1), Fraction(-1)),
    4: (Fraction(0), Fraction(5, 8), Fraction(-5, 8), Fraction(3, 2), Fraction(-3, 2)),
    6: (Fraction(0), Fraction(1), Fraction(-1), Fraction(2), Fraction(-2), Fraction(1, 2), Fraction(-1, 2)),
}

Matrix = tuple[tuple[Fraction, ...], ...]


def _matrix(*rows: str) -> Matrix:
    return tuple(tuple(map(Fraction, row.split())) for row in rows)


# Four outputs by seven products, one more than needed: the polynomials are taken at 0, 1, -1, infinity and modulo
# x^2 + 1, whose product of two parts takes three (Karatsuba). All points have absolute value 1 or none, so that nothing
# is large that cancels: operands rounded to bfloat16 round 1.2 to 2 times as much as in a direct convolution, where
# those of six products round 3 to 5 times as much.
# Source: B. Barabasz and D. Gregg, "Winograd convolution for DNNs: beyond linear polynomials", AI*IA 2019.
STEADY_OUTPUTS = 4
_STEADY = (
    _matrix("1 1 1 1 1 0 0", "0 1 -1 1/2 -1/2 1 0", "0 1 1 -1 -1 0 0", "0 1 -1 -1/2 1/2 -1 1"),
    _matrix("1 0 0", "1/4 1/4 1/4", "1/4 -1/4 1/4", "1/4 1/8 -1/4", "1/4 -1/8 -1/4", "0 5/8 0", "0 0 1"),
    _matrix(
        "1 0 0 0 -1 0", "0 1 1 1 1 0", "0 -1 1 -1 1 0", "0 2 -1 -2 1 0", "0 -2 -1 2 1 0", "0 0 1 0 -1 0",
        "0 -1 0 0 0 1",
    ),
)  # fmt: skip


@cache
def transforms(outputs: int, steady: bool = False) -> tuple[Matrix, Matrix, Matrix]:
    """Give the matrices of ``outputs`` filtered values: ``y = A ((G g) * (B d))``.

    Parameters
    ----------
    outputs : int
        Values along an axis; with ``steady`` :data:`STEADY_OUTPUTS`.
    steady : bool
        Whether operands are to be rounded to few bits before they are multiplied: a product more keeps errors small.

    Returns
    -------
    tuple of matrices of fractions
        ``A`` of ``outputs x p``, ``G`` of ``p x 3``, ``B`` of ``p x n``, with ``n = outputs + 2``, and ``p = n``
        products or, ``steady``, ``n + 1``.
    """
    if steady:
        if outputs != STEADY_OUTPUTS:
            raise ValueError(f"there are matrices for operands of few bits of {STEADY_OUTPUTS} outputs, not {outputs}")
        return _STEADY
    points = POINTS[outputs]
    size = outputs + KERNEL - 1

    def expanded(factors: Sequence[Fraction]) -> list[Fraction]:
        """Coefficients of the polynomial with these roots, lowest first, filled up to ``size``."""
        coefficients = [Fraction(1)]
        for root in factors:
            shifted = [Fraction(0), *coefficients]
            coefficients = [high - root * low for high, low in zip(shifted, [*coefficients, Fraction(0)], strict=True)]
        return coefficients + [Fraction(0)] * (size - len(coefficients))

    back, weight, data = [], [], []
    for index, point in enumerate(points):
        others = points[:index] + points[index + 1 :]
        scale = Fraction(1)
        for other in others:
            scale *= point - other
        back.append([point**power for power in range(outputs)])
        weight.append([point**power / scale for power in range(KERNEL)])
        data.append(expanded(others))
    back.append([Fraction(power == outputs - 1) for power in range(outputs)])
    weight.append([Fraction(power == KERNEL - 1) for power in range(KERNEL)])
    data.append(expanded(points))
    return (
        tuple(tuple(column[row] for column in back) for row in range(outputs)),
        tuple(map(tuple, weight)),
        tuple(map(tuple, data)),
    )


FILTERS_AT_ONCE = 1 << 13
"""That are transformed together: their taps, in double precision, stay in a core's cache."""


def transform_weight(weight: np.ndarray, outputs: int, steady: bool = False) -> np.ndarray:
    """Transform filters ``(O, I, [KD,] 3, 3)`` to matrices ``(p * p, KD * I, O)``, one for each product of a tile.

    The products are added in the order of the taps, so that every machine gets the same weights.
    """
    _, matrix, _ = transforms(outputs, steady)
    deep = weight.reshape(*weight.shape[:2], -1, KERNEL * KERNEL)
    taps = np.ascontiguousarray(deep.transpose(3, 2, 1, 0)).reshape(KERNEL * KERNEL, -1)
    result = np.empty((len(matrix) ** 2, taps.shape[1]), weight.dtype)
    for start in range(0, taps.shape[1], FILTERS_AT_ONCE):
        part = slice(start, start + FILTERS_AT_ONCE)
        wide = taps[:, part].astype("float64")
        for position, (row, column) in enumerate(product(matrix, matrix)):
            total = np.zeros(wide.shape[1])
            for tap, (vertical, horizontal) in enumerate(product(row, column)):
                if vertical and horizontal:
                    total += wide[tap] * float(vertical) * float(horizontal)
            result[position, part] = total
    return result.reshape(len(result), -1, weight.shape[0])


def weighted_sum(coefficients: Sequence[Fraction], element: Callable[[int], Expr]) -> Expr:
    """Give the sum of elements times coefficients, in float32; those of zero are left out."""
    signed = [(coefficient, element(index)) for index, coefficient in enumerate(coefficients) if coefficient]
    # A sum that begins with what is added has no sign to change.
    first = next((number for number, (coefficient, _) in enumerate(signed) if coefficient > 0), 0)
    total: Expr | None = None
    for coefficient, value in (signed[first], *signed[:first], *signed[first + 1 :]):
        size = abs(coefficient) if total is not None else coefficient
        if size != 1:
            value = value * tirx.const(float(size), "float32")
        if total is None:
            total = value
        else:
            total = total + value if coefficient > 0 else total - value
    assert total is not None
    return total


def combine(matrix: Matrix, row: Expr, element: Callable[[int], Expr]) -> Expr:
    """Give row ``row`` of a matrix times a vector; a choice among sums, which unrolling the loop over rows settles.

    Points come in pairs of both signs, so that sums have parts in common. They are written alike, so that the compiler
    computes them once.
    """
    elements = [element(index) for index in range(len(matrix[0]))]
    sums = _by_halves(matrix, elements) or _by_pairs(matrix, elements)
    chosen = sums[-1]
    for number in range(len(sums) - 2, -1, -1):
        chosen = tirx.Select(row == number, sums[number], chosen)
    return chosen


def _by_halves(matrix: Matrix, elements: Sequence[Expr]) -> list[Expr]:
    """Give the sums of all rows, two that differ in the sign of every other element as ``a + b`` and ``a - b``.

    Nothing where there are no such rows.
    """
    sums: dict[int, Expr] = {}
    for first, row in enumerate(matrix[:-1]):
        turned = tuple(-value if index % 2 else value for index, value in enumerate(matrix[first + 1]))
        if first not in sums and row == turned != matrix[first + 1]:
            even, odd = (
                weighted_sum([value * (index % 2 == rest) for index, value in enumerate(row)], elements.__getitem__)
                for rest in (0, 1)
            )
            sums[first], sums[first + 1] = even + odd, even - odd
    rest = {index: weighted_sum(row, elements.__getitem__) for index, row in enumerate(matrix) if index not in sums}
    return [(sums | rest)[index] for index in range(len(matrix))] if sums else []


def _by_pairs(matrix: Matrix, elements: Sequence[Expr]) -> list[Expr]:
    """Give the sums of all rows, two elements whose coefficients differ in sign at most as their sum or difference."""
    columns = list(zip(*matrix, strict=True))
    pairs = []
    for first in range(len(columns) - 1):
        if all(abs(one) == abs(other) for one, other in zip(columns[first], columns[first + 1], strict=True)):
            pairs.append(first)
    sums = []
    for row in matrix:
        coefficients, values, index = [], [], 0
        while index < len(row):
            value = elements[index]
            coefficients.append(row[index])
            if index in pairs:
                value = value + elements[index + 1] if row[index] == row[index + 1] else value - elements[index + 1]
                index += 1
            values.append(value)
            index += 1
        sums.append(weighted_sum(coefficients, values.__getitem__))
    return sums
