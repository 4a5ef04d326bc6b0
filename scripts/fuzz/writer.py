"""Collects the nodes and constants of an ONNX model that is being written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper


@dataclass
class Writer:
    """Nodes and constants so far.

    Attributes
    ----------
    opset : int
        Version of the operator set the model will be in.
    rng : numpy.random.Generator
        Draws the values of weights and everything else that is left open.
    """

    opset: int
    rng: np.random.Generator
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)

    def node(self, operator: str, inputs: Sequence[str], outputs: str | Sequence[str], **attributes: Any) -> None:
        """Add a node; attributes that are None are left out."""
        outputs = [outputs] if isinstance(outputs, str) else list(outputs)
        kept = {name: value for name, value in attributes.items() if value is not None}
        name = f"n{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), outputs, name=name, **kept))

    def value(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """Add a node with one output, and give the name of that."""
        name = f"t{len(self.nodes)}"
        self.node(operator, inputs, name, **attributes)
        return name

    def constant(self, array: np.ndarray | Sequence[int] | float, dtype: str | None = None) -> str:
        """Add a constant and give its name; lists are int64 by default."""
        name = f"c{len(self.constants)}"
        default = "int64" if isinstance(array, list | tuple) else None
        self.constants.append(numpy_helper.from_array(np.asarray(array, dtype=dtype or default), name))
        return name

    def weight(self, *shape: int, scale: float | None = None, dtype: str = "float32") -> str:
        """Add a normally distributed constant; by default what it weighs keeps about its size."""
        fan = float(np.prod(shape[1:])) or 1.0
        deviation = scale if scale is not None else 1.0 / np.sqrt(fan)
        return self.constant((self.rng.standard_normal(shape) * deviation).astype(dtype))

    def chance(self, probability: float) -> bool:
        """Draw whether something happens."""
        return bool(self.rng.random() < probability)

    def choose(self, candidates: Sequence[Any]) -> Any:
        """Draw one of the candidates."""
        return candidates[int(self.rng.integers(len(candidates)))]
