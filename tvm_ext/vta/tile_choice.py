"""Choose the tile of a convolution: an estimate of its cycles for every candidate, without writing a program."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from functools import lru_cache

from tvm_ext.errors import VTAProgramError
from tvm_ext.vta.config import VTAConfig
from tvm_ext.vta.costs import CycleCosts
from tvm_ext.vta.tiles import Conv2d, Tile, TileSlots

# Instructions of a tile that only work on its accumulators: reset, bias, and the two bounds; each shift is one more.
ACCUMULATOR_INSTRUCTIONS = 4


@lru_cache(maxsize=512)
def choose_tile(
    conv: Conv2d, config: VTAConfig, costs: CycleCosts, bias_in_weights: bool = True, with_residual: bool = False
) -> Tile:
    """Return the tile with the fewest estimated cycles; among equals the one with the most outputs.

    Raises
    ------
    VTAProgramError
        If no tile fits the memories, or no row of zeros around the image fits the four bits that a load has for it.
    """
    best: tuple[int, int] | None = None
    found = None
    for tile in candidates(conv):
        try:
            slots = TileSlots(config, conv, tile, 2, bias_in_weights, with_residual)
        except VTAProgramError:
            continue
        key = (estimate_cycles(conv, slots, config, costs, with_residual), -tile.rows * tile.columns * tile.out_blocks)
        if best is None or key < best:
            best, found = key, tile
    if found is None:
        raise VTAProgramError(f"no tile of {conv} fits the memories of VTA {config.name}")
    return found


def candidates(conv: Conv2d) -> Iterable[Tile]:
    """List tiles: extents that cut an axis into equal parts, and small powers of two of blocks."""
    rows, columns = _extents(conv.out_height), _extents(conv.out_width)
    return itertools.starmap(Tile, itertools.product(rows, columns, _extents(conv.group_out), _extents(conv.group_in)))


def _extents(length: int) -> list[int]:
    """Extents of equal parts, for every number of parts that gives another extent."""
    return sorted({-(-length // parts) for parts in range(1, length + 1)})


def estimate_cycles(
    conv: Conv2d, tiles: TileSlots, config: VTAConfig, costs: CycleCosts, with_residual: bool = False
) -> int:
    """Estimate the cycles of :func:`tvm_ext.vta.operators.conv2d`: its busiest module, and what comes before and after.

    Tiles at the border count as whole ones.
    """
    bus = costs.bus_bytes
    spots = conv.batches * -(-conv.out_height // tiles.rows) * -(-conv.out_width // tiles.columns)
    parts = conv.groups * -(-conv.group_out // tiles.out_blocks)
    depths = -(-conv.group_in // tiles.in_blocks)
    number = spots * parts
    outputs = conv.batches * conv.out_blocks * conv.out_height * conv.out_width
    alu = costs.alu_immediate * (3 + with_residual) + 2 + with_residual
    instructions = ACCUMULATOR_INSTRUCTIONS + 1 + 2 * with_residual + depths
    compute = conv.steps + alu * outputs + number * instructions * costs.pipeline

    window = conv.window
    in_bytes = tiles.in_columns * config.inp_bytes
    bursts = 1 + (in_bytes - 1) // costs.burst_bytes
    load = tiles.in_rows * (-(-in_bytes // bus) + bursts) + costs.read_latency
    # Inputs stay on the chip if all tiles of them fit; weights while the same output blocks are computed.
    loads_of_inputs = parts if spots * depths > len(tiles.inp) else conv.groups
    reading = loads_of_inputs * spots * depths * tiles.in_blocks * load
    row = tiles.in_blocks * window * config.wgt_bytes
    weights = tiles.out_blocks * (-(-row // bus) + 1 + row // costs.burst_bytes) + costs.read_latency
    loads_of_weights = 1 if depths <= len(tiles.wgt) else spots
    reading += loads_of_weights * parts * depths * weights
    out_row = tiles.columns * config.out_bytes
    if with_residual:
        reading += number * tiles.out_blocks * (costs.read_latency + tiles.rows * (-(-out_row // bus) + 1))
    beats = -(-config.out_bytes // bus) + costs.store_element
    last = tiles.rows * tiles.out_blocks * (costs.store_burst + tiles.columns * beats)
    first = tiles.in_blocks * load + weights
    return max(compute + first + last, reading + last, number * last + first)
