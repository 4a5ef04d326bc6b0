"""Quantised ONNX models (QDQ) computed with numpy in integers: what the compiled kernels must equal bit by bit.

A convolution or matrix product of quantised operands is an exact sum of integers. Where it is quantised again, it is
multiplied with ``float32(scale of inputs * scale of weights) / scale of the output`` in float32, rounded to the nearest
integer, ties to even, shifted and saturated. Everything between other operators is float32, as the model says.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

Array = np.ndarray


@dataclass(frozen=True)
class Steps:
    """Integers with a scale and a zero point; the scale broadcasts."""

    values: Array
    scale: Array
    zero_point: Array

    @property
    def floats(self) -> Array:
        """The float32 values."""
        return (self.values.astype(np.int32) - self.zero_point.astype(np.int32)).astype(np.float32) * self.scale


@dataclass(frozen=True)
class Sum:
    """Exact sums times a scale, clipped."""

    total: Array
    scale: Array
    low: float = -np.inf
    high: float = np.inf

    @property
    def floats(self) -> Array:
        """The float32 values."""
        return np.clip(self.total.astype(np.float32) * self.scale, np.float32(self.low), np.float32(self.high))


Value = Array | Steps | Sum


def run_integers(model: onnx.ModelProto, inputs: dict[str, Array]) -> dict[str, Array]:
    """Compute the outputs of a QDQ model."""
    values: dict[str, Value] = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    values |= inputs
    for node in model.graph.node:
        attributes = {item.name: onnx.helper.get_attribute_value(item) for item in node.attribute}
        operands = [values[name] if name else None for name in node.input]
        values[node.output[0]] = _OPERATORS[node.op_type](attributes, *operands)
    return {output.name: floats(values[output.name]) for output in model.graph.output}


def floats(value: Value) -> Array:
    """Float32 values of a tensor, or the integers of one that is not dequantised."""
    return value if isinstance(value, np.ndarray) else value.floats


def round_to(value: Array, zero_point: Array) -> Array:
    """Round to the nearest integer (ties to even), shift, saturate to the type of ``zero_point``."""
    limits = np.iinfo(zero_point.dtype)
    shifted = np.rint(value).astype(np.float64) + zero_point.astype(np.float64)
    return np.clip(shifted, limits.min, limits.max).astype(zero_point.dtype)


def _dequantize(attributes: Any, values: Array, scale: Array, zero_point: Array | None = None) -> Steps:
    zero_point = np.zeros(scale.shape, values.dtype) if zero_point is None else zero_point
    if scale.size > 1:
        shape = [1] * values.ndim
        shape[attributes.get("axis", 1)] = -1
        scale, zero_point = scale.reshape(shape), zero_point.reshape(shape)
    return Steps(values, scale, zero_point)


def _quantize(_: Any, value: Value, scale: Array, zero_point: Array) -> Array:
    if isinstance(value, Sum):
        factor = (value.scale / scale).astype(np.float32)
        bounds = [np.rint(np.float32(bound) / scale) for bound in (value.low, value.high)]
        return round_to(np.clip(value.total.astype(np.float32) * factor, *bounds), zero_point)
    return round_to(floats(value) / scale, zero_point)


def _convolution(attributes: Any, data: Steps, weight: Steps, bias: Value | None = None) -> Sum:
    kernel = (weight.values.astype(np.int64) - weight.zero_point).astype(np.float64)
    groups, (out_channels, per_group, *window) = attributes.get("group", 1), kernel.shape
    axes = len(window)
    pads = attributes.get("pads", [0] * 2 * axes)
    strides, dilations = attributes.get("strides", [1] * axes), attributes.get("dilations", [1] * axes)
    # float64 holds these integers exactly.
    real = (data.values.astype(np.int64) - data.zero_point).astype(np.float64)
    padded = np.pad(real, [(0, 0), (0, 0), *zip(pads[:axes], pads[axes:], strict=True)])
    spans = [(extent - 1) * dilation + 1 for extent, dilation in zip(window, dilations, strict=True)]
    windows = np.lib.stride_tricks.sliding_window_view(padded, spans, axis=tuple(range(2, 2 + axes)))
    windows = windows[(slice(None), slice(None), *(slice(None, None, step) for step in (*strides, *dilations)))]
    parts = []
    for group in range(groups):
        source = windows[:, group * per_group : (group + 1) * per_group]
        filters = kernel[group * out_channels // groups : (group + 1) * out_channels // groups]
        summed = [1, *range(2 + axes, 2 + 2 * axes)], list(range(1, 2 + axes))
        parts.append(np.moveaxis(np.tensordot(source, filters, summed), -1, 1))
    per_channel = (1, -1, *[1] * axes)
    scale = (data.scale * weight.scale).astype(np.float32).reshape(per_channel)
    return _with_bias(Sum(np.concatenate(parts, 1).astype(np.int64), scale), bias, per_channel)


def _with_bias(value: Sum, bias: Value | None, shape: tuple[int, ...]) -> Sum:
    if bias is None:
        return value
    assert isinstance(bias, Steps), "the reference knows quantised biases only"
    return replace(value, total=value.total + bias.values.astype(np.int64).reshape(shape))


def _product(data: Steps, weight: Steps) -> Sum:
    left = (data.values.astype(np.int64) - data.zero_point).astype(np.float64)
    right = (weight.values.astype(np.int64) - weight.zero_point).astype(np.float64)
    scale = (data.scale * weight.scale).astype(np.float32).reshape(-1)
    return Sum((left @ right).astype(np.int64), scale)


def _gemm(attributes: Any, data: Steps, weight: Steps, bias: Value | None = None) -> Sum:
    if attributes.get("transB"):
        weight = Steps(*(array.T for array in (weight.values, weight.scale, weight.zero_point)))
    return _with_bias(_product(data, weight), bias, (-1,))


def _add(_: Any, left: Value, right: Value) -> Value:
    for total, bias in ((left, right), (right, left)):
        if isinstance(total, Sum) and isinstance(bias, Steps) and bias.values.dtype == np.int32:
            return replace(total, total=total.total + bias.values)
    return floats(left) + floats(right)


def _relu(_: Any, value: Value) -> Value:
    return replace(value, low=0.0) if isinstance(value, Sum) else np.maximum(floats(value), 0)


def _clip(_: Any, value: Value, low: Value, high: Value) -> Value:
    bounds = [float(floats(bound)) for bound in (low, high)]
    return replace(value, low=bounds[0], high=bounds[1]) if isinstance(value, Sum) else np.clip(floats(value), *bounds)


def _average(_: Any, value: Value) -> Value:
    assert isinstance(value, Steps), "the reference knows averages of quantised tensors only"
    count = value.values.shape[2] * value.values.shape[3]
    total = (value.values.astype(np.int64) - value.zero_point).sum(axis=(2, 3), keepdims=True)
    return Sum(total, np.float32(value.scale) / np.float32(count))


def _average_pool(attributes: Any, value: Value) -> Value:
    assert isinstance(value, Steps), "the reference knows averages of quantised tensors only"
    assert tuple(attributes["kernel_shape"]) == value.values.shape[2:], "the reference knows averages of whole planes"
    return _average(attributes, value)


def _reduce_mean(attributes: Any, value: Value, axes: Value | None = None) -> Value:
    chosen = attributes.get("axes") if axes is None else floats(axes).tolist()
    assert sorted(axis % 4 for axis in chosen) == [2, 3], "the reference knows averages of whole planes"
    return _average(attributes, value)


def _max_pool(attributes: Any, value: Value) -> Value:
    assert isinstance(value, Steps), "the reference knows maxima of quantised tensors only"
    pads, strides = attributes.get("pads", [0] * 4), attributes.get("strides", [1, 1])
    least = np.iinfo(value.values.dtype).min
    widths = [(0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])]
    padded = np.pad(value.values, widths, constant_values=least)
    windows = np.lib.stride_tricks.sliding_window_view(padded, attributes["kernel_shape"], axis=(2, 3))
    return replace(value, values=windows[:, :, :: strides[0], :: strides[1]].max(axis=(4, 5)))


def _reshape(_: Any, value: Value, shape: Array) -> Value:
    if isinstance(value, Steps):
        return replace(value, values=value.values.reshape(shape))
    return floats(value).reshape(shape)


def _flatten(attributes: Any, value: Value) -> Value:
    return _reshape(attributes, value, np.array([floats(value).shape[0], -1]))


def _softmax(attributes: Any, value: Value) -> Value:
    logits = floats(value)
    powers = np.exp(logits - logits.max(attributes.get("axis", -1), keepdims=True))
    return powers / powers.sum(attributes.get("axis", -1), keepdims=True)


_OPERATORS = {
    "Add": _add,
    "AveragePool": _average_pool,
    "Clip": _clip,
    "Conv": _convolution,
    "DequantizeLinear": _dequantize,
    "Flatten": _flatten,
    "Gemm": _gemm,
    "GlobalAveragePool": _average,
    "MatMul": lambda _, data, weight: _product(data, weight),
    "MaxPool": _max_pool,
    "QuantizeLinear": _quantize,
    "ReduceMean": _reduce_mean,
    "Relu": _relu,
    "Reshape": _reshape,
    "Softmax": _softmax,
}
