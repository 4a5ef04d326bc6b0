"""Small quantised ONNX models (QDQ), put together operator by operator."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.cpu import LARGEST_WEIGHT


class QdqGraph:
    """Builds a model whose tensors are quantised and dequantised between operators.

    Parameters
    ----------
    shape : tuple of int
        Of the input ``x``, float32.
    activations : str
        "uint8" or "int8".
    seed : int
        Of weights, scales and zero points.
    """

    def __init__(self, shape: tuple[int, ...], activations: str = "uint8", seed: int = 0) -> None:
        self.shape, self.activations = shape, activations
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.scales: dict[str, np.ndarray] = {}

    def _name(self, stem: str) -> str:
        return f"{stem}_{len(self.nodes)}_{len(self.initializers)}"

    def constant(self, value: Any, stem: str = "c") -> str:
        """Add an initializer."""
        self.initializers.append(numpy_helper.from_array(np.asarray(value), self._name(stem)))
        return self.initializers[-1].name

    def node(self, op: str, *inputs: str, **attributes: Any) -> str:
        """Add a node of one output."""
        output = self._name(op.lower())
        self.nodes.append(helper.make_node(op, list(inputs), [output], name=output, **attributes))
        return output

    def quantized(self, value: str, scale: float | None = None, zero_point: int | None = None) -> str:
        """Quantise and dequantise a tensor; steps are random unless given."""
        limits = np.iinfo(self.activations)
        step = np.float32(self.rng.uniform(0.01, 0.06) if scale is None else scale)
        point = int(self.rng.integers(limits.min, limits.max + 1)) if zero_point is None else zero_point
        steps = [self.constant(step, "scale"), self.constant(np.array(point, self.activations), "zero")]
        integers = self.node("QuantizeLinear", value, *steps)
        result = self.node("DequantizeLinear", integers, *steps)
        self.scales[result] = step
        return result

    def weight(self, shape: tuple[int, ...], axis: int = 0, per_channel: bool = True, zero_point: int = 0) -> str:
        """Add quantised weights."""
        channels = shape[axis] if per_channel else 1
        scale = self.rng.uniform(0.002, 0.01, channels).astype("float32")
        values = np.clip(self.rng.integers(-100, 101, shape), -LARGEST_WEIGHT, LARGEST_WEIGHT).astype("int8")
        points = np.full(channels, zero_point, "int8")
        if not per_channel:
            scale, points = scale[0], points[0]
        name = self.node(
            "DequantizeLinear", self.constant(values, "w"), self.constant(scale, "ws"), self.constant(points, "wz"),
            **({"axis": axis} if per_channel else {}),
        )  # fmt: skip
        self.scales[name] = scale
        return name

    def bias(self, data: str, weight: str, channels: int) -> str:
        """Add a bias in steps of the product of the operands' scales, as quantisation tools do."""
        scale = np.broadcast_to((self.scales[data] * self.scales[weight]).astype("float32"), (channels,))
        values = self.rng.integers(-2000, 2000, channels).astype("int32")
        points = np.zeros(channels, "int32")
        return self.node(
            "DequantizeLinear", self.constant(values, "b"), self.constant(scale.copy(), "bs"),
            self.constant(points, "bz"), axis=0,
        )  # fmt: skip

    def conv(
        self, data: str, inputs: int, outputs: int, kernel: int = 3, bias: bool = True, per_channel: bool = True,
        zero_point: int = 0, **attributes: Any,
    ) -> str:  # fmt: skip
        """Add a convolution of a dequantised tensor, along as many axes as the input of the model has."""
        groups, axes = attributes.get("group", 1), len(self.shape) - 2
        weight = self.weight((outputs, inputs // groups, *[kernel] * axes), 0, per_channel, zero_point)
        extra = [self.bias(data, weight, outputs)] if bias else []
        return self.node("Conv", data, weight, *extra, **{"pads": [kernel // 2] * 2 * axes, **attributes})

    def model(self, *outputs: str) -> onnx.ModelProto:
        """Finish the model."""
        values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
        graph = helper.make_graph(
            self.nodes,
            "qdq",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, self.shape)],
            values,
            self.initializers,
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        return onnx.shape_inference.infer_shapes(model)

    def input(self) -> dict[str, np.ndarray]:
        """Draw an input."""
        return {"x": self.rng.standard_normal(self.shape).astype("float32")}
