"""Lets neighbouring outputs read one window: their taps are shifted instead, in weights that are constant.

``out[.., w] = sum_k data[.., s*w + d*k] * weights[.., k]`` becomes, with ``w = t*v + p``,
``out[.., t*v + p] = sum_m data[.., s*t*v + g*m] * shifted[p, .., m]``, where ``g = gcd(s, d)`` and
``shifted[p, .., m] = weights[.., k]`` if ``g*m = s*p + d*k`` and 0 otherwise. Where an instruction sums over more than
the window has, less is stored: lanes that would be zeros are the taps of the next outputs. It is an operator as any
other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd

import numpy as np
from numpy.typing import NDArray

from tvm_ext.embedding.dataflow import Access, Axis, Dataflow
from tvm_ext.errors import EmbeddingError


@dataclass(frozen=True)
class SharedWindow:
    """An operator whose outputs share windows.

    Attributes
    ----------
    operator : Dataflow
    factor : int
        Which factor (0, 1) has the taps.
    dimension : int
        Of that factor: along the window.
    places : tuple of tuple of int
        For each of the outputs that share a window, where its taps are in it.
    extent : int
        Of a window.
    """

    operator: Dataflow
    factor: int
    dimension: int
    places: tuple[tuple[int, ...], ...]
    extent: int

    def shifted(self, weights: NDArray) -> NDArray:
        """Shift the taps of the factor that has them: a new first dimension is the output of those that share."""
        shape = list(weights.shape)
        shape[self.dimension] = self.extent
        found = np.zeros((len(self.places), *shape), weights.dtype)
        along = np.moveaxis(found, self.dimension + 1, -1)
        for output, places in enumerate(self.places):
            along[output][..., list(places)] = np.moveaxis(weights, self.dimension, -1)
        return found


def share_window(operator: Dataflow, axis: str, turns: int) -> SharedWindow:
    """Let so many neighbours along an axis of the result read one window.

    Parameters
    ----------
    operator : Dataflow
    axis : str
        Moves along a dimension of one factor together with one axis that is summed over.
    turns : int
        At least 2. What lies beyond the end of the axis is computed, and left out.

    Raises
    ------
    EmbeddingError
        If there is no such axis, it slides along no window, or the taps are not a dimension of the other factor.
    """
    if turns < 2:
        raise EmbeddingError(f"{turns} outputs of {operator.name} cannot share a window; expected 2 or more")
    if axis not in (names := [it.name for it in operator.axes]):
        raise EmbeddingError(f"{operator.name} has no axis {axis!r}; it has {', '.join(names)}")
    slide = operator.number(axis)
    data = next((at for at, access in enumerate(operator.inputs) if access.uses(slide)), 0)
    rows = [row for row in operator.inputs[data].index if row[slide]]
    taps = [at for at, step in enumerate(rows[0]) if step and at != slide] if len(rows) == 1 else []
    weights = operator.inputs[1 - data]
    along = [at for at, row in enumerate(weights.index) if len(taps) == 1 and row[taps[0]]]
    alone = len(along) == 1 and sum(map(bool, weights.index[along[0]])) == 1 and weights.index[along[0]][taps[0]] == 1
    if not alone or weights.uses(slide) or not operator.axes[taps[0]].reduces or weights.offset[along[0]]:
        raise EmbeddingError(
            f"{operator.name}: axis {axis} slides along no window whose taps are a dimension of a factor"
        )
    (tap,), step, between = taps, rows[0][slide], rows[0][taps[0]]
    if step < 1 or between < 1 or operator.output.column(slide).count(0) != len(operator.output.shape) - 1:
        raise EmbeddingError(f"{operator.name}: axis {axis} runs backwards, or along several dimensions of the result")
    unit, length = gcd(step, between), operator.axes[tap].extent
    places = tuple(tuple((output * step + at * between) // unit for at in range(length)) for output in range(turns))
    extent = places[-1][-1] + 1
    axes = list(operator.axes)
    axes[slide] = Axis(axis, -(-axes[slide].extent // turns), False)
    axes[tap] = Axis(axes[tap].name, extent, True)
    axes.append(Axis(f"{axis}_part", turns, False))

    def access(number: int) -> Access:
        old = operator.operands[number]
        index = [[*row, 0] for row in old.index]
        for row in index:
            if number == 2:
                row[-1] = row[slide]
            row[slide] *= turns
            if number == data and row[tap]:
                row[tap] = unit
        if number != 1 - data:
            return replace(old, index=tuple(map(tuple, index)))
        shape = [extent if at == along[0] else it for at, it in enumerate(old.shape)]
        first = [0] * len(operator.axes) + [1]
        return Access(old.tensor, old.dtype, (turns, *shape), (tuple(first), *map(tuple, index)), (0, *old.offset))

    left, right, result = (access(number) for number in range(3))
    return SharedWindow(Dataflow(operator.name, tuple(axes), result, (left, right)), 1 - data, along[0], places, extent)
