"""What a tuner may know beforehand of VTA and of tiles of a convolution: numbers only, nothing is compiled."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from tvm_ext.backends.description import KernelDescription
from tvm_ext.backends.vta.codegen.compute import Epilogue
from tvm_ext.backends.vta.codegen.geometry import Conv2d
from tvm_ext.backends.vta.codegen.resources import Tiles, elements_in_use, turns
from tvm_ext.backends.vta.codegen.tile_costs import estimate_tiles
from tvm_ext.backends.vta.config import VTAConfig
from tvm_ext.backends.vta.timing.costs import CycleCosts

Floats = NDArray[np.float64]

SHEET_FIELDS = (
    "batch", "block", "macs_per_cycle", "uop_kib", "inp_kib", "wgt_kib", "acc_kib", "bus_bytes", "read_latency",
    "clock_mhz", "peak_gmacs", "gb_per_s",
)  # fmt: skip
"""Columns of a design's data sheet."""

FAMILY = "vta.conv2d"

AXES = 4
"""Loops over tiles: batches, output blocks, rows, columns."""

KNOBS = ("tile_b", "tile_co", "tile_h", "tile_w", "tile_ci", "oc_nthread", "h_nthread")
"""Choices that tiles are made of, in the order of :class:`.Tiles`."""

RESOURCES = ("inp", "wgt", "acc", "turns", "out_blocks_left", "rows_left")
"""What a configuration uses: elements of the memories, turns of the loops, tiles that threads cannot share."""

TAKES_PART = np.array(
    [
        [1, 0, 1, 1, 1, 0, 1],
        [0, 1, 0, 0, 1, 1, 0],
        [1, 1, 1, 1, 0, 1, 1],
        [1, 1, 1, 1, 1, 1, 1],
        [0, 1, 0, 0, 0, 1, 0],
        [0, 0, 1, 0, 0, 0, 1],
    ],
    bool,
)
"""Which knobs decide over each resource (resources x knobs)."""


def sheet_row(config: VTAConfig, costs: CycleCosts) -> tuple[float, ...]:
    """Give the data sheet of a design, by :data:`SHEET_FIELDS`: KiB, bytes, cycles, MHz, 1e9 a second."""
    kib = (2.0 ** (getattr(config, f"log_{name}_buff_size") - 10) for name in ("uop", "inp", "wgt", "acc"))
    macs, clock = config.macs_per_step, costs.clock_mhz
    return (
        config.batch, config.block, macs, *kib, costs.bus_bytes, costs.read_latency, clock, macs * clock / 1e3,
        costs.bus_bytes * clock / 1e3,
    )  # fmt: skip


def layer_numbers(config: VTAConfig, conv: Conv2d) -> Floats:
    """Give the layer as logarithms: channels, extents, window, stride, multiply-adds; nothing that blocks decide."""
    channels = (conv.in_blocks * config.block, conv.out_blocks * config.block)
    numbers = (
        conv.batches * config.batch, *channels, conv.out_height, conv.out_width, conv.vertical.kernel,
        conv.horizontal.kernel, conv.vertical.stride, conv.steps * config.macs_per_step,
    )  # fmt: skip
    return np.log2(np.array(numbers, np.float64))


