"""What the integer pass knows of a value: constants that stand quantised in the model, and quantised activations."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from tvm import relax

from tvm_ext.quantized.sums import LARGEST_BYTE
from tvm_ext.relax_utils import constant, open_shape, static_shape

ACTIVATION_TYPES = ("uint8", "int8")


@dataclass(frozen=True)
class QuantizedConstant:
    """A constant ``(values - zero_point) * scale``.

    Attributes
    ----------
    values, zero_point : np.ndarray
        Integers; ``zero_point`` broadcasts to ``values``.
    scale : np.ndarray
        float32, broadcasts to ``values``.
    """

    values: np.ndarray
    scale: np.ndarray
    zero_point: np.ndarray

    @classmethod
    def from_call(cls, call: relax.Call) -> QuantizedConstant | None:
        """Read ``relax.dequantize`` of constants."""
        arrays = [constant(arg) for arg in call.args]
        if any(array is None for array in arrays):
            return None
        values, scale, zero_point = arrays
        if values is None or scale is None or zero_point is None or scale.ndim > 1 or zero_point.ndim > 1:
            return None
        shape = [1] * values.ndim
        if scale.size > 1 or zero_point.size > 1:
            axis = int(call.attrs.axis) % values.ndim
            shape[axis] = values.shape[axis]
        scale, zero_point = (
            array.reshape(shape if array.size > 1 else [1] * values.ndim) for array in (scale, zero_point)
        )
        return cls(values.astype(np.int64), scale.astype(np.float32), zero_point.astype(np.int64))

    @property
    def floats(self) -> np.ndarray:
        """The float32 values, as DequantizeLinear defines them."""
        return ((self.values - self.zero_point).astype(np.float32) * self.scale).astype(np.float32)

    @property
    def centred(self) -> np.ndarray | None:
        """The integers free of their zero point; None if they are no bytes (:func:`as_bytes`)."""
        return as_bytes(self.values - self.zero_point)

    def scale_along(self, axis: int) -> np.ndarray | None:
        """One scale for each index of ``axis``, None if the scale depends on another axis."""
        others = [extent for position, extent in enumerate(self.scale.shape) if position != axis % self.values.ndim]
        if any(extent != 1 for extent in others):
            return None
        return np.broadcast_to(self.scale.reshape(-1), (self.values.shape[axis],))

    def permuted(self, axes: list[int]) -> QuantizedConstant:
        """Permute the dimensions."""
        return QuantizedConstant(*(array.transpose(axes) for array in (self.values, self.scale, self.zero_point)))


def as_bytes(weights: np.ndarray) -> np.ndarray | None:
    """Give OIHW, OIW or matrix weights as int16, if those of each output channel are bytes less some number; else None.

    For matrices, whose channels are columns, all have to be bytes less the same number.
    """
    if not weights.size:
        return None
    rows = weights.reshape(len(weights) if weights.ndim > 2 else 1, -1).astype(np.int64)
    low, high = rows.min(axis=1), rows.max(axis=1)
    if (high - low).max() > LARGEST_BYTE or low.min() < -LARGEST_BYTE or high.max() > LARGEST_BYTE:
        return None
    return weights.astype(np.int16)


def split_bytes(weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Take OIHW or OIW weights apart into int8 and what each output channel is larger by, nought where that can be."""
    rows = weights.reshape(len(weights), -1).astype(np.int64)
    limits = np.iinfo(np.int8)
    least, most = rows.max(axis=1) - limits.max, rows.min(axis=1) - limits.min
    larger = np.clip(0, least, most)
    return (weights - larger.reshape(-1, *[1] * (weights.ndim - 1))).astype(np.int8), larger


@dataclass(frozen=True)
class Quantized:
    """An activation ``(data - zero_point) * scale`` with uint8 ``data``, one scale and one zero point.

    Attributes
    ----------
    data : relax.Expr
        uint8, in the new function.
    scale : float
    zero_point : int
        0 to 255.
    """

    data: relax.Expr
    scale: float
    zero_point: int

    @property
    def shape(self) -> tuple[int, ...] | None:
        """Extents of ``data``, None if one is not known."""
        return static_shape(self.data)

    def same_steps(self, other: Quantized) -> bool:
        """Whether equal integers mean equal values."""
        return self.scale == other.scale and self.zero_point == other.zero_point


@dataclass(frozen=True)
class IntegerSum:
    """A float tensor that is ``(total + shift) * scale``, clipped; the sum is exact in int32.

    Attributes
    ----------
    total : relax.Expr
        int32, channels on axis 1.
    matrix_shape : tuple, optional
        Shape ``(..., C)`` of the product of matrices that ``total`` stands for, of shape ``(1, C, 1, M)``, or
        ``(M, C, 1, 1)`` where ``M`` is open.
    planes : tuple of int, optional
        Volumes ``(N, C, D, H, W)`` that ``total`` stands for as images ``(N * D, C, H, W)``: ``(N, D)``.
    scale : np.ndarray
        float32, one for each channel.
    shift : np.ndarray
        int64, one for each channel.
    weights : np.ndarray
        Integers of shape ``(channels, products)``: what the activations of a sum are multiplied by.
    low, high : float
        Bounds of the values.
    """

    total: relax.Expr
    scale: np.ndarray
    shift: np.ndarray
    weights: np.ndarray
    low: float = -np.inf
    high: float = np.inf
    matrix_shape: tuple[Any, ...] | None = None
    planes: tuple[int, int] | None = None

    @property
    def shape(self) -> tuple[Any, ...] | None:
        """Shape of the float tensor; extents that are open are expressions."""
        shape = self.matrix_shape or open_shape(self.total)
        if self.planes is None or shape is None:
            return shape
        batch, depth = self.planes
        return (batch, shape[1], depth, *shape[2:])

    @property
    def channel_axis(self) -> int:
        """Axis of the float tensor that ``scale`` goes along."""
        return 1 if self.matrix_shape is None else len(self.matrix_shape) - 1

    @property
    def per_channel(self) -> tuple[int, ...]:
        """Shape of numbers, one a channel, that broadcast to ``total``."""
        return (1, -1, *[1] * (self.total.ty.ndim - 2))

    @property
    def is_clipped(self) -> bool:
        """Whether there are bounds."""
        return (self.low, self.high) != (-np.inf, np.inf)

    def clipped(self, low: float, high: float) -> IntegerSum:
        """Clip further."""
        return replace(self, low=min(max(low, self.low), self.high), high=max(min(high, self.high), self.low))
