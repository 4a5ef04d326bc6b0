"""Maxima over windows as programs: GEMM widens the inputs, ALU compares them."""

from __future__ import annotations

import numpy as np

from tvm_ext.errors import VTAProgramError
from tvm_ext.vta.config import VTAConfig
from tvm_ext.vta.isa import AluOpcode, MemoryType
from tvm_ext.vta.loop_nests import Steps
from tvm_ext.vta.operators import load_inputs
from tvm_ext.vta.program import ProgramBuilder
from tvm_ext.vta.tiles import Conv2d, Slots, Tile, TileSlots


def pooling_tile(config: VTAConfig, pool: Conv2d) -> Tile:
    """Return the largest tile of whole rows of which two fit the memories, or of parts of rows.

    Raises
    ------
    VTAProgramError
        If the window of one output does not fit.
    """
    for columns in range(pool.out_width, 0, -1):
        for rows in range(pool.out_height, 0, -1):
            in_rows, in_columns = pool.vertical.most_seen(rows), pool.horizontal.most_seen(columns)
            size = in_rows * in_columns
            if 2 * size <= config.depths["inp"] and 2 * (size + rows * columns) <= config.depths["acc"]:
                return Tile(rows, columns, 1, 1)
    raise VTAProgramError(f"a window of {pool.kernel} x {pool.kernel} does not fit the memories of VTA {config.name}")


def max_pool2d(builder: ProgramBuilder, pool: Conv2d, data: str, identity: str, output: str) -> None:
    """Add a maximum over windows to a program.

    Parameters
    ----------
    builder : ProgramBuilder
    pool : Conv2d
        Its geometry, a group a block. What lies outside of the image counts as zero, so with padding no input may be
        negative.
    data, output : str
        Packed buffers.
    identity : str
        Buffer of one element of weights, the identity.

    Raises
    ------
    VTAProgramError
        If the window is larger than the memories.
    """
    tile = pooling_tile(builder.config, pool)
    tiles = TileSlots(builder.config, pool, tile)
    size = tiles.in_rows * tiles.in_columns
    copies = Slots(builder.config.depths["acc"], size, 2, 2 * tile.rows * tile.columns)
    results = Slots(builder.config.depths["acc"], tile.rows * tile.columns, 2)
    builder.load(MemoryType.WGT, identity, 0, 0, 1)
    for number, (block, n, y, x) in enumerate(tiles.origins()):
        extent = Tile(min(tile.rows, pool.out_height - y), min(tile.columns, pool.out_width - x), 1, 1)
        (inp, _), (copy, _), (acc, _) = tiles.inp.find(number), copies.find(number), results.find(number)
        load_inputs(builder, pool, tiles, extent, (n, block, 1, y, x), inp, data)
        (_, in_rows), (_, in_columns) = pool.vertical.seen(y, extent.rows), pool.horizontal.seen(x, extent.columns)
        _widen(builder, np.arange(in_rows * in_columns), copy, inp)
        row, column = np.ogrid[: extent.rows, : extent.columns]
        outputs = acc + row * extent.columns + column
        step = pool.stride // pool.vertical.loaded_every
        first = row * step * in_columns + column * pool.stride
        _widen(builder, first.ravel(), acc, inp)
        for tap in range(min(1, pool.kernel - 1), pool.kernel**2):
            seen = copy + first + tap // pool.kernel * in_columns + tap % pool.kernel
            builder.alu(AluOpcode.MAX, np.stack([outputs.ravel(), seen.ravel()], axis=1))
        builder.store(output, _place(pool, n, block, y, x), acc, extent.columns, extent.rows, pool.out_width)


def _widen(builder: ProgramBuilder, seen: Steps, acc: int, inp: int) -> None:
    """Copy inputs to accumulators, one after the other."""
    to = acc + np.arange(len(seen))
    zeros = np.zeros(len(seen), np.int64)
    builder.gemm(np.stack([to, zeros, zeros], axis=1), reset=True)
    builder.gemm(np.stack([to, inp + seen, zeros], axis=1))


def _place(pool: Conv2d, n: int, block: int, y: int, x: int) -> int:
    return ((n * pool.out_blocks + block) * pool.out_height + y) * pool.out_width + x
