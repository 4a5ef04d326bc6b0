"""Writes the layers of networks as ONNX nodes, in the several ways exporters have for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from scripts.fuzz.writer import Writer


@dataclass(frozen=True)
class Value:
    """A tensor of the model: its name and its shape; the first axis is the batch, or a multiple of it."""

    name: str
    shape: tuple[int, ...]

    @property
    def channels(self) -> int:
        """Extent of axis 1, the channels of an image."""
        return self.shape[1]

    @property
    def features(self) -> int:
        """Extent of the last axis, the features of a token."""
        return self.shape[-1]


@dataclass
class Layers(Writer):
    """A writer that follows shapes.

    Attributes
    ----------
    dtype : str
        Of weights and values, ``float32`` or ``float16``.
    """

    dtype: str = "float32"

    def scalar(self, number: float) -> str:
        """Add a constant number of the model's type."""
        return self.constant(number, self.dtype)

    def weights(self, *shape: int, scale: float | None = None) -> str:
        """Add a constant of the model's type."""
        return self.weight(*shape, scale=scale, dtype=self.dtype)

    def apply(self, operator: str, value: Value, *rest: str, shape: Sequence[int] | None = None, **more: Any) -> Value:
        """Apply an operator with one result, which has the shape of ``value`` unless another is given."""
        return Value(self.value(operator, value.name, *rest, **more), tuple(shape or value.shape))

    def join(self, operator: str, *values: Value, **more: Any) -> Value:
        """Apply an element-wise operator to values that broadcast."""
        shape = np.broadcast_shapes(*(value.shape for value in values))
        return Value(self.value(operator, *(value.name for value in values), **more), shape)

    def concat(self, values: Sequence[Value], axis: int) -> Value:
        """Concatenate along an axis."""
        shape = list(values[0].shape)
        shape[axis] = sum(value.shape[axis] for value in values)
        spelled = axis - len(shape) if self.chance(0.3) else axis
        return Value(self.value("Concat", *(value.name for value in values), axis=spelled), tuple(shape))

    def split(self, value: Value, sizes: Sequence[int], axis: int) -> list[Value]:
        """Take apart along an axis, with ``Split`` or by slices."""
        shapes = [(*value.shape[:axis], size, *value.shape[axis + 1 :]) for size in sizes]
        if self.chance(0.6):
            names = [f"t{len(self.nodes)}_{index}" for index in range(len(sizes))]
            self.node("Split", [value.name, self.constant(list(sizes))], names, axis=axis)
            return [Value(name, shape) for name, shape in zip(names, shapes, strict=True)]
        ends = [int(end) for end in np.cumsum(sizes)]
        return [self.slice(value, axis, end - size, end) for size, end in zip(sizes, ends, strict=True)]

    def slice(self, value: Value, axis: int, start: int, end: int, step: int = 1) -> Value:
        """Take every ``step``-th element of an axis, from ``start`` up to ``end``."""
        side = value.shape[axis]
        shape = (*value.shape[:axis], len(range(start, end, step)), *value.shape[axis + 1 :])
        last = 2**62 if end == side and self.chance(0.3) else end
        parts = [self.constant([number]) for number in (start, last, axis, step)]
        return self.apply("Slice", value, *parts, shape=shape)

    def reshape(self, value: Value, *shape: int) -> Value:
        """Reshape; the first extent is left open, so that the batch may be any."""
        return self.apply("Reshape", value, self.constant([-1, *shape[1:]]), shape=shape)

    def transpose(self, value: Value, *order: int) -> Value:
        """Permute axes."""
        return self.apply("Transpose", value, shape=[value.shape[axis] for axis in order], perm=list(order))

    def reduce(self, operator: str, value: Value, axes: Sequence[int]) -> Value:
        """Reduce axes, and keep them with extent 1."""
        shape = [1 if axis in axes else side for axis, side in enumerate(value.shape)]
        if self.opset >= 18 or operator == "ReduceSum":
            return self.apply(operator, value, self.constant(list(axes)), shape=shape, keepdims=1)
        return self.apply(operator, value, shape=shape, axes=list(axes), keepdims=1)

    def bias(self, value: Value, axis: int) -> Value:
        """Add a number for each element of an axis."""
        shape = [value.shape[axis]] + [1] * (len(value.shape) - 1 - axis)
        operands = [value.name, self.weights(*shape, scale=0.3)]
        return Value(self.value("Add", *(operands if self.chance(0.6) else operands[::-1])), value.shape)

    def scaled(self, value: Value, number: float) -> Value:
        """Multiply by a number."""
        if self.chance(0.3):
            return self.apply("Div", value, self.scalar(1 / number))
        return self.apply("Mul", value, self.scalar(number))

    def conv(
        self,
        value: Value,
        channels: int,
        kernel: int | tuple[int, int],
        *,
        stride: int = 1,
        group: int = 1,
        dilation: int = 1,
        bias: bool = True,
    ) -> Value:
        """Convolve an image or a sequence ``(N, C, W)``, padded by about half of the kernel."""
        rank = len(value.shape) - 2
        kernels = [kernel] * rank if isinstance(kernel, int) else list(kernel)
        pads = [(side - 1) * dilation // 2 for side in kernels]
        pads += [(side - 1) * dilation - pad for side, pad in zip(kernels, pads, strict=True)]
        sides = [(side - 1) // stride + 1 for side in value.shape[2:]]
        weights = [self.weights(channels, value.channels // group, *kernels)]
        weights += [self.weights(channels, scale=0.3)] if bias else []
        rest = {"strides": [stride] * rank, "dilations": [dilation] * rank, "group": group, "kernel_shape": kernels}
        shape = (value.shape[0], channels, *sides)
        if any(pads) and self.chance(0.15):  # as TensorFlow's exporter writes it
            padded = [side + pads[i] + pads[rank + i] for i, side in enumerate(value.shape[2:])]
            amounts = self.constant([0, 0, *pads[:rank], 0, 0, *pads[rank:]])
            mode = "constant" if min(value.shape[2:]) <= max(pads) else self.choose(("constant", "reflect", "edge"))
            value = self.apply("Pad", value, amounts, shape=(*value.shape[:2], *padded), mode=mode)
            pads = [0] * len(pads)
        return self.apply("Conv", value, *weights, shape=shape, pads=pads, **rest)

    def dense(self, value: Value, features: int, *, bias: bool = True) -> Value:
        """Multiply the last axis by weights."""
        shape = (*value.shape[:-1], features)
        if len(shape) == 2 and self.chance(0.6):
            turned = self.choose((0, 1))
            sides = (features, value.features) if turned else (value.features, features)
            weight = self.weights(*sides, scale=value.features**-0.5)
            rest = [self.weights(features, scale=0.3)] if bias else []
            return self.apply("Gemm", value, weight, *rest, shape=shape, transB=turned)
        weight = self.weights(value.features, features, scale=value.features**-0.5)
        made = self.apply("MatMul", value, weight, shape=shape)
        return self.bias(made, len(shape) - 1) if bias else made

    def matmul(self, left: Value, right: Value) -> Value:
        """Multiply two values."""
        batch = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
        return Value(self.value("MatMul", left.name, right.name), (*batch, left.shape[-2], right.shape[-1]))

    def activation(self, value: Value) -> Value:
        """Apply one of the functions that follow layers, written as an operator or spelled out."""
        kind = self.choose(
            ("relu", "relu", "relu", "relu6", "silu", "silu", "gelu", "gelu", "gelu_tanh", "hardswish", "mish", "leaky",
             "prelu", "elu", "sigmoid", "tanh", "softplus", "quick_gelu", "none")
        )  # fmt: skip
        if kind == "relu6":
            return self.apply("Clip", value, self.scalar(0), self.scalar(6))
        if kind in ("silu", "quick_gelu"):
            gate = value if kind == "silu" else self.scaled(value, 1.702)
            return self.join("Mul", value, self.apply("Sigmoid", gate))
        if kind == "gelu":
            inner = self.apply("Erf", self.apply("Div", value, self.scalar(2**0.5)))
            outer = self.apply("Add", inner, self.scalar(1))
            return self.scaled(self.join("Mul", value, outer), 0.5)
        if kind == "gelu_tanh":
            cube = self.apply("Pow", value, self.scalar(3))
            sum_ = self.join("Add", value, self.scaled(cube, 0.044715))
            outer = self.apply("Add", self.apply("Tanh", self.scaled(sum_, 0.7978845608)), self.scalar(1))
            return self.join("Mul", self.scaled(value, 0.5), outer)
        if kind == "hardswish":
            if self.opset >= 14 and self.chance(0.5):
                return self.apply("HardSwish", value)
            shifted = self.apply("Clip", self.apply("Add", value, self.scalar(3)), self.scalar(0), self.scalar(6))
            return self.apply("Div", self.join("Mul", value, shifted), self.scalar(6))
        if kind == "mish":
            return self.join("Mul", value, self.apply("Tanh", self.apply("Softplus", value)))
        if kind == "leaky":
            return self.apply("LeakyRelu", value, alpha=0.1)
        if kind == "prelu":
            slope = (value.channels, *[1] * (len(value.shape) - 2)) if len(value.shape) > 2 else (1,)
            return self.apply("PRelu", value, self.weights(*slope, scale=0.3))
        if kind == "none":
            return value
        return self.apply({"elu": "Elu"}.get(kind, kind.capitalize()), value)

    def batch_norm(self, value: Value) -> Value:
        """Normalise channels by constants."""
        mean, variance = self.weights(value.channels, scale=0.3), np.abs(self.rng.standard_normal(value.channels)) + 0.5
        scale, bias = self.constant(1 + 0.1 * self.rng.standard_normal(value.channels), self.dtype), mean
        return self.apply("BatchNormalization", value, scale, bias, mean, self.constant(variance, self.dtype))

    def layer_norm(self, value: Value) -> Value:
        """Normalise the last axis by mean and variance, or by the root of the mean of squares."""
        scale = self.constant(1 + 0.1 * self.rng.standard_normal(value.features), self.dtype)
        if self.opset >= 17 and self.chance(0.4):
            return self.apply("LayerNormalization", value, scale, self.weights(value.features, scale=0.2), axis=-1)
        last = len(value.shape) - 1
        centred = value
        if self.chance(0.7):
            centred = self.join("Sub", value, self.reduce("ReduceMean", value, [last]))
        squares = self.join("Mul", centred, centred) if self.chance(0.4) else self.apply("Pow", centred, self.scalar(2))
        variance = self.apply("Add", self.reduce("ReduceMean", squares, [last]), self.scalar(1e-5))
        normal = self.join("Div", centred, self.apply("Sqrt", variance))
        return self.bias(self.apply("Mul", normal, scale), last)

    def group_norm(self, value: Value, groups: int) -> Value:
        """Normalise groups of channels, as exporters write it: instances of a reshaped tensor."""
        whole = value.shape
        flat = self.reshape(value, whole[0], groups, prod(whole[1:]) // groups)
        ones, zeros = (self.constant(np.full(groups, number), self.dtype) for number in (1, 0))
        normal = self.apply("InstanceNormalization", flat, ones, zeros)
        back = self.apply("Reshape", normal, self.constant([-1, *whole[1:]]), shape=whole)
        scale = self.weights(whole[1], *[1] * (len(whole) - 2), scale=1.0)
        return self.bias(self.apply("Mul", back, scale), 1)

    def pool(self, value: Value, kind: str, kernel: int, stride: int) -> Value:
        """Pool an image, padded by half of the kernel."""
        pad = (kernel - 1) // 2
        sides = [(side + 2 * pad - kernel) // stride + 1 for side in value.shape[2:]]
        rank = len(sides)
        rest = {"kernel_shape": [kernel] * rank, "strides": [stride] * rank, "pads": [pad] * 2 * rank}
        if kind == "AveragePool":
            rest["count_include_pad"] = self.choose((0, 1))
        return self.apply(kind, value, shape=(*value.shape[:2], *sides), **rest)

    def average(self, value: Value) -> Value:
        """Average an image, or a sequence, to one pixel."""
        axes = list(range(2, len(value.shape)))
        if self.chance(0.6):
            return self.apply("GlobalAveragePool", value, shape=(*value.shape[:2], *[1] * len(axes)))
        return self.reduce("ReduceMean", value, axes)

    def resize(self, value: Value, height: int, width: int) -> Value:
        """Resize an image."""
        mode = self.choose(("nearest", "nearest", "linear", "linear", "cubic"))
        way = "asymmetric" if mode == "nearest" else self.choose(("half_pixel", "align_corners", "pytorch_half_pixel"))
        rest = {"mode": mode, "coordinate_transformation_mode": way}
        rest |= {"nearest_mode": "floor"} if mode == "nearest" else {}
        scales = [1.0, 1.0, height / value.shape[2], width / value.shape[3]]
        whole = height % value.shape[2] == width % value.shape[3] == 0
        if whole:
            operands = ["", self.constant(np.asarray(scales, "float32"))]
            return self.apply("Resize", value, *operands, shape=(*value.shape[:2], height, width), **rest)
        if self.opset >= 18:
            sizes = self.constant([height, width])
            return self.apply(
                "Resize", value, "", "", sizes, shape=(*value.shape[:2], height, width), axes=[2, 3], **rest
            )
        scales = [1.0, 1.0, (height + 0.5) / value.shape[2], (width + 0.5) / value.shape[3]]
        operands = ["", self.constant(np.asarray(scales, "float32"))]
        return self.apply("Resize", value, *operands, shape=(*value.shape[:2], height, width), **rest)
