"""Converters of places in a tensor: a number, tensors of integers, a mask, those of ``torch.gather``."""

from __future__ import annotations

import math
from typing import Any

import torch
import tvm
from torch.fx import Node
from tvm import relax

from tvm_ext.frontend.torch.arguments import counted_from_start, size_tensor, static_size
from tvm_ext.frontend.torch.pieces import rows_of_mask
from tvm_ext.frontend.torch.promotion import dtype_of


def select(importer: Any, node: Node) -> Any:
    """``x[:, i]`` with ``i`` counted from the end if negative: a slice of one, and its dimension taken off."""
    data, axis, index = importer.env[node.args[0]], node.args[1], node.args[2]
    axis %= len(data.ty.shape)
    if not isinstance(data.ty.shape[axis], tvm.tirx.IntImm):  # a slice might be empty
        place = relax.const(index, "int64")
        if index < 0:
            place = importer.block_builder.emit(
                relax.op.add(size_tensor(importer.block_builder.emit, data, axis), place)
            )
        return importer.block_builder.emit(relax.op.take(data, place, axis, mode="clip"))
    start = index if index >= 0 else data.ty.shape[axis] + index
    part = importer.block_builder.emit(relax.op.strided_slice(data, [axis], [start], [start + 1]))
    return importer.block_builder.emit(relax.op.squeeze(part, [axis]))


def index_tensors(importer: Any, node: Node) -> Any:
    """``x[i, :, j]`` with tensors as indices: one gather of positions in the product of the indexed dimensions.

    As in numpy, index tensors are broadcast against each other and may be negative. Their dimensions take the place of
    the indexed ones if these stand side by side, else they come first.
    """
    emit = importer.block_builder.emit
    data = importer.env[node.args[0]]
    axes = [axis for axis, index in enumerate(node.args[1]) if index is not None]
    if any(dtype_of(node.args[1][axis]) in (torch.bool, torch.uint8) for axis in axes):
        if len(axes) > 1:
            raise NotImplementedError("a mask beside other indices is not supported; write its places by nonzero")
        return rows_of_mask(importer, node)
    wanted = node.meta["val"].shape
    if any(type(extent) is int and not extent for extent in wanted) and all(type(extent) is int for extent in wanted):
        return emit(relax.op.zeros(tuple(wanted), str(data.ty.dtype)))  # for Relax, 0 in a shape is another extent
    sizes = [size_tensor(emit, data, axis) for axis in axes]
    indices = [
        counted_from_start(emit, importer.env[node.args[1][axis]], size) for axis, size in zip(axes, sizes, strict=True)
    ]
    if len(axes) == 1:
        return emit(relax.op.take(data, indices[0], axes[0], mode="clip"))
    position = indices[0]
    for index, size in zip(indices[1:], sizes[1:], strict=True):
        scaled = emit(relax.op.multiply(position, size))
        position = emit(relax.op.add(scaled, index))
    rank = len(data.ty.shape)
    rest = [axis for axis in range(rank) if axis not in axes]
    leading = emit(relax.op.permute_dims(data, [*axes, *rest]))
    dims = data.ty.shape
    flat = emit(relax.op.reshape(leading, [math.prod(dims[axis] for axis in axes), *(dims[axis] for axis in rest)]))
    taken = emit(relax.op.take(flat, position, 0, mode="clip"))
    if axes != list(range(axes[0], axes[-1] + 1)):
        return taken
    broadcast = len(position.ty.shape)
    before = [broadcast + place for place in range(axes[0])]
    after = [broadcast + place for place in range(axes[0], len(rest))]
    return emit(relax.op.permute_dims(taken, [*before, *range(broadcast), *after]))


def gather(importer: Any, node: Node) -> Any:
    """``torch.gather``; an index out of range reads the nearest element instead of foreign memory."""
    emit = importer.block_builder.emit
    data, axis, index = importer.env[node.args[0]], node.args[1], importer.env[node.args[2]]
    axis %= len(data.ty.shape)
    index = index if str(index.ty.dtype) == "int64" else emit(relax.op.astype(index, "int64"))
    if isinstance(data.ty.shape[axis], tvm.tirx.IntImm):
        bounded = emit(relax.op.clip(index, 0, static_size(data, axis) - 1))
    else:
        last = emit(relax.op.subtract(size_tensor(emit, data, axis), relax.const(1, "int64")))
        bounded = emit(relax.op.maximum(emit(relax.op.minimum(index, last)), relax.const(0, "int64")))
    return emit(relax.op.gather_elements(data, bounded, axis))
