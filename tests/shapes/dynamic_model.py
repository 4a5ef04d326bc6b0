"""How tests make an ONNX model with open dimensions: what it is open in, and what to feed it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Sizes = Mapping[str, int]
Feeds = dict[str, np.ndarray]
node = helper.make_node


@dataclass(frozen=True)
class DynamicModel:
    """One model.

    Attributes
    ----------
    name : str
    model : onnx.ModelProto
    limits : mapping from str to (int, int)
        The range of each open dimension.
    shapes : mapping from str to sequence of int or str
        Of the inputs.
    whole : mapping from str to int
        Inputs that are integers, and what they stay below.
    step : mapping from str to int
        Sizes are multiples of these, 1 where nothing is said.
    """

    name: str
    model: onnx.ModelProto
    limits: Mapping[str, tuple[int, int]]
    shapes: Mapping[str, Sequence[int | str]]
    whole: Mapping[str, int]
    step: Mapping[str, int]

    @property
    def dynamic(self) -> str:
        """As the command line takes it."""
        return ",".join(f"{name}={low}..{high}" for name, (low, high) in self.limits.items())

    def sizes(self, count: int, seed: int = 0) -> list[dict[str, int]]:
        """Draw sizes, the ends of the ranges among them."""
        rng = np.random.default_rng(seed)
        drawn = [{name: ends[place] for name, ends in self.limits.items()} for place in (0, 1)]
        while len(drawn) < count:
            drawn.append({name: int(rng.integers(low, high + 1)) for name, (low, high) in self.limits.items()})
        for sizes in drawn:
            for name, step in self.step.items():
                sizes[name] = max(sizes[name] // step, -(-self.limits[name][0] // step)) * step
        return drawn[:count]

    def feeds(self, sizes: Sizes, seed: int = 0) -> Feeds:
        """Draw inputs."""
        rng = np.random.default_rng(seed)
        found: Feeds = {}
        for name, shape in self.shapes.items():
            extents = [sizes[dim] if isinstance(dim, str) else dim for dim in shape]
            if name in self.whole:
                found[name] = rng.integers(0, self.whole[name], extents, "int64")
            else:
                found[name] = rng.standard_normal(extents).astype("float32")
        return found


def weights(**shapes: Sequence[int]) -> list[onnx.TensorProto]:
    """Draw constants of the shapes given, by name."""
    rng = np.random.default_rng(sum(map(ord, "".join(shapes))))
    return [
        numpy_helper.from_array(
            (rng.standard_normal(shape) / np.sqrt(max(1, int(np.prod(shape[1:]))))).astype("float32"), name
        )
        for name, shape in shapes.items()
    ]


def integers(**values: Any) -> list[onnx.TensorProto]:
    """Make constants of integers, by name."""
    return [numpy_helper.from_array(np.asarray(value, "int64"), name) for name, value in values.items()]


def make(
    name: str,
    nodes: Sequence[onnx.NodeProto],
    shapes: Mapping[str, Sequence[int | str]],
    limits: Mapping[str, tuple[int, int]],
    constants: Sequence[onnx.TensorProto] = (),
    outputs: Sequence[str] = ("y",),
    whole: Mapping[str, int] | None = None,
    step: Mapping[str, int] | None = None,
    kinds: Mapping[str, int] | None = None,
) -> DynamicModel:
    """Make a model of nodes; outputs are float tensors unless ``kinds`` says otherwise."""
    whole = whole or {}
    inputs = [
        helper.make_tensor_value_info(key, TensorProto.INT64 if key in whole else TensorProto.FLOAT, list(shape))
        for key, shape in shapes.items()
    ]
    made = [helper.make_tensor_value_info(key, (kinds or {}).get(key, TensorProto.FLOAT), None) for key in outputs]
    graph = helper.make_graph(list(nodes), name, inputs, made, list(constants))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return DynamicModel(name, model, limits, shapes, whole, step or {})
