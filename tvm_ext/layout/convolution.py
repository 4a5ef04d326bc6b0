"""How convolutions of floats work on the blocked layout; the rules are listed in :mod:`tvm_ext.layout.rules`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import tvm
from tvm import relax

from tvm_ext.layout.blocked import Blocked, BlockedLayoutMutator, channel_block, is_better_turned, turn_geometry
from tvm_ext.layout.lanes import ZERO
from tvm_ext.layout.winograd import winograd_convolution
from tvm_ext.relax_utils import OUT_ELEMENTWISE, open_shape, read_only, static_shape
from tvm_ext.schedules.compute.bfloat16 import PAIR, pairs
from tvm_ext.schedules.compute.convolution import convolution, depthwise_convolution, output_extent
from tvm_ext.schedules.compute.layout import turn
from tvm_ext.schedules.compute.open_convolution import open_convolution, open_depthwise, simple
from tvm_ext.schedules.compute.packed_weights import pack_depthwise_weight, pack_weight
from tvm_ext.schedules.compute.pixel_convolution import PixelCopy, pixel_convolution
from tvm_ext.schedules.compute.transposed_convolution import transposed_as_convolution, transposed_convolution
from tvm_ext.schedules.cpu.conv_tile import computed_chunks, computed_pixels, computed_width
from tvm_ext.schedules.cpu.machine import Machine
from tvm_ext.schedules.cpu.open_convolution import open_padding
from tvm_ext.schedules.cpu.window import computed_strip_width

_LAYOUTS = {
    "relax.nn.conv1d": ("NCW", "OIW"),
    "relax.nn.conv2d": ("NCHW", "OIHW"),
    "relax.nn.conv3d": ("NCDHW", "OIDHW"),
    "relax.nn.conv2d_transpose": ("NCHW", "IOHW"),
}
"""Operator -> layouts of data and weight that the rules take."""


def _known_weight(call: relax.Call) -> np.ndarray | None:
    """Weight of a float32 convolution that a rule can take."""
    data, weight = call.args
    shapes = open_shape(data), open_shape(call)
    if (
        any(shape is None or not isinstance(shape[1], int) or _is_empty(shape) for shape in shapes)
        or not isinstance(weight, tvm.ir.GenericConst)
        or (call.attrs.data_layout, call.attrs.kernel_layout) != _LAYOUTS[call.op.name]
        or str(data.ty.dtype) != "float32"
        or str(call.ty.dtype) != "float32"
    ):
        return None
    return read_only(weight.value)


def _is_empty(shape: Sequence[Any]) -> bool:
    return any(isinstance(extent, int) and extent == 0 for extent in shape)


def _geometry(call: relax.Call) -> dict[str, list[int]]:
    """Strides, padding and dilation of a convolution; those of a 1-D one extended by an axis of height 1."""
    strides, padding, dilation = (
        [int(item) for item in items] for items in (call.attrs.strides, call.attrs.padding, call.attrs.dilation)
    )
    if call.op.name == "relax.nn.conv1d":
        return {"strides": [1, *strides], "padding": [0, padding[0], 0, padding[1]], "dilation": [1, *dilation]}
    return {"strides": strides, "padding": padding, "dilation": dilation}


def _input_block(rewriter: BlockedLayoutMutator, data: relax.Expr, channels: int) -> int:
    """Block in which a convolution over all channels reads its input."""
    known = rewriter.known(data)
    lanes = rewriter.machine.lanes("float32")
    if known:
        return known.block
    return 1 if channels < lanes // 2 else channel_block(channels, lanes)


def convolution_rule(rewriter: BlockedLayoutMutator, call: relax.Call) -> Blocked | None:
    """Convolve blocked tensors: depthwise, grouped, with Winograd's algorithm where it pays, or directly."""
    weight = _known_weight(call)
    if weight is None:
        return None
    data = call.args[0]
    shape = static_shape(data)
    if shape is None:
        return _open_convolution(rewriter, call, weight)
    known = rewriter.known(data)
    turned = is_better_turned(shape, known)
    geometry = turn_geometry(_geometry(call), turned)
    if weight.ndim == 3:
        weight = weight[:, :, None]
    if turned:
        weight = weight.swapaxes(-2, -1)
    lanes = rewriter.machine.lanes("float32")
    groups, in_channels, out_channels = int(call.attrs.groups), shape[1], weight.shape[0]
    padding_w = geometry["padding"][weight.ndim - 3], geometry["padding"][-1]
    width = turn(shape, turned)[-1]
    out_w = output_extent(width, weight.shape[-1], geometry["strides"][-1], *padding_w, geometry["dilation"][-1])
    if groups == in_channels == out_channels and groups > 1:
        block = known.block if known else channel_block(in_channels, lanes)
        source = rewriter.to_block(data, block, turned)
        packed = relax.const(pack_depthwise_weight(weight, block))
        var = rewriter.emit_kernel(
            depthwise_convolution, [source.var, packed], "depthwise_conv", OUT_ELEMENTWISE,
            computed_width=computed_strip_width(out_w, rewriter.machine.vector_registers), **geometry,
        )  # fmt: skip
        return Blocked(var, out_channels, len(shape), ZERO, turned)  # every lane by itself, times weights of zero
    blocks = _blocks(rewriter, data, groups, in_channels, out_channels)
    if blocks is None:
        return None
    block_in, block_out = blocks
    source = rewriter.to_block(data, block_in, turned)
    rounds = rewriter.bfloat16 and block_in % PAIR == 0
    if groups == 1:
        result = winograd_convolution(rewriter, source, weight, block_out, geometry)
        if result is not None:
            return Blocked(result, out_channels, len(shape), ZERO, turned)
    out_chunks = -(-out_channels // block_out)
    packed = pack_weight(weight, block_in, block_out, groups)
    if rounds:
        packed = pairs(packed, -2)
    reduction = prod(packed.shape[1 : weight.ndim + 1])  # an instruction takes a pair as if it were one
    pixels = _computed_pixels(rewriter.machine, turn(shape, turned), packed, reduction, geometry)
    if pixels:
        var = rewriter.emit_kernel(
            pixel_convolution, [source.var, relax.const(packed)], "conv", OUT_ELEMENTWISE, groups=groups,
            pixels=pixels, out_channels=out_channels, **geometry,
        )  # fmt: skip
        return Blocked(var, out_channels, len(shape), ZERO, turned)
    chunks = computed_chunks(out_w, out_chunks, rewriter.machine, reduction) if groups == 1 else out_chunks
    packed = np.pad(packed, [(0, chunks - out_chunks)] + [(0, 0)] * (packed.ndim - 1))
    var = rewriter.emit_kernel(
        convolution, [source.var, relax.const(packed)], "conv", OUT_ELEMENTWISE, groups=groups,
        computed_width=computed_width(out_w, chunks, rewriter.machine, reduction), out_channels=out_channels,
        **geometry,
    )  # fmt: skip
    return Blocked(var, out_channels, len(shape), ZERO, turned)


def _open_convolution(rewriter: BlockedLayoutMutator, call: relax.Call, weight: np.ndarray) -> Blocked | None:
    """Convolve a blocked tensor some of whose extents are only known at run time."""
    data, geometry = call.args[0], _geometry(call)
    shape = open_shape(data)
    assert shape is not None
    known = rewriter.known(data)
    if min(geometry["padding"]) < 0:
        return None
    if weight.ndim == 3:
        weight = weight[:, :, None]
    lanes = rewriter.machine.lanes("float32")
    groups, in_channels, out_channels = int(call.attrs.groups), shape[1], weight.shape[0]
    if groups == in_channels == out_channels and groups > 1:
        source = rewriter.to_block(data, known.block if known else channel_block(in_channels, lanes))
        packed = relax.const(pack_depthwise_weight(weight, source.block))
        var = rewriter.emit_kernel(open_depthwise, [source.var, packed], "depthwise_conv", OUT_ELEMENTWISE, **geometry)
        return Blocked(var, out_channels, len(shape), ZERO)
    blocks = _blocks(rewriter, data, groups, in_channels, out_channels)
    if blocks is None:
        return None
    source = rewriter.to_block(data, blocks[0])
    padding = geometry.pop("padding")
    padded = _padded(rewriter, source, padding) if any(padding) else source.var
    packed = pack_weight(weight, *blocks, groups)
    var = rewriter.emit_kernel(
        open_convolution, [padded, relax.const(packed)], "conv", OUT_ELEMENTWISE, groups=groups,
        out_channels=out_channels, **geometry,
    )  # fmt: skip
    return Blocked(var, out_channels, len(shape), ZERO)


def _padded(rewriter: BlockedLayoutMutator, source: Blocked, padding: list[int]) -> relax.Expr:
    """Put zeros around the images of a tensor of open extents."""
    batch, chunks, *spatial, block = source.shape
    rank = len(spatial)
    kernel = open_padding(int(chunks), int(block), padding, "float32", rewriter.machine)
    wide = [extent + padding[axis] + padding[rank + axis] for axis, extent in enumerate(spatial)]
    shape = relax.ShapeExpr([simple(extent) for extent in (batch, chunks, *wide, block)])
    callee = rewriter.builder_.add_func(kernel, "padding")
    return rewriter.builder_.emit(relax.call_tir(callee, [source.var], relax.TensorType(shape, "float32")))


def _blocks(
    rewriter: BlockedLayoutMutator, data: relax.Expr, groups: int, in_channels: int, out_channels: int
) -> tuple[int, int] | None:
    """Choose the blocks of input and output channels; None where groups divide no block."""
    lanes = rewriter.machine.lanes("float32")
    if groups == 1:
        return _input_block(rewriter, data, in_channels), channel_block(out_channels, lanes)
    sizes = [size for size in (lanes, lanes // 2, lanes // 4) if size > 1]
    block_out = next((size for size in sizes if out_channels // groups % size == 0), 0)
    block_in = next((size for size in (*sizes, 1) if in_channels // groups % size == 0), 0)
    return (block_in, block_out) if block_out else None


def _computed_pixels(
    machine: Machine,
    shape: Sequence[int],
    packed: np.ndarray,
    reduction: int,
    geometry: Mapping[str, Sequence[int]],
) -> int:
    """Pixels to compute of an image whose rows are not told apart; 0 where rows are better."""
    if len(shape) != 4:
        return 0
    rank, kernel, padding = 2, packed.shape[2:4], geometry["padding"]
    size = [
        output_extent(extent, *rest)
        for extent, *rest in zip(
            shape[2:], kernel, geometry["strides"], padding[:rank], padding[rank:], geometry["dilation"], strict=True
        )
    ]

    def copied_bytes(pixels: int) -> int:
        copy = PixelCopy.of(kernel, geometry["strides"], padding, geometry["dilation"], size, pixels)
        return 0 if copy is None else copy.bytes(shape[1])

    return computed_pixels((size[0], size[1]), packed.shape[0], reduction, copied_bytes, machine)


def transposed_convolution_rule(rewriter: BlockedLayoutMutator, call: relax.Call) -> Blocked | None:
    """Convolve once for each phase of the result, with the taps that meet it."""
    weight, out_shape = _known_weight(call), static_shape(call)
    geometry = _geometry(call)
    if weight is None or out_shape is None or static_shape(call.args[0]) is None:
        return None
    if int(call.attrs.groups) != 1 or geometry["dilation"] != [1, 1]:
        return None
    data, strides = call.args[0], geometry["strides"]
    shape = static_shape(data)
    assert shape is not None
    phases, first, counts = transposed_as_convolution(weight, strides, geometry["padding"], out_shape[2:])
    if any(count * stride != extent for count, stride, extent in zip(counts, strides, out_shape[2:], strict=True)):
        return None  # the last row or column of phases is not whole
    block_out = channel_block(weight.shape[1], rewriter.machine.lanes("float32"))
    source = rewriter.to_block(data, _input_block(rewriter, data, shape[1]))
    packed = np.stack([[pack_weight(phase, source.block, block_out) for phase in row] for row in phases])
    padding = [-offset for offset in first] + [
        count + taps + offset - extent - 1
        for count, taps, offset, extent in zip(counts, phases.shape[-2:], first, shape[2:], strict=True)
    ]
    var = rewriter.emit_kernel(
        transposed_convolution, [source.var, relax.const(packed)], "conv_transpose", OUT_ELEMENTWISE,
        padding=padding, out_shape=list(out_shape[2:]),
        computed_width=computed_width(counts[1], packed.shape[2], rewriter.machine), out_channels=weight.shape[1],
    )  # fmt: skip
    return Blocked(var, weight.shape[1], len(shape), ZERO)
