"""Convolutions and matrix products as programs: tiles, kept on the chip as long as they are of use.

The loops are those of upstream's schedules: micro-ops run over a row of outputs inside the window, the hardware's loops
over output rows and output blocks.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from tvm_ext.vta.isa import AluOpcode, MemoryType
from tvm_ext.vta.loop_nests import Steps
from tvm_ext.vta.program import ProgramBuilder
from tvm_ext.vta.tiles import Conv2d, Tile, TileSlots


@dataclass(frozen=True)
class Requantize:
    """What becomes of a sum: shifted right, then clipped, then stored as int8."""

    shift: int
    low: int = -128
    high: int = 127


@dataclass(frozen=True)
class Residual:
    """What is added to the sums on the chip: int8 data of the output's form, times a power of two.

    GEMM adds it, as products with a multiple of the identity: an eighth of the cycles that ALU would take with
    data that has to be widened first, and every board can do it.

    Attributes
    ----------
    data, weights : str
        Buffers: the data, packed like the output; one element of weights, the identity times a power of two.
    first_shift : int
        How far the sums are shifted right before the addition; no more than :attr:`Requantize.shift`, of which it is a
        part. Shifts round down, so that this gives what adding the data times as much more would give.
    repeats : int
        How often the products are added.
    """

    data: str
    weights: str
    first_shift: int = 0
    repeats: int = 1


def conv2d(
    builder: ProgramBuilder,
    conv: Conv2d,
    tile: Tile,
    requantize: Requantize,
    data: str,
    weights: str,
    bias: str,
    output: str,
    bias_inputs: str | None = None,
    most_slots: int = 2,
    residual: Residual | None = None,
) -> None:
    """Add a convolution to a program.

    Parameters
    ----------
    builder : ProgramBuilder
    conv : Conv2d
    tile : Tile
        Extents larger than the convolution's are cut down.
    requantize : Requantize
    data, weights, bias, output : str
        Buffers in the layouts of ``tvm_ext.vta.layouts``.
    bias_inputs : str, optional
        Buffer of the inputs that go with a bias written as weights.
    most_slots : int
        Tiles of a kind that are on the chip at once, 2 for double buffering.
    residual : Residual, optional
        What is added to the sums.

    Raises
    ------
    VTAProgramError
        If a tile does not fit its memory; the message names the memory.
    """
    tiles = TileSlots(builder.config, conv, tile, most_slots, bias_inputs is not None, residual is not None)
    identity = 0 if bias_inputs is None else conv.out_blocks
    if bias_inputs is None:
        builder.load(MemoryType.ACC, bias, 0, 0, conv.out_blocks)
    else:
        builder.load(MemoryType.WGT, bias, 0, 0, conv.out_blocks)
        builder.load(MemoryType.INP, bias_inputs, 0, 0, 1)
    if residual is not None:
        builder.load(MemoryType.WGT, residual.weights, 0, identity, 1)
    for number, (o, n, y, x) in enumerate(tiles.origins()):
        group = o // conv.group_out
        extent = Tile(
            min(tiles.rows, conv.out_height - y), min(tiles.columns, conv.out_width - x),
            min(tiles.out_blocks, (group + 1) * conv.group_out - o), tiles.in_blocks,
        )  # fmt: skip
        pixels = extent.rows * extent.columns
        acc, _ = tiles.acc.find(number)
        every = acc + np.arange(extent.out_blocks * pixels)[:, None] * np.array([1, 0])
        builder.gemm(np.pad(every, ((0, 0), (0, 1))), reset=True)
        for i in range(0, conv.group_in, tiles.in_blocks):
            inner = min(tiles.in_blocks, conv.group_in - i)
            first_in = group * conv.group_in + i
            inp, missing = tiles.inp.find((n, y, x, first_in))
            if missing:
                load_inputs(builder, conv, tiles, extent, (n, first_in, inner, y, x), inp, data)
            wgt, missing = tiles.wgt.find((o, i))
            if missing:
                window = conv.window
                first = (o * conv.group_in + i) * window
                builder.load(
                    MemoryType.WGT, weights, first, wgt, inner * window, extent.out_blocks, conv.group_in * window
                )
            for steps, results in _conv_steps(conv, tiles, (extent, y, x), inner, acc, inp, wgt):
                # Hardware may not add to what one of the two steps before wrote, unless another instruction did.
                for part in [steps] if results > 2 else np.split(steps, len(steps) // results):
                    builder.gemm(part)
        with_bias = np.stack([every[:, 0], o + np.arange(extent.out_blocks * pixels) // pixels], axis=1)
        if bias_inputs is None:
            builder.alu(AluOpcode.ADD, with_bias)
        else:
            builder.gemm(np.insert(with_bias, 1, 0, axis=1))
        places = [
            (((n * conv.out_blocks + o + c) * conv.out_height) + y) * conv.out_width + x
            for c in range(extent.out_blocks)
        ]
        left = requantize
        if residual is not None:
            inp, _ = tiles.residual.find(number)
            for c, place in enumerate(places):
                base = inp + c * pixels
                builder.load(MemoryType.INP, residual.data, place, base, extent.columns, extent.rows, conv.out_width)
            _shift(builder, residual.first_shift, every[:, :1])
            added = np.stack([every[:, 0], inp + np.arange(len(every)), np.full(len(every), identity)], axis=1)
            for _ in range(residual.repeats):
                builder.gemm(added)
            left = replace(requantize, shift=requantize.shift - residual.first_shift)
        _finish(builder, left, with_bias[:, 0])
        for c, place in enumerate(places):
            builder.store(output, place, acc + c * pixels, extent.columns, extent.rows, conv.out_width)


def _finish(builder: ProgramBuilder, requantize: Requantize, accumulators: Steps) -> None:
    steps = accumulators[:, None]
    _shift(builder, requantize.shift, steps)
    builder.alu(AluOpcode.MAX, steps, requantize.low)
    builder.alu(AluOpcode.MIN, steps, requantize.high)


def _shift(builder: ProgramBuilder, distance: int, steps: Steps) -> None:
    # A distance has five bits in some hardware, the sign included.
    for part in [15] * (distance // 15) + [distance % 15]:
        if part:
            builder.alu(AluOpcode.SHR, steps, part)


def load_inputs(
    builder: ProgramBuilder,
    conv: Conv2d,
    tiles: TileSlots,
    extent: Tile,
    origin: tuple[int, int, int, int, int],
    sram_base: int,
    data: str,
) -> None:
    """Load the inputs that a tile of outputs sees, block by block; what lies outside of the image is zero."""
    n, i, inner, y, x = origin
    step = conv.vertical.loaded_every
    top, in_rows = conv.vertical.seen(y, extent.rows)
    left, in_columns = conv.horizontal.seen(x, extent.columns)
    # Where rows are left out the window has one row, and there is no padding.
    above, before = max(0, -top), max(0, -left)
    below = max(0, top + in_rows - conv.height) if step == 1 else 0
    after = max(0, left + in_columns - conv.width)
    for c in range(inner):
        first = ((n * conv.in_blocks + i + c) * conv.height + top + above) * conv.width + left + before
        base = sram_base + c * tiles.in_rows * tiles.in_columns
        pads = (above, below, before, after)
        builder.load(
            MemoryType.INP, data, first, base, in_columns - before - after, in_rows - above - below,
            conv.width * step, pads,
        )  # fmt: skip


def _conv_steps(
    conv: Conv2d, tiles: TileSlots, place: tuple[Tile, int, int], inner: int, acc: int, inp: int, wgt: int
) -> Iterator[tuple[Steps, int]]:
    """List the steps of a tile, and in how many results they end, for outputs that see the same places of the window.

    Outermost loop first: output block, row; input block, window; column. Narrow tiles have the input block and the
    window outermost.
    """
    extent, top, left = place
    _, in_columns = conv.horizontal.seen(left, extent.columns)
    across = list(conv.horizontal.phases(left, extent.columns))
    for rows, row_taps, in_row in conv.vertical.phases(top, extent.rows):
        for columns, column_taps, in_column in across:
            sizes = (len(row_taps), len(column_taps))
            if len(columns) > 2:
                o, y, c, ky, kx, x = np.ogrid[
                    : extent.out_blocks, : len(rows), :inner, : sizes[0], : sizes[1], : len(columns)
                ]
            else:
                c, ky, kx, o, y, x = np.ogrid[
                    :inner, : sizes[0], : sizes[1], : extent.out_blocks, : len(rows), : len(columns)
                ]
            dst = acc + (o * extent.rows + rows[y]) * extent.columns + columns[x]
            src = inp + c * tiles.in_rows * tiles.in_columns + in_row[y, ky] * in_columns + in_column[x, kx]
            place_in_window = row_taps[ky] * conv.horizontal.kernel + column_taps[kx]
            weight = wgt + (o * inner + c) * conv.window + place_in_window
            steps = np.stack([part.ravel() for part in np.broadcast_arrays(dst, src, weight)], axis=1)
            yield steps, extent.out_blocks * len(rows) * len(columns)


def matmul(
    builder: ProgramBuilder,
    rows: int,
    in_blocks: int,
    out_blocks: int,
    tile: Tile,
    requantize: Requantize,
    data: str,
    weights: str,
    bias: str,
    output: str,
) -> None:
    """Add a matrix product: packed data (rows, in_blocks, B, k) times weights (out_blocks, in_blocks, m, k)^T.

    The parameters are those of :func:`conv2d`; a tile's ``columns`` are rows of the data, its ``rows`` are not used.

    Raises
    ------
    VTAProgramError
        If a tile does not fit its memory.
    """
    columns, blocks = min(tile.columns, rows), min(tile.out_blocks, out_blocks)
    depth = min(tile.in_blocks, in_blocks)
    as_conv = Conv2d(1, in_blocks, out_blocks, 1, rows, 1)
    tiles = TileSlots(builder.config, as_conv, Tile(1, columns, blocks, depth), 2)
    builder.load(MemoryType.ACC, bias, 0, 0, out_blocks)
    for number, (o, r) in enumerate(itertools.product(range(0, out_blocks, blocks), range(0, rows, columns))):
        width, height = min(columns, rows - r), min(blocks, out_blocks - o)
        acc, _ = tiles.acc.find(number)
        every = acc + np.arange(width * height)
        builder.gemm(np.stack([every, 0 * every, 0 * every], axis=1), reset=True)
        for k in range(0, in_blocks, depth):
            inner = min(depth, in_blocks - k)
            inp, missing = tiles.inp.find((r, k))
            if missing:
                builder.load(MemoryType.INP, data, r * in_blocks + k, inp, inner, width, in_blocks)
            wgt, missing = tiles.wgt.find((o, k))
            if missing:
                builder.load(MemoryType.WGT, weights, o * in_blocks + k, wgt, inner, height, in_blocks)
            b, i, x = np.ogrid[:height, :inner, :width]
            parts = np.broadcast_arrays(acc + x * height + b, inp + x * inner + i, wgt + b * inner + i)
            builder.gemm(np.stack([part.ravel() for part in parts], axis=1))
        builder.alu(AluOpcode.ADD, np.stack([every, o + np.arange(width * height) % height], axis=1))
        _finish(builder, requantize, every)
        builder.store(output, r * out_blocks + o, acc, height, width, out_blocks)
