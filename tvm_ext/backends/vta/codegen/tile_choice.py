"""Choose the tile of a convolution: an estimate of its cycles for every candidate, without writing a program."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from tvm_ext.backends.vta.codegen.geometry import Conv2d
from tvm_ext.backends.vta.config import VTAConfig
from tvm_ext.backends.vta.timing.costs import CycleCosts
from tvm_ext.errors import VTAProgramError

# Instructions of a tile that only work on its accumulators: reset, bias, and the two bounds; each shift is one more.
ACCUMULATOR_INSTRUCTIONS = 4

LEAST_OUTPUTS = 2
"""Outputs of a tile for which every place of the window needs an instruction of its own: steps come too soon."""

COPIES = 2
"""Tiles of a kind on the chip at once: one is loaded or stored while the other is worked on."""


@dataclass(frozen=True)
class Tile:
    """Extents of an output tile: rows, columns, output blocks; and of the input blocks that are loaded at once.

    Several groups of a convolution are in a tile only if all of their blocks are.
    """

    rows: int
    columns: int
    out_blocks: int
    in_blocks: int
    groups: int = 1

    @property
    def outputs(self) -> int:
        """Elements of the result."""
        return self.groups * self.out_blocks * self.rows * self.columns


@dataclass(frozen=True)
class FittedTile:
    """A tile that fits the memories.

    Attributes
    ----------
    tile : Tile
        No larger than the convolution.
    in_rows, in_columns : int
        Inputs that it sees.
    copies : dict
        How many tiles of inputs and of weights there is room for, :data:`COPIES` at most.
    """

    tile: Tile
    in_rows: int
    in_columns: int
    copies: dict[str, int]


def fit_tile(
    config: VTAConfig, conv: Conv2d, tile: Tile, bias_in_weights: bool = True, with_residual: bool = False
) -> FittedTile:
    """Cut a tile down to a convolution, and see whether it fits.

    Raises
    ------
    VTAProgramError
        If it does not fit a memory; the message names the memory.
    """
    tile = Tile(
        min(tile.rows, conv.out_height), min(tile.columns, conv.out_width),
        min(tile.out_blocks, conv.group_out), min(tile.in_blocks, conv.group_in), min(tile.groups, conv.groups),
    )  # fmt: skip
    in_rows, in_columns = conv.vertical.most_seen(tile.rows), conv.horizontal.most_seen(tile.columns)
    outputs, blocks = tile.outputs, tile.groups * tile.in_blocks
    sizes = {"inp": blocks * in_rows * in_columns, "wgt": blocks * tile.out_blocks * conv.window}
    taken = {"inp": 1, "wgt": conv.out_blocks, "acc": 0}
    if not bias_in_weights:
        taken = {"inp": 0, "wgt": 0, "acc": conv.out_blocks}
    if with_residual:
        taken["wgt"] += 1
        # Residuals of two tiles, or of one if that leaves no room for inputs.
        twice = config.depths["inp"] - taken["inp"] - COPIES * outputs >= sizes["inp"]
        taken["inp"] += (COPIES if twice else 1) * outputs
    sizes["acc"] = outputs
    copies = {}
    for memory, size in sizes.items():
        copies[memory] = min(max(config.depths[memory] - taken[memory], 0) // size, COPIES)
        if not copies[memory]:
            raise VTAProgramError(
                f"a tile of {size} elements does not fit the {memory} memory of {config.depths[memory]}"
                + (f" beside {taken[memory]} of biases and residuals" if taken[memory] else "")
                + f"; make {tile} smaller"
            )
    return FittedTile(tile, in_rows, in_columns, copies)


@lru_cache(maxsize=512)
def choose_tile(
    conv: Conv2d, config: VTAConfig, costs: CycleCosts, bias_in_weights: bool = True, with_residual: bool = False
) -> Tile:
    """Return the tile with the fewest estimated cycles; among equals the one with the most outputs.

    Raises
    ------
    VTAProgramError
        If no tile fits the memories.
    """
    return best_tiles(conv, config, costs, bias_in_weights, with_residual)[0]


@lru_cache(maxsize=512)
def best_tiles(
    conv: Conv2d,
    config: VTAConfig,
    costs: CycleCosts,
    bias_in_weights: bool = True,
    with_residual: bool = False,
    most: int = 16,
) -> list[Tile]:
    """List the tiles with the fewest estimated cycles, the best one first.

    Raises
    ------
    VTAProgramError
        If no tile fits the memories.
    """
    found = []
    for tile in candidates(conv):
        try:
            fitted = fit_tile(config, conv, tile, bias_in_weights, with_residual)
        except VTAProgramError:
            continue
        cycles = estimate_cycles(conv, fitted, config, costs, with_residual)
        found.append((cycles, -tile.outputs, tile))
    if not found:
        raise VTAProgramError(f"no tile of {conv} fits the memories of VTA {config.name}")
    return [tile for *_, tile in sorted(found, key=lambda row: row[:2])[:most]]


def candidates(conv: Conv2d) -> Iterable[Tile]:
    """List tiles: extents that cut an axis into equal parts."""
    rows, columns = _extents(conv.out_height), _extents(conv.out_width)
    yield from itertools.starmap(
        Tile, itertools.product(rows, columns, _extents(conv.group_out), _extents(conv.group_in))
    )
    for groups in _extents(conv.groups)[1:]:
        for places in itertools.product(rows, columns):
            yield Tile(*places, conv.group_out, conv.group_in, groups)


def _extents(length: int) -> list[int]:
    """Extents of equal parts, for every number of parts that gives another extent."""
    return sorted({-(-length // parts) for parts in range(1, length + 1)})


def estimate_cycles(
    conv: Conv2d, fitted: FittedTile, config: VTAConfig, costs: CycleCosts, with_residual: bool = False
) -> int:
    """Estimate the cycles of a convolution: its busiest module, and what comes before and after.

    Tiles at the border count as whole ones.
    """
    bus, tiles = costs.bus_bytes, fitted.tile
    spots = conv.batches * -(-conv.out_height // tiles.rows) * -(-conv.out_width // tiles.columns)
    parts = -(-conv.groups // tiles.groups) * -(-conv.group_out // tiles.out_blocks)
    depths = -(-conv.group_in // tiles.in_blocks)
    number = spots * parts
    outputs = conv.batches * conv.out_blocks * conv.out_height * conv.out_width
    alu = costs.alu_immediate * (3 + with_residual) + 2 + with_residual
    products = depths if tiles.outputs > LEAST_OUTPUTS else conv.group_in * conv.window
    instructions = ACCUMULATOR_INSTRUCTIONS + 1 + 2 * with_residual + products
    compute = conv.steps + alu * outputs + number * instructions * costs.pipeline

    window = conv.window
    in_bytes = fitted.in_columns * config.inp_bytes
    bursts = 1 + (in_bytes - 1) // costs.burst_bytes
    load = fitted.in_rows * (-(-in_bytes // bus) + bursts) + costs.read_latency
    # Inputs stay on the chip if all tiles of them fit; weights while the same output blocks are computed.
    loads_of_inputs = parts if spots * depths > fitted.copies["inp"] else -(-conv.groups // tiles.groups)
    blocks = tiles.groups * tiles.in_blocks
    reading = loads_of_inputs * spots * depths * blocks * load
    row = tiles.in_blocks * window * config.wgt_bytes
    weights = tiles.groups * tiles.out_blocks * (-(-row // bus) + 1 + row // costs.burst_bytes) + costs.read_latency
    loads_of_weights = 1 if depths <= fitted.copies["wgt"] else spots
    reading += loads_of_weights * parts * depths * weights
    out_row = tiles.columns * config.out_bytes
    if with_residual:
        reading += (
            number * tiles.groups * tiles.out_blocks * (costs.read_latency + tiles.rows * (-(-out_row // bus) + 1))
        )
    beats = -(-config.out_bytes // bus) + costs.store_element
    last = tiles.groups * tiles.rows * tiles.out_blocks * (costs.store_burst + tiles.columns * beats)
    first = blocks * load + weights
    return max(compute + first + last, reading + last, number * last + first)


def pooling_tile(config: VTAConfig, pool: Conv2d) -> Tile:
    """Return the largest tile of a maximum over windows of which two fit: whole rows, or parts of rows.

    Raises
    ------
    VTAProgramError
        If the window of one output does not fit.
    """
    for columns in range(pool.out_width, 0, -1):
        for rows in range(pool.out_height, 0, -1):
            size = pool.vertical.most_seen(rows) * pool.horizontal.most_seen(columns)
            fits = COPIES * size <= config.depths["inp"]
            if fits and COPIES * (size + rows * columns) <= config.depths["acc"]:
                return Tile(rows, columns, 1, 1)
    raise VTAProgramError(f"a window of {pool.kernel} x {pool.kernel} does not fit the memories of VTA {config.name}")
