"""One case: an operator or a few, in ONNX's textual syntax, and how its arrays are drawn."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx
import onnx.parser
import onnx.shape_inference
from onnx import helper, numpy_helper

Draw = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]
"""Draws the values of an array of some shape; they are cast to the type that the text says."""

SEED = 0


def small(generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Draw from a normal distribution with a deviation of 0.1."""
    return generator.standard_normal(shape) * 0.1


def positive(generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Draw numbers of 1 and more."""
    return np.abs(small(generator, shape)) + 1


def wide(generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Draw from a normal distribution with a deviation of 2, which reaches both ends of an activation."""
    return generator.standard_normal(shape) * 2


def between(least: int, end: int) -> Draw:
    """Make what draws integers from ``least``, below ``end``."""

    def draw(generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        return generator.integers(least, end, shape)

    return draw


def below(end: int) -> Draw:
    """Make what draws integers from 0, below ``end``."""
    return between(0, end)


def distinct(end: int) -> Draw:
    """Make what draws integers from 0, below ``end``, none of them twice."""

    def draw(generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        return generator.permutation(end)[: int(np.prod(shape))].reshape(shape)

    return draw


@dataclass(frozen=True)
class Case:
    """One case.

    Attributes
    ----------
    name : str
        Unique among all cases.
    text : str
        A graph in ONNX's textual syntax, without its name. What stands between angle brackets without values is a
        weight, and is drawn as the inputs are.
    draws : mapping of str to callable
        How inputs and weights are drawn. By default floats are :func:`small`, and integers of 8 bits any.
    opset : int
        Version of ONNX's operators.
    """

    name: str
    text: str
    draws: Mapping[str, Draw] = field(default_factory=dict)
    opset: int = 17

    def build(self) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
        """Make the model, with the types of its outputs, and its inputs; the same whenever it is called.

        Raises
        ------
        ValueError
            If a draw is of a name that the text does not have, or an integer has none.
        """
        head = f'<ir_version: 9, opset_import: ["" : {self.opset}]>'
        model = onnx.parser.parse_model(f"{head} {self.name} {self.text}")
        graph = model.graph
        generator = np.random.default_rng([SEED, zlib.crc32(self.name.encode())])
        inputs = {value.name: self._array(value, generator) for value in graph.input}
        weights = {value.name: self._array(value, generator) for value in graph.value_info}
        if unknown := set(self.draws) - {*inputs, *weights}:
            raise ValueError(f"{self.name}: the text has no {', '.join(sorted(unknown))}")
        graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in weights.items())
        del graph.value_info[:]
        return onnx.shape_inference.infer_shapes(model, data_prop=True), inputs

    def _array(self, value: onnx.ValueInfoProto, generator: np.random.Generator) -> np.ndarray:
        tensor = value.type.tensor_type
        shape = tuple(dimension.dim_value for dimension in tensor.shape.dim)
        dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        draw = self.draws.get(value.name)
        if draw is None and dtype.itemsize == 1 and dtype.kind in "iu":
            limits = np.iinfo(dtype)
            draw = between(int(limits.min), int(limits.max) + 1)
        elif draw is None and dtype.kind == "f":
            draw = small
        if draw is None:
            raise ValueError(f"{self.name}: say how {value.name} ({dtype}) is drawn")
        return np.asarray(draw(generator, shape)).astype(dtype)
