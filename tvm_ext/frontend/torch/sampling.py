"""Converters of what reads a tensor at other places: by a grid, resized with cubics, padded with itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import tvm
from torch.fx import Node
from tvm import relax

from tvm_ext.frontend.torch.arguments import extent_of, number_tensor
from tvm_ext.frontend.torch.assumptions import bounded
from tvm_ext.frontend.torch.open_resize import open_axes, resize_open
from tvm_ext.frontend.torch.promotion import operator_name

METHODS = ("bilinear", "nearest", "bicubic")
KEPT = (torch.ops.aten.upsample_bicubic2d.vec, torch.ops.aten._pad_circular.default)
"""Operators of here that torch would take apart into a hundred and more others."""

PADDINGS = ("zeros", "border", "reflection")


def grid_sample(importer: Any, node: Node) -> Any:
    """``F.grid_sample`` of pictures or volumes; TVM has the coordinates of the grid on axis 1, PyTorch on the last."""
    emit = importer.block_builder.emit
    data, grid = (importer.env[operand] for operand in node.args[:2])
    method, padding, corners = METHODS[node.args[2]], PADDINGS[node.args[3]], bool(node.args[4])
    rank = 5 if operator_name(node) == "grid_sampler_3d" else 4
    dtype = str(data.ty.dtype)
    half = dtype in ("float16", "bfloat16")  # whose places and shares TVM has in single precision, and so its result
    if half:
        data, grid = (emit(relax.op.astype(value, "float32")) for value in (data, grid))
    if padding == "reflection" and corners:
        data = _two_at_least(emit, data, rank)
    grid = emit(relax.op.permute_dims(grid, [0, rank - 1, *range(1, rank - 1)]))
    layout = {4: "NCHW", 5: "NCDHW"}[rank]
    found = emit(relax.op.image.grid_sample(data, grid, method, layout, padding, corners))
    return emit(relax.op.astype(found, dtype)) if half else found


def _two_at_least(emit: Callable[[Any], Any], data: Any, rank: int) -> Any:
    """Repeat the one element of an axis: TVM divides by the distance of its ends to reflect places beyond them."""
    for axis in range(2, rank):
        if data.ty.shape[axis] == 1:
            data = emit(relax.op.concat([data, data], axis))
    return data


def require_floats(node: Node) -> None:
    """Refuse to resize integers between their elements: PyTorch weighs those of uint8 in fixed point."""
    if not node.meta["val"].is_floating_point():
        raise NotImplementedError("integers are not interpolated; convert them to floats before")


def resize_bicubic(importer: Any, node: Node) -> Any:
    """Bicubic resizing: rows, then columns, each the weighted sum of four that are gathered."""
    require_floats(node)
    data, out, corners = importer.env[node.args[0]], node.meta["val"].shape[2:], bool(node.args[2])
    opened = open_axes(importer, node, 3)
    if opened is not None:
        return resize_open(importer.block_builder.emit, data, opened, "cubic", corners)
    scales = (node.args[3] if len(node.args) > 3 else node.kwargs.get("scale_factors")) or [None, None]
    for axis, (size, scale) in enumerate(zip(out, scales, strict=True), start=2):
        data = _cubic(importer.block_builder.emit, data, axis, int(size), scale, corners)
    return data


def _cubic(emit: Callable[[Any], Any], data: Any, axis: int, size: int, scale: float | None, corners: bool) -> Any:
    length, dtype = int(data.ty.shape[axis]), str(data.ty.dtype)
    real = np.dtype("float64" if dtype == "float64" else "float32")
    at = np.arange(size).astype(real)
    if corners:
        at = at * real.type((length - 1) / max(size - 1, 1))
    else:
        at = (at + real.type(0.5)) * real.type(1 / scale if scale else length / size) - real.type(0.5)
    first = np.floor(at)
    total = None
    for tap in range(-1, 3):
        weights = _cubic_weights(np.abs(at - first - real.type(tap))).reshape(
            -1, *[1] * (len(data.ty.shape) - axis - 1)
        )
        places = np.clip(first.astype("int64") + tap, 0, length - 1)
        taken = emit(relax.op.take(data, relax.const(places, "int64"), axis, mode="clip"))
        part = emit(relax.op.multiply(taken, relax.const(weights, dtype)))
        total = part if total is None else emit(relax.op.add(total, part))
    return total


def _cubic_weights(distance: np.ndarray) -> np.ndarray:
    """Keys' kernel of places less than two elements apart, with PyTorch's parameter."""
    a = -0.75
    near = ((a + 2) * distance - (a + 3)) * distance * distance + 1
    far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
    return np.where(distance <= 1, near, far)


def pad_circular(importer: Any, node: Node) -> Any:
    """Pad with the elements of the other end, or cut off where a width is negative: a gather along each axis."""
    emit, data, widths = importer.block_builder.emit, importer.env[node.args[0]], list(node.args[1])
    rank = len(data.ty.shape)
    for place in range(0, len(widths), 2):
        axis, (before, after) = rank - 1 - place // 2, widths[place : place + 2]
        length = data.ty.shape[axis]
        if any(isinstance(size, Node) for size in (before, after)) or not isinstance(length, tvm.tirx.IntImm):
            data = _turned(importer, data, axis, before, after)
        elif before or after:
            length = int(length)
            kept = length + min(before, 0) + min(after, 0)
            if kept < max(before, after, 1):
                raise NotImplementedError("more is padded than what is left of an axis has elements")
            places = np.arange(-max(before, 0), kept + max(after, 0)) % kept - min(before, 0)
            data = emit(relax.op.take(data, relax.const(places, "int64"), axis, mode="clip"))
    return data


def _turned(importer: Any, data: Any, axis: int, before: Any, after: Any) -> Any:
    """Pad an open axis with the elements of its other end, or by an open width."""
    emit, length = importer.block_builder.emit, data.ty.shape[axis]
    before, after = (extent_of(importer, width) for width in (before, after))
    analyzer = bounded(length, before, after, least=importer.least)
    if not (analyzer.can_prove(before >= 0) and analyzer.can_prove(after >= 0)):
        raise NotImplementedError("a width may be negative along an open axis")
    places = emit(relax.op.arange(0, analyzer.simplify(before + length + after), 1, "int64"))
    places = emit(relax.op.add(places, number_tensor(emit, analyzer.simplify(length - before))))  # from 0 on
    places = emit(relax.op.floor_mod(places, number_tensor(emit, length)))
    return emit(relax.op.take(data, places, axis, mode="clip"))
