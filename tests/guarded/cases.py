"""Graphs for guarded runs, drawn from a seed: one family an operator, extents next to those that vectors divide."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx

from tests.schedules.kernels import graph

EXTENTS = (1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 65, 127, 129)
SMALL = (1, 2, 3, 5, 7, 9, 15, 17, 31, 33)
FLOATS = ("float32", "float32", "float32", "float16", "float64")
INTEGERS = ("int8", "uint8", "int16", "int32", "int64")

TARGETS = {
    level: tvm.target.Target({"kind": "llvm", "mcpu": level, "num-cores": 2})
    for level in ("x86-64-v2", "haswell", "skylake-avx512")
}


@dataclass(frozen=True)
class Sample:
    """A graph and inputs for it.

    Attributes
    ----------
    build : callable
        Gets the input variables and returns the result, as nested calls of Relax operators.
    inputs : sequence of numpy.ndarray
    expected : callable, optional
        Computes the result from the inputs with NumPy.
    tolerance : float
        Relative to the largest expected value.
    open_axes : sequence of tuple of (int, str)
        For each input, the axes that the compiled module leaves open, with their names; of no input by default.
    """

    build: Callable[..., Any]
    inputs: Sequence[np.ndarray]
    expected: Callable[..., Any] | None = None
    tolerance: float = 1e-4
    open_axes: Sequence[Sequence[tuple[int, str]]] = ()

    def module(self) -> tvm.IRModule:
        """Make the Relax module."""
        variables: dict[str, Any] = {}
        specs = []
        for number, array in enumerate(self.inputs):
            shape: list[Any] = list(array.shape)
            for axis, name in self.open_axes[number] if self.open_axes else ():
                shape[axis] = variables.setdefault(name, tirx.Var(name, "int64"))
            specs.append((shape, str(array.dtype)))
        return graph(lambda builder, *inputs: builder.emit(self.build(*inputs)), specs)


class Draw:
    """Random choices of one sample."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)

    def one(self, choices: Sequence[Any]) -> Any:
        """Draw one of some choices."""
        return choices[int(self.random.integers(len(choices)))]

    def shape(self, rank: int, limit: int = 40_000) -> tuple[int, ...]:
        """Draw a shape of at most ``limit`` elements."""
        while True:
            shape = tuple(int(self.one(EXTENTS)) for _ in range(rank))
            if np.prod(shape) <= limit:
                return shape

    def array(self, shape: Sequence[int], dtype: str = "float32") -> np.ndarray:
        """Draw values; of integers, small ones."""
        if dtype == "bool":
            return self.random.random(tuple(shape)) < 0.5
        if "float" in dtype:
            return self.random.standard_normal(tuple(shape)).astype(dtype)
        low = 0 if dtype.startswith("u") else -9
        return self.random.integers(low, 10, tuple(shape)).astype(dtype)

    def indices(self, shape: Sequence[int], extent: int, dtype: str = "") -> np.ndarray:
        """Draw indices of an axis of ``extent`` elements."""
        return self.random.integers(0, extent, tuple(shape)).astype(dtype or self.one(("int32", "int64")))


_Family = Callable[[Draw], Sample]
FAMILIES: dict[str, _Family] = {}
"""Every family by its name."""


def family(function: _Family) -> _Family:
    """Enter a family under the name of its function."""
    FAMILIES[function.__name__] = function
    return function


def draw(name: str, seed: int) -> Sample:
    """Draw a sample of a family; the same for the same seed."""
    return FAMILIES[name](Draw(seed))


def constant(array: np.ndarray) -> relax.Constant:
    """Make a constant of a graph."""
    return relax.const(array, str(array.dtype))


# The families enter themselves when their modules are imported.
from tests.guarded import elementwise, indexing, open_extents, products, reductions, windows  # noqa: E402, F401
