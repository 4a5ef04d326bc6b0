"""Exact convolutions of integers, along one axis, two or three.

A volume is convolved as images, one for each of its results along the depth: the planes that meet the taps of one
result stand one behind the other among the channels.

before: ``conv3d(x, w)`` of ``(N, C, D, H, W)`` and three taps along the depth
after:  ``conv2d(x', w')`` of ``(N * D', 3 * C, H, W)``
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from tvm import relax

from tvm_ext.quantized.relax.mutator import IntegerMutator
from tvm_ext.quantized.relax.values import IntegerSum, Quantized, split_bytes
from tvm_ext.relax_utils import OPAQUE, static_shape
from tvm_ext.schedules.compute.tap_planes import tap_planes

_OPERATORS = {1: relax.op.nn.conv1d, 2: relax.op.nn.conv2d}
_LAYOUTS = {1: ("NCW", "OIW"), 2: ("NCHW", "OIHW"), 3: ("NCDHW", "OIDHW")}


@dataclass(frozen=True)
class _Window:
    """How a window moves: one number an axis; padding before each of them, then behind each."""

    strides: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]
    groups: int

    @classmethod
    def of(cls, call: relax.Call | None, axes: int) -> _Window:
        if call is None:
            return cls([1] * axes, [0] * 2 * axes, [1] * axes, 1)
        lists = (call.attrs.strides, call.attrs.padding, call.attrs.dilation)
        strides, padding, dilation = ([int(item) for item in items] for items in lists)
        return cls(strides, padding, dilation, int(call.attrs.groups))


def has_integer_kernel(call: relax.Call, weight: np.ndarray) -> bool:
    """Whether there is a good kernel for a convolution with these weights."""
    attributes, axes = call.attrs, weight.ndim - 2
    if (attributes.data_layout, attributes.kernel_layout) != _LAYOUTS[axes]:
        return False
    shape = static_shape(call.args[0])
    if axes != 2 and (shape is None or 0 in shape):  # kernels of open extents are those of images
        return False
    groups, (out_channels, in_channels) = int(attributes.groups), weight.shape[:2]
    if axes == 3:
        in_channels *= weight.shape[2]
    depthwise = in_channels == 1 and out_channels == groups
    whole = groups == 1 or (in_channels % 4 == 0 and out_channels // groups % 4 == 0)
    return depthwise or whole


def convolve(
    rewriter: IntegerMutator,
    value: Quantized,
    weight: np.ndarray,
    scale: np.ndarray,
    call: relax.Call | None = None,
    moved: relax.Expr | None = None,
) -> IntegerSum | None:
    """Emit an exact convolution of integers; None where a sum could leave int32.

    Parameters
    ----------
    value : Quantized
        NCHW, NCW or NCDHW.
    weight : np.ndarray
        OIHW, OIW or OIDHW, as :func:`tvm_ext.quantized.relax.values.as_bytes` gives them.
    scale : np.ndarray
        Of the weights, one for each output channel.
    call : relax.Call, optional
        The convolution whose strides, padding, dilation and groups to take.
    moved : relax.Expr, optional
        One int32, known at run time, that the zero point is larger by.
    """
    window = _Window.of(call, weight.ndim - 2)
    data, rows = value.data, weight.reshape(len(weight), -1)
    shift = -value.zero_point * rows.sum(axis=1, dtype=np.int64)
    if not rewriter.fits(rows, shift):
        return None
    if any(window.padding) and moved is not None:
        point = _zero_point(rewriter, value, moved, weight.ndim - 2)
        data = _with_borders(rewriter, data, window.padding, point)
        window = replace(window, padding=[0] * len(window.padding))
    planes = None
    if weight.ndim == 5:
        data, weight, window, planes = _as_images(rewriter, data, weight, window, value.zero_point)
    if any(window.padding):
        data = _padded(rewriter, data, window.padding, value.zero_point)
    axes = weight.ndim - 2

    def convolved(kernel: np.ndarray) -> relax.Var:
        return rewriter.emit(
            _OPERATORS[axes](
                data, relax.const(kernel), strides=window.strides, padding=[0] * 2 * axes, dilation=window.dilation,
                groups=window.groups, out_dtype="int32",
            )
        )  # fmt: skip

    small, larger = split_bytes(weight)
    total = convolved(small)
    if larger.any():
        # What weights are larger by multiplies the sum of the window, which all channels of a group share.
        ones = np.ones((len(weight) if window.groups > 1 else 1, *weight.shape[1:]), np.int8)
        factor = relax.const(larger.astype(np.int32).reshape(1, -1, *[1] * axes))
        total = rewriter.emit(relax.op.add(total, rewriter.emit(relax.op.multiply(convolved(ones), factor))))
    if moved is not None:
        # What the sum has too much; wraps around as the sum does, if at all, and the difference fits.
        sums = relax.const(rows.sum(axis=1, dtype=np.int32).reshape(1, -1, *[1] * axes))
        excess = rewriter.emit(relax.op.multiply(relax.op.reshape(moved, (1, 1, *[1] * axes)), sums))
        total = rewriter.emit(relax.op.subtract(total, excess))
    steps = (np.float32(value.scale) * scale.astype(np.float32)).astype(np.float32)
    return IntegerSum(total, steps, shift, rows, planes=planes)


def _as_images(
    rewriter: IntegerMutator, data: relax.Expr, weight: np.ndarray, window: _Window, outside: int
) -> tuple[relax.Expr, np.ndarray, _Window, tuple[int, int]]:
    """Lay the planes of volumes out as images: these, their weights and window, and how many of each volume."""
    images = rewriter.builder_.call_te(
        tap_planes, data, taps=weight.shape[2], step=window.strides[0], dilation=window.dilation[0],
        padding=tuple(window.padding[::3]), outside=outside,
        primfunc_name_hint="tap_planes", primfunc_attrs={"op_pattern": OPAQUE},
    )  # fmt: skip
    batch = int(data.ty.shape[0])
    kernel = weight.reshape(len(weight), -1, *weight.shape[3:])
    top_left, bottom_right = window.padding[1:3], window.padding[4:]
    plain = replace(
        window, strides=window.strides[1:], padding=[*top_left, *bottom_right], dilation=window.dilation[1:]
    )
    return rewriter.emit(images), kernel, plain, (batch, int(images.ty.shape[0]) // batch)


def _zero_point(rewriter: IntegerMutator, value: Quantized, moved: relax.Expr, axes: int) -> relax.Var:
    """Emit the zero point of a value as one uint8."""
    whole = rewriter.emit(relax.op.add(moved, relax.const(value.zero_point, "int32")))
    return rewriter.emit(relax.op.astype(relax.op.reshape(whole, (1, 1, *[1] * axes)), "uint8"))


def _padded(rewriter: IntegerMutator, data: relax.Expr, padding: Sequence[int], outside: int) -> relax.Var:
    """Put a number around an image, or in front of a row and behind it."""
    widths = [0, 0, 0, 0, *(int(width) for pair in _pairs(padding) for width in pair)]
    return rewriter.emit(relax.op.nn.pad(data, widths, "constant", float(outside)))


def _pairs(padding: Sequence[int]) -> list[tuple[int, int]]:
    """Give the padding before and behind each axis; TVM writes all those before, then all those behind."""
    return list(zip(padding[: len(padding) // 2], padding[len(padding) // 2 :], strict=True))


def _with_borders(
    rewriter: IntegerMutator, data: relax.Expr, padding: Sequence[int], zero_point: relax.Var
) -> relax.Var:
    """Put a zero point that is known at run time around an image, whose height and width may be open."""
    picture = (1, 1, *data.ty.shape.values[2:])
    if static_shape(data) is None:
        ones = rewriter.emit(relax.op.full(picture, relax.const(1, "uint8")))
        inside = rewriter.emit(relax.op.astype(_padded(rewriter, ones, padding, 0), "bool"))
    else:
        ones = np.ones([int(extent) for extent in picture], bool)
        inside = relax.const(np.pad(ones, [(0, 0), (0, 0), *_pairs(padding)]), "bool")
    return rewriter.emit(relax.op.where(inside, _padded(rewriter, data, padding, 0), zero_point))
