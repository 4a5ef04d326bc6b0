"""Whether the tiles of a convolution fit the memories, in closed form and for many at once: no schedule is made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import tirx

from tvm_ext.backends.vta.codegen.compute import Bias, Epilogue, geometry_of
from tvm_ext.backends.vta.codegen.geometry import Conv2d
from tvm_ext.backends.vta.config import VTAConfig

Counts = NDArray[np.int64]


@dataclass(frozen=True)
class Tiles:
    """Choices for a convolution without groups, each an array (n).

    Attributes
    ----------
    batches, out_blocks, rows, columns : array
        Extents of a tile of the result.
    in_blocks : array
        Input blocks that are loaded at once.
    out_threads, row_threads : array
        Virtual threads over output blocks and over rows.
    """

    batches: Counts
    out_blocks: Counts
    rows: Counts
    columns: Counts
    in_blocks: Counts
    out_threads: Counts
    row_threads: Counts


def elements_in_use(conv: Conv2d, tiles: Tiles, epilogue: Epilogue) -> dict[str, Counts]:
    """Count the elements of each memory that are in use while a tile is multiplied (n each).

    Threads run side by side: those over output blocks read one tile of inputs, those over rows one of weights.
    """
    step = conv.vertical.stride // conv.vertical.loaded_every
    seen_rows = (tiles.rows - 1) * step + conv.vertical.kernel
    seen_columns = (tiles.columns - 1) * conv.horizontal.stride + conv.horizontal.kernel
    inputs = tiles.batches * tiles.in_blocks * seen_rows * seen_columns * tiles.row_threads
    weights = tiles.out_blocks * tiles.in_blocks * conv.window * tiles.out_threads
    sums = tiles.batches * tiles.out_blocks * tiles.rows * tiles.columns * tiles.out_threads * tiles.row_threads
    if epilogue.bias == "weights":  # they stay on the chip from the first tile to the last
        inputs, weights = inputs + 1, weights + conv.out_blocks
    elif epilogue.bias == "accumulators":
        sums = sums + conv.out_blocks
    return {"inp": inputs, "wgt": weights, "acc": sums}


def turns(conv: Conv2d, tiles: Tiles) -> Counts:
    """Count the turns of the loops over tiles (n), those over parts of the input blocks included."""
    counts = np.ones_like(tiles.rows)
    for extent, tile in (
        (conv.batches, tiles.batches), (conv.out_blocks, tiles.out_blocks), (conv.out_height, tiles.rows),
        (conv.out_width, tiles.columns), (conv.in_blocks, tiles.in_blocks),
    ):  # fmt: skip
        counts = counts * -(-extent // tile)
    return counts


def is_known(conv: Conv2d, epilogue: Epilogue) -> bool:
    """Whether :func:`fits` is exact for a convolution; groups, transposed ones and residuals have to be planned."""
    return conv.groups == 1 and not conv.transposed and not epilogue.residual


def fits(
    config: VTAConfig, conv: Conv2d, epilogue: Epilogue, tiles: Tiles, most_turns: int | None = None
) -> NDArray[np.bool_]:
    """Tell which tiles can run (n): they fit the memories, threads divide the work, and the program is not too long.

    Parameters
    ----------
    most_turns : int, optional
        Turns of the loops over tiles that a program may have.
    """
    works = np.ones(len(tiles.rows), bool)
    for memory, used in elements_in_use(conv, tiles, epilogue).items():
        works &= used <= config.depths[memory]
    works &= -(-conv.out_blocks // tiles.out_blocks) % tiles.out_threads == 0
    works &= -(-conv.out_height // tiles.rows) % tiles.row_threads == 0
    if most_turns is not None:
        works &= turns(conv, tiles) <= most_turns
    return works


KNOBS = 5
"""Sampling instructions of a convolution without groups: batches, output blocks, rows, columns, input blocks."""


def oracle_of(
    func: tirx.PrimFunc, config: VTAConfig, choices: Sequence[Sequence[Any]]
) -> Callable[[Counts], NDArray[np.bool_]] | None:
    """Give what tells which choices of a tunable schedule fit; None for functions of which that is not known.

    Parameters
    ----------
    func : PrimFunc
        A convolution as :func:`.compute.convolution` writes it.
    config : VTAConfig
    choices : sequence of sequence
        Factors that each sampling instruction of :class:`~tvm_ext.schedules.vta.conv2d.Conv2d` may decide, the middle
        ones of output blocks and rows being virtual threads.
    """
    known = known_tiles(func, choices)
    if known is None:
        return None
    conv, epilogue, tiles = known
    return lambda vectors: fits(config, conv, epilogue, tiles(vectors))


def known_tiles(
    func: tirx.PrimFunc, choices: Sequence[Sequence[Any]]
) -> tuple[Conv2d, Epilogue, Callable[[Counts], Tiles]] | None:
    """Give the convolution of a function and the tiles of its choices; None where needs are not in closed form.

    Parameters
    ----------
    func, choices
        See :func:`oracle_of`.
    """
    conv, names = geometry_of(func), {str(parameter.name) for parameter in func.params}
    if conv is None or len(choices) != KNOBS:
        return None
    bias: Bias = "accumulators" if "bias" in names else "weights" if "bias_weights" in names else "none"
    epilogue = Epilogue(bias=bias, residual="residual" in names)
    if not is_known(conv, epilogue):
        return None
    factors = [np.array(rows, np.int64) for rows in choices]

    def tiles(vectors: Counts) -> Tiles:
        batches, out_blocks, rows, columns, in_blocks = (table[vectors[:, knob]] for knob, table in enumerate(factors))
        return Tiles(
            batches[:, -1],
            out_blocks[:, -1],
            rows[:, -1],
            columns[:, -1],
            in_blocks[:, -1],
            out_blocks[:, 1],
            rows[:, 1],
        )

    return conv, epilogue, tiles
