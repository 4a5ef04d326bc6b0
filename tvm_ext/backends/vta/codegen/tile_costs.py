"""Estimate the cycles of many tiles of a convolution at once: what a tuner begins with, before anything is counted.

The work of each module is in closed form. What of it goes on side by side follows from how many tiles of a kind there
is room for.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tvm_ext.backends.vta.codegen.geometry import Conv2d
from tvm_ext.backends.vta.codegen.resources import Tiles
from tvm_ext.backends.vta.codegen.tile_choice import ACCUMULATOR_INSTRUCTIONS, COPIES, LEAST_OUTPUTS
from tvm_ext.backends.vta.config import VTAConfig
from tvm_ext.backends.vta.timing.costs import CycleCosts

Counts = NDArray[np.int64]
Floats = NDArray[np.float64]

ALU_OPERATIONS = 3
"""Shift and two bounds."""

INPUT_AXES, WEIGHT_AXES = (0, 2, 3), (1,)
"""Loops over tiles (batches, output blocks, rows, columns) that change the inputs of a tile, and its weights."""

IN_TURNS = 0.3
"""Part of the transfers that is not hidden where virtual threads take turns on the tiles in use; 1 where there is room
for one tile alone, 0 where there is room for two. Of 0.5, 0.3, 0.15 and 0 it placed the best configurations of 33
layers on sixteen designs highest."""


def estimate_tiles(
    config: VTAConfig, costs: CycleCosts, conv: Conv2d, tiles: Tiles, outer: Counts, orders: Counts
) -> Floats:
    """Estimate cycles (n) of tiles, whether they fit or not.

    Parameters
    ----------
    tiles : Tiles
    outer : array
        Turns of the loops over tiles (n x axes).
    orders : array
        These loops, outermost first, by axis (n x axes).
    """
    rows = (tiles.rows - 1) * (conv.vertical.stride // conv.vertical.loaded_every) + conv.vertical.kernel
    columns = (tiles.columns - 1) * conv.horizontal.stride + conv.horizontal.kernel
    parts = -(-conv.in_blocks // tiles.in_blocks)
    threads = tiles.out_threads * tiles.row_threads
    number = outer.prod(axis=1) * threads

    blocks = tiles.batches * tiles.in_blocks
    input_cycles = blocks * (costs.read_latency + rows * _row_cycles(columns * config.inp_bytes, costs))
    weight_row = tiles.in_blocks * conv.window * config.wgt_bytes
    at_once = tiles.in_blocks == conv.in_blocks  # weights of neighbouring output blocks lie behind one another
    weight_cycles = costs.read_latency + np.where(
        at_once, _row_cycles(weight_row * tiles.out_blocks, costs), tiles.out_blocks * _row_cycles(weight_row, costs)
    )
    outputs = tiles.batches * tiles.out_blocks * tiles.rows * tiles.columns
    row_bytes = tiles.columns * config.out_bytes
    bursts = np.where(
        tiles.columns == conv.out_width,
        1 + tiles.rows * row_bytes // costs.burst_bytes,
        tiles.rows * (1 + row_bytes // costs.burst_bytes),
    )
    beats = -(-config.out_bytes // costs.bus_bytes) + costs.store_element
    store_cycles = tiles.batches * tiles.out_blocks * bursts * costs.store_burst + outputs * beats

    sizes = {"inp": blocks * rows * columns, "wgt": tiles.out_blocks * tiles.in_blocks * conv.window, "acc": outputs}
    fits_twice = {name: COPIES * size <= config.depths[name] for name, size in sizes.items()}
    loads = {
        "inp": _loads(tiles.row_threads, fits_twice["inp"], parts, outer, orders, INPUT_AXES) * input_cycles,
        "wgt": _loads(tiles.out_threads, fits_twice["wgt"], parts, outer, orders, WEIGHT_AXES) * weight_cycles,
    }
    users = {"inp": tiles.row_threads, "wgt": tiles.out_threads, "acc": threads}
    apart = {name: np.where(users[name] > 1, IN_TURNS, np.where(twice, 0.0, 1.0)) for name, twice in fits_twice.items()}

    products = parts * np.where(outputs <= LEAST_OUTPUTS, conv.window * tiles.in_blocks, 1)
    total = conv.batches * conv.out_blocks * conv.out_height * conv.out_width
    compute = conv.steps + total * (1 + ALU_OPERATIONS * costs.alu_immediate)
    compute = compute + number * (ACCUMULATOR_INSTRUCTIONS + products) * costs.pipeline
    load, waiting = loads["inp"] + loads["wgt"], sum(apart[name] * loads[name] for name in loads)
    busy = np.maximum(compute, load - waiting) + waiting
    store = number * store_cycles
    stored = np.maximum(busy, (1 - apart["acc"]) * store) + apart["acc"] * store
    cycles: Floats = (stored + input_cycles + weight_cycles + store_cycles).astype(np.float64)
    return cycles


def _row_cycles(nbytes: Counts, costs: CycleCosts) -> Counts:
    """Give the cycles of the bus (n) for so many bytes side by side."""
    cycles: Counts = -(-nbytes // costs.bus_bytes) + 1 + nbytes // costs.burst_bytes
    return cycles


def _loads(
    threads: Counts, fits_twice: NDArray[np.bool_], parts: Counts, outer: Counts, orders: Counts, axes: Sequence[int]
) -> Counts:
    """Count how often tiles are loaded (n): one that is still there is not loaded again.

    Tiles of a kind take turns on two places, or on one where there is no room, or on as many as threads use at once.

    Parameters
    ----------
    axes : sequence of int
        Loops that change the tile.
    """
    places = np.maximum(np.where(fits_twice, COPIES, 1), threads)
    loads, in_turns = threads * parts, threads * parts
    for place in reversed(range(orders.shape[1])):
        axis = orders[:, place]
        count = outer[np.arange(len(outer)), axis]
        changes = np.isin(axis, axes)
        loads = np.where(changes | (in_turns > places), loads * count, loads)
        in_turns = np.where(changes, in_turns * count, in_turns)
    return loads
