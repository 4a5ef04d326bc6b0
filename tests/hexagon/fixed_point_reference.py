"""Quantised ONNX models (QDQ) computed with numpy as the Hexagon kernels mean them: no float where sums are rescaled.

Sums of products are multiplied with 31 significant bits of ``float32(scale of inputs * scale of weights) / scale of the
output``, and halves are rounded up. A sum of two tensors has factors of 16 bits, one power of two for both. All else is
as in :mod:`tests.integer_reference`: functions of one tensor and what runs on the scalar core are float32.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from tests import integer_reference
from tests.integer_reference import Array, Steps, Sum, floats


@dataclass(frozen=True)
class Addition:
    """The sum of two quantised tensors, clipped."""

    first: Steps
    second: Steps
    low: float = -np.inf
    high: float = np.inf

    @property
    def floats(self) -> Array:
        """The float32 values."""
        return np.clip(self.first.floats + self.second.floats, np.float32(self.low), np.float32(self.high))


@dataclass(frozen=True)
class Multiplication(Addition):
    """The product of two quantised tensors, clipped; one may have a number for each channel."""

    @property
    def floats(self) -> Array:
        """The float32 values."""
        return np.clip(self.first.floats * self.second.floats, np.float32(self.low), np.float32(self.high))


def run_fixed_point(model: onnx.ModelProto, inputs: dict[str, Array]) -> dict[str, Array]:
    """Compute the outputs of a QDQ model."""
    values: dict[str, Any] = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    values |= inputs
    roots: dict[str, str] = {}  # what a tensor is a function of, element by element
    for node in model.graph.node:
        attributes = {item.name: onnx.helper.get_attribute_value(item) for item in node.attribute}
        operands = [values[name] if name else None for name in node.input]
        of = {roots.get(name, name) for name in node.input if name in roots or name in inputs}
        is_function = node.op_type in _ELEMENTWISE and len(of) == 1
        (roots[node.output[0]],) = of if is_function else {node.output[0]}
        operator = _mul_of_two if node.op_type == "Mul" and not is_function else _OPERATORS[node.op_type]
        values[node.output[0]] = operator(attributes, *operands)
    return {output.name: floats(values[output.name]) for output in model.graph.output}


def rescaled(total: Array, factor: float) -> Array:
    """Multiply integers with a factor and round, in integers."""
    mantissa, exponent = math.frexp(factor)
    multiplier, shift = round(mantissa * 2**31), 31 - exponent
    assert shift <= 51, "the kernels have fewer bits for such a factor"
    return np.array(
        [(int(item) * multiplier + (1 << (shift - 1))) >> shift for item in total.ravel().tolist()]
    ).reshape(total.shape)


def _quantize(attributes: Any, value: Any, scale: Array, zero_point: Array) -> Array:
    limits = np.iinfo(zero_point.dtype)
    point = int(zero_point)
    if isinstance(value, Sum | Addition):
        low, high = (float(np.rint(np.float32(bound) / scale)) for bound in (value.low, value.high))
        bounds = max(low + point, limits.min), min(high + point, limits.max)
    if isinstance(value, Sum):
        factors = np.broadcast_to((value.scale / scale).astype(np.float32), value.total.shape)
        axis = next((i for i, extent in enumerate(np.shape(value.scale)) if extent > 1), None)
        if axis is None:
            whole = rescaled(value.total, float(factors.flat[0]))
        else:
            axis += value.total.ndim - np.ndim(value.scale)
            parts = [
                rescaled(part, float(factor.flat[0]))
                for part, factor in zip(np.moveaxis(value.total, axis, 0), np.moveaxis(factors, axis, 0), strict=True)
            ]
            whole = np.moveaxis(np.stack(parts), 0, axis)
        return np.clip(whole + point, *bounds).astype(zero_point.dtype)
    if isinstance(value, Multiplication):
        parts = [part.values.astype(np.int64) - int(part.zero_point) for part in (value.first, value.second)]
        factor = np.float32(value.first.scale) * np.float32(value.second.scale) / np.float32(scale)
        return np.clip(rescaled(parts[0] * parts[1], float(factor)) + point, *bounds).astype(zero_point.dtype)
    if isinstance(value, Addition):
        factors = [float(np.float32(part.scale) / np.float32(scale)) for part in (value.first, value.second)]
        power = min(22, 15 - math.floor(math.log2(max(factors))))
        if round(max(factors) * 2**power) == 1 << 16:
            power -= 1
        total = sum(
            round(factor * 2**power) * (part.values.astype(np.int64) - int(part.zero_point))
            for factor, part in zip(factors, (value.first, value.second), strict=True)
        )
        return np.clip(((total + (1 << power) // 2) >> power) + point, *bounds).astype(zero_point.dtype)
    return integer_reference.round_to((floats(value) / scale).astype(np.float32), zero_point)


def _add(attributes: Any, left: Any, right: Any) -> Any:
    both = isinstance(left, Steps) and isinstance(right, Steps)
    if both and left.values.shape == right.values.shape and np.size(left.scale) == np.size(right.scale) == 1:
        return Addition(left, right)
    return integer_reference._OPERATORS["Add"](attributes, left, right)


def _mul_of_two(_: Any, left: Any, right: Any) -> Any:
    if isinstance(left, Steps) and isinstance(right, Steps):
        shapes = sorted((left.values.shape, right.values.shape), key=math.prod)
        by_channel = shapes[0] == (*shapes[1][:2], *[1] * (len(shapes[1]) - 2))
        if np.size(left.scale) == np.size(right.scale) == 1 and (shapes[0] == shapes[1] or by_channel):
            return Multiplication(left, right)
    return floats(left) * floats(right)


def _relu(attributes: Any, value: Any) -> Any:
    if isinstance(value, Addition):
        return replace(value, low=max(0.0, value.low))
    return integer_reference._OPERATORS["Relu"](attributes, value)


def _clip(attributes: Any, value: Any, low: Any, high: Any) -> Any:
    if isinstance(value, Addition):
        return replace(value, low=float(floats(low)), high=float(floats(high)))
    return integer_reference._OPERATORS["Clip"](attributes, value, low, high)


def _max_pool(attributes: Any, value: Any) -> Any:
    if isinstance(value, Steps):
        return integer_reference._OPERATORS["MaxPool"](attributes, value)
    pads, strides = attributes.get("pads", [0] * 4), attributes.get("strides", [1, 1])
    widths = [(0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])]
    padded = np.pad(floats(value), widths, constant_values=-np.inf)
    windows = np.lib.stride_tricks.sliding_window_view(padded, attributes["kernel_shape"], axis=(2, 3))
    return windows[:, :, :: strides[0], :: strides[1]].max(axis=(4, 5))


def _pad(attributes: Any, value: Steps, pads: Array) -> Steps:
    widths = list(zip(*np.split(pads, 2), strict=True))
    return replace(value, values=np.pad(value.values, widths, attributes["mode"].decode()))


def _hard_sigmoid(attributes: Any, value: Any) -> Array:
    slope, offset = (np.float32(attributes.get(key, default)) for key, default in (("alpha", 0.2), ("beta", 0.5)))
    return np.clip(floats(value) * slope + offset, np.float32(0), np.float32(1))


def _hard_swish(_: Any, value: Any) -> Array:
    return floats(value) * _hard_sigmoid({"alpha": 1 / 6, "beta": 0.5}, value)


_ELEMENTWISE = ("Add", "Clip", "DequantizeLinear", "Div", "HardSigmoid", "HardSwish", "Mul", "QuantizeLinear", "Relu",
                "Sub")  # fmt: skip

_OPERATORS = integer_reference._OPERATORS | {
    "Add": _add,
    "Clip": _clip,
    "Div": lambda _, left, right: floats(left) / floats(right),
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": _hard_swish,
    "MaxPool": _max_pool,
    "Mul": lambda _, left, right: floats(left) * floats(right),
    "Pad": _pad,
    "QuantizeLinear": _quantize,
    "Relu": _relu,
    "Shape": lambda _, value: np.array((value.values if isinstance(value, Steps) else floats(value)).shape),
    "Sub": lambda _, left, right: floats(left) - floats(right),
}
