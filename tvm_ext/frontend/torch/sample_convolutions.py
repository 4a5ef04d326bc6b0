"""Convolutions in an open number of groups: with weights of its own for each sample, the batch being the groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

import tvm
from tvm import relax

from tvm_ext.frontend.relax.columns import picture_of_columns, window_steps


@dataclass(frozen=True)
class GroupedWindows:
    """What PyTorch says of a convolution: for each axis but that of the groups.

    Attributes
    ----------
    groups : tvm.ir.Expr
    strides, pads, dilations : sequence of int
    further : sequence of int
        What is added at the end of the results of a transposed one.
    """

    groups: Any
    strides: Sequence[int]
    pads: Sequence[int]
    dilations: Sequence[int]
    further: Sequence[int]


def convolution_by_columns(bb: relax.BlockBuilder, data: Any, weight: Any, windows: GroupedWindows) -> Any:
    """Emit a convolution as a batch of matrix products, one for each group, of what the windows hold as columns.

    Relax has operators for a number of groups that is known only.

    Raises
    ------
    NotImplementedError
        If an extent of the picture, or the channels of a group, are open.
    """
    emit, block = bb.emit, _known(weight, 2)
    batch, inputs, *_ = data.ty.shape
    batches = emit(relax.op.reshape(data, [batch * windows.groups, _part(inputs, windows.groups), *_known(data, 2)]))
    outputs = _part(weight.ty.shape[0], windows.groups)
    matrix = emit(relax.op.reshape(weight, [windows.groups, outputs, int(weight.ty.shape[1]) * prod(block)]))
    padded = emit(relax.op.nn.pad(batches, [0, 0, 0, 0, *(pad for pad in windows.pads for _ in range(2))]))
    steps = window_steps(_known(data, 2), block, windows.strides, windows.dilations, list(windows.pads) * 2)
    axes = list(range(2, 2 + len(block)))
    spans = [(count - 1) * stride + 1 for count, stride in zip(steps, windows.strides, strict=True)]
    taps = []
    for place in product(*map(range, block)):
        begins = [element * dilation for element, dilation in zip(place, windows.dilations, strict=True)]
        ends = [begin + span for begin, span in zip(begins, spans, strict=True)]
        taps.append(emit(relax.op.strided_slice(padded, axes, begins, ends, list(windows.strides))))
    columns = emit(relax.op.stack(taps, 2))
    columns = emit(relax.op.reshape(columns, [*_samples(batch, windows.groups), int(matrix.ty.shape[2]), prod(steps)]))
    result = emit(relax.op.matmul(matrix, columns, out_dtype=str(data.ty.dtype)))
    return emit(relax.op.reshape(result, [batch, windows.groups * outputs, *steps]))


def transposed_convolution_by_columns(bb: relax.BlockBuilder, data: Any, weight: Any, windows: GroupedWindows) -> Any:
    """Emit a transposed convolution: products that are the columns of a picture; see :func:`convolution_by_columns`."""
    emit, block, extents = bb.emit, _known(weight, 2), _known(data, 2)
    batch, inputs = list(data.ty.shape)[:2]
    channels, outputs = _part(inputs, windows.groups), int(weight.ty.shape[1])
    matrix = emit(relax.op.reshape(weight, [windows.groups, channels, outputs * prod(block)]))
    matrix = emit(relax.op.permute_dims(matrix, [0, 2, 1]))
    pixels = emit(relax.op.reshape(data, [*_samples(batch, windows.groups), channels, prod(extents)]))
    columns = emit(relax.op.matmul(matrix, pixels, out_dtype=str(data.ty.dtype)))
    columns = emit(relax.op.reshape(columns, [batch * windows.groups, outputs * prod(block), prod(extents)]))
    behind = [pad - extra for pad, extra in zip(windows.pads, windows.further, strict=True)]
    picture = [
        (extent - 1) * stride + dilation * (size - 1) + 1 - before - after
        for extent, stride, dilation, size, before, after in zip(
            extents, windows.strides, windows.dilations, block, windows.pads, behind, strict=True
        )
    ]
    pads = [*windows.pads, *behind]
    result = picture_of_columns(bb, columns, picture, block, windows.strides, windows.dilations, pads)
    return emit(relax.op.reshape(result, [batch, windows.groups * outputs, *picture]))


def _samples(batch: Any, groups: Any) -> list[Any]:
    """Give the axes in front of a matrix for each group: one batch is no axis of its own."""
    return [groups] if isinstance(batch, tvm.tirx.IntImm) and int(batch) == 1 else [batch, groups]


def _part(extent: Any, groups: Any) -> int:
    part = tvm.sym.Analyzer().simplify(tvm.tirx.floordiv(extent, groups))
    if not isinstance(part, tvm.tirx.IntImm):
        raise NotImplementedError(f"the number of groups is an open size, {groups}, and so is what a group has: {part}")
    return int(part)


def _known(value: Any, first: int) -> list[int]:
    extents = list(value.ty.shape)[first:]
    if not all(isinstance(extent, tvm.tirx.IntImm) for extent in extents):
        raise NotImplementedError("the number of groups is an open size, and so are extents of the picture")
    return [int(extent) for extent in extents]
