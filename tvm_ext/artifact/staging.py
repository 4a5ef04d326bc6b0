"""Which shapes of inputs a model was found to take, so that the next ones like them need not be checked again.

What is checked of arrays is their names, types, shapes, and the values of integers that stand for places. All but the
last depends on a few numbers only, which a program that runs a model again and again hardly ever changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tvm_ext.inputs import check_values, numpy_dtype
from tvm_ext.tensor_spec import TensorSpec

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
        self._seen: set[tuple[tuple[int, ...], ...]] = set()

    def known(self, given: Mapping[str, Any] | Sequence[Any]) -> list[np.ndarray] | None:
        """Give the arrays in the order of the inputs; None where they have to be checked in full.

        Raises
        ------
        InputError
            If an index is out of range.
        """
        arrays = self._plain(given)
        if arrays is None or tuple([array.shape for array in arrays]) not in self._seen:
            return None
        for number, spec in self._limited:
            check_values(spec, arrays[number])
        return arrays

    def remember(self, given: Mapping[str, Any] | Sequence[Any]) -> None:
        """Remember the shapes of inputs that were checked, and that the model took."""
        arrays = self._plain(given)
        if arrays is not None:
            if len(self._seen) >= MOST_SHAPES:
                self._seen.clear()
            self._seen.add(tuple([array.shape for array in arrays]))

    def _plain(self, given: Mapping[str, Any] | Sequence[Any]) -> list[np.ndarray] | None:
        """Give the arrays where all are NumPy's own (no subclass), contiguous and of the type that is declared."""
        if type(given) is dict and given.keys() == self._name_set:
            arrays: list[Any] = [given[name] for name in self._names]
        elif isinstance(given, list | tuple) and len(given) == len(self._names):
            arrays = list(given)
        else:
            return None
        for array, dtype in zip(arrays, self._dtypes, strict=True):
            # A type of another byte order is not equal.
            if type(array) is not np.ndarray or dtype is None or array.dtype != dtype or not array.flags.c_contiguous:
                return None
        return arrays


def _dtype(spec: TensorSpec) -> np.dtype | None:
    try:
        return numpy_dtype(spec.dtype)
    except TypeError:
        return None