def usage(conv: Conv2d, epilogue: Epilogue, tiles: Tiles) -> Floats:
    """Give what configurations use of each of :data:`RESOURCES` (n x resources): log2, of the last two the rest."""
    elements = elements_in_use(conv, tiles, epilogue)
    loops = np.log2(np.maximum([*elements.values(), turns(conv, tiles)], 1))
    left = (
        -(-conv.out_blocks // tiles.out_blocks) % tiles.out_threads,
        -(-conv.out_height // tiles.rows) % tiles.row_threads,
    )
    return np.stack([*loops, *left], axis=1).astype(np.float64)


def turns_by_axis(conv: Conv2d, tiles: Tiles) -> NDArray[np.int64]:
    """Count the turns of each loop over tiles (n x axes); virtual threads share them."""
    return np.stack(
        [
            -(-conv.batches // tiles.batches),
            -(-conv.out_blocks // (tiles.out_blocks * tiles.out_threads)),
            -(-conv.out_height // (tiles.rows * tiles.row_threads)),
            -(-conv.out_width // tiles.columns),
        ],
        axis=1,
    )


def features(config: VTAConfig, conv: Conv2d, epilogue: Epilogue, tiles: Tiles, orders: NDArray[np.int64]) -> Floats:
    """Give what decides over a configuration's speed (n x features), the machine left aside: logarithms of counts.

    Parameters
    ----------
    orders : array
        The loops over tiles of each configuration (n x axes), outermost first.
    """
    extents = [
        tiles.batches, tiles.out_blocks, tiles.rows, tiles.columns, tiles.in_blocks, tiles.out_threads,
        tiles.row_threads,
    ]  # fmt: skip
    outer = turns_by_axis(conv, tiles)
    parts = -(-conv.in_blocks // tiles.in_blocks)
    used = usage(conv, epilogue, tiles)
    all_turns = np.log2(outer.prod(axis=1) * parts)
    inner = _innermost(orders, outer)
    # The tile of inputs stays where it is while only output blocks change, that of weights while these do not.
    one = parts == 1
    input_loads = all_turns - np.where(one, np.log2(_stays(orders, outer, (1,))), 0)
    weight_loads = all_turns - np.where(one, np.log2(_stays(orders, outer, (0, 2, 3))), 0)
    bits = np.log2([config.inp_bytes, config.wgt_bytes])
    columns = [
        *(np.log2(extent) for extent in extents),
        *np.log2(outer).T,
        np.log2(parts),
        *used.T,
        input_loads,
        weight_loads,
        input_loads + used[:, 0] + bits[0],
        weight_loads + used[:, 1] + bits[1],
        np.log2(conv.steps * np.ones(len(parts))) - all_turns,
        *(inner == axis for axis in range(-1, AXES)),
    ]
    return np.stack(columns, axis=1).astype(np.float64)


def _innermost(orders: NDArray[np.int64], outer: NDArray[np.int64]) -> NDArray[np.int64]:
    """Give the innermost loop that turns more than once (n); -1 if none does."""
    found = np.full(len(outer), -1)
    for place in range(AXES):
        axis = orders[:, place]
        found = np.where(outer[np.arange(len(outer)), axis] > 1, axis, found)
    return found


def _stays(orders: NDArray[np.int64], outer: NDArray[np.int64], axes: tuple[int, ...]) -> NDArray[np.int64]:
    """Count the turns in a row (n) in which only ``axes`` change: the product of the innermost loops."""
    product, going = np.ones(len(outer), np.int64), np.ones(len(outer), bool)
    for place in reversed(range(AXES)):
        axis = orders[:, place]
        count = outer[np.arange(len(outer)), axis]
        changes = np.isin(axis, axes)
        product = np.where(going & changes, product * count, product)
        going &= changes | (count == 1)
    return product


def describe(
    config: VTAConfig,
    costs: CycleCosts,
    conv: Conv2d,
    epilogue: Epilogue,
    choices: Callable[[NDArray[np.int64]], tuple[Tiles, NDArray[np.int64]]],
    knobs: Sequence[Sequence[str]],
) -> KernelDescription:
    """Describe a convolution, its tiles and the design.

    Parameters
    ----------
    choices : callable
        Gives tiles and orders of the loops (n x axes) of vectors (n x knobs).
    knobs : sequence of sequence of str
        Which of :data:`KNOBS` each knob of the space decides.
    """
    decides = np.array([[name in names for names in knobs] for name in KNOBS], bool)

    def numbers(vectors: NDArray[np.int64]) -> Floats:
        tiles, orders = choices(vectors)
        return features(config, conv, epilogue, tiles, orders)

    def cost(vectors: NDArray[np.int64]) -> Floats:
        tiles, orders = choices(vectors)
        return estimate_tiles(config, costs, conv, tiles, turns_by_axis(conv, tiles), orders)

    return KernelDescription(
        FAMILY,
        sheet_row(config, costs),
        layer_numbers(config, conv),
        numbers,
        lambda vectors: usage(conv, epilogue, choices(vectors)[0]),
        TAKES_PART @ decides,
        cost,
    )
