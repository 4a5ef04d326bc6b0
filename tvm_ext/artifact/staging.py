"""Which shapes of inputs a model was found to take, so that the next ones like them need not be checked again.

What is checked of arrays is their names, types, shapes, and the values of integers that stand for places. All but the
last depends on a few numbers only, which a program that runs a model again and again hardly ever changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

import numpy as np

from tvm_ext.inputs import check_values, numpy_dtype
from tvm_ext.tensor_spec import TensorSpec

_SHAPE = attrgetter("shape")

Shapes = tuple[tuple[int, ...], ...]

MOST_SHAPES = 1024
"""Sets of shapes that are remembered; all are forgotten when there are more."""


class Staging:
    """Remembers which shapes the inputs of one model had in runs that went well.

    Parameters
    ----------
    specs : sequence of TensorSpec
        The declared inputs.
    """

    def __init__(self, specs: Sequence[TensorSpec]) -> None:
        self._specs = tuple(specs)
        self._names = tuple(spec.name for spec in specs)
        self._name_set = frozenset(self._names)
        self._dtypes = tuple(map(_dtype, specs))
        self._limited = tuple((number, spec) for number, spec in enumerate(specs) if spec.limits is not None)
        self._seen: dict[Shapes, Shapes] = {}

    def known(self, given: Mapping[str, Any] | Sequence[Any]) -> tuple[list[np.ndarray], Shapes] | None:
        """Give the arrays in the order of the inputs, and their shapes; None where they have to be checked in full.

        The tuple of shapes is the same object each time.

        Raises
        ------
        InputError
            If an index is out of range.
        """
        arrays = self._plain(given)
        if arrays is None:
            return None
        shapes = self._seen.get(tuple(map(_SHAPE, arrays)))
        if shapes is None:
            return None
        for number, spec in self._limited:
            check_values(spec, arrays[number])
        return arrays, shapes

    def remember(self, given: Mapping[str, Any] | Sequence[Any]) -> None:
        """Remember the shapes of inputs that were checked, and that the model took."""
        arrays = self._plain(given)
        if arrays is not None:
            if len(self._seen) >= MOST_SHAPES:
                self._seen.clear()
            shapes = tuple(map(_SHAPE, arrays))
            self._seen[shapes] = shapes

    def _plain(self, given: Mapping[str, Any] | Sequence[Any]) -> list[np.ndarray] | None:
        """Give the arrays where all are NumPy's own (no subclass), contiguous and of the type that is declared."""
        if type(given) is dict and given.keys() == self._name_set:
            arrays = list(map(given.__getitem__, self._names))
        elif isinstance(given, list | tuple) and len(given) == len(self._names):
            arrays = list(given)
        else:
            return None
        number = 0
        for array in arrays:
            if type(array) is not np.ndarray or not array.flags.c_contiguous:
                return None
            dtype = self._dtypes[number]
            if array.dtype is not dtype and (dtype is None or array.dtype != dtype):
                return None  # a type of another byte order is not equal
            number += 1
        return arrays


def _dtype(spec: TensorSpec) -> np.dtype | None:
    try:
        return numpy_dtype(spec.dtype)
    except TypeError:
        return None
