"""Convolutions and matrix products as programs: tiles, kept on the chip as long as they are of use.

The loops are those of upstream's schedules: micro-ops run over a row of outputs inside the window, the hardware's loops
over output rows and output blocks.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np

from tvm_ext.errors import VTAProgramError
from tvm_ext.vta.config import VTAConfig
from tvm_ext.vta.isa import AluOpcode, MemoryType
from tvm_ext.vta.loop_nests import Steps
from tvm_ext.vta.program import ProgramBuilder


@dataclass(frozen=True)
class Conv2d:
    """A convolution on packed data.

    Attributes
    ----------
    batches, in_blocks, out_blocks : int
        Blocks of the batch, of input channels and of output channels.
    height, width : int
        Of the input.
    kernel, stride, padding : int
        The same in both directions; the padding is smaller than the kernel.

    Raises
    ------
    VTAProgramError
        If an extent is not positive, or there is no output.
    """

    batches: int
    in_blocks: int
    out_blocks: int
    height: int
    width: int
    kernel: int
    stride: int = 1
    padding: int = 0

    def __post_init__(self) -> None:
        for field in ("batches", "in_blocks", "out_blocks", "height", "width", "kernel", "stride"):
            if (value := getattr(self, field)) < 1:
                raise VTAProgramError(f"{field} of a convolution is {value}; expected at least 1", field=field)
        if not 0 <= self.padding < self.kernel:
            raise VTAProgramError(
                f"padding of a convolution is {self.padding}; expected 0 to {self.kernel - 1}, less than the kernel",
                field="padding",
            )
        if min(self.out_height, self.out_width) < 1:
            raise VTAProgramError(
                f"kernel {self.kernel} does not fit {self.height} x {self.width} inputs with padding {self.padding}",
                field="kernel",
            )

    @property
    def out_height(self) -> int:
        """Rows of the output."""
        return (self.height + 2 * self.padding - self.kernel) // self.stride + 1

    @property
    def out_width(self) -> int:
        """Columns of the output."""
        return (self.width + 2 * self.padding - self.kernel) // self.stride + 1


@dataclass(frozen=True)
class Tile:
    """Extents of an output tile: rows, columns, output blocks; and of the input blocks that are loaded at once."""

    rows: int
    columns: int
    out_blocks: int
    in_blocks: int


@dataclass(frozen=True)
class Requantize:
    """What becomes of a sum: shifted right, then clipped, then stored as int8."""

    shift: int
    low: int = -128
    high: int = 127


class Slots:
    """A memory cut into equal slots; the slot used longest ago gets the next contents."""

    def __init__(self, depth: int, size: int, most: int, base: int = 0) -> None:
        self.size, self.base = size, base
        count = max(min((depth - base) // size, most), 0)
        self._contents: OrderedDict[int, Hashable] = OrderedDict((slot, None) for slot in range(count))

    def __len__(self) -> int:
        return len(self._contents)

    def find(self, key: Hashable) -> tuple[int, bool]:
        """Return where the contents named ``key`` are, and whether they must be put there first."""
        slot = next((slot for slot, contents in self._contents.items() if contents == key), None)
        missing = slot is None
        if slot is None:
            slot = next(iter(self._contents))
        self._contents[slot] = key
        self._contents.move_to_end(slot)
        return self.base + slot * self.size, missing


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

    Raises
    ------
    VTAProgramError
        If a tile does not fit its memory; the message names the memory.
    """
    tiles = _Tiles(builder.config, conv, tile, most_slots, bias_inputs is not None)
    if bias_inputs is None:
        builder.load(MemoryType.ACC, bias, 0, 0, conv.out_blocks)
    else:
        builder.load(MemoryType.WGT, bias, 0, 0, conv.out_blocks)
        builder.load(MemoryType.INP, bias_inputs, 0, 0, 1)
    rows = range(0, conv.out_height, tiles.rows)
    columns = range(0, conv.out_width, tiles.columns)
    blocks = range(0, conv.out_blocks, tiles.out_blocks)
    for number, (o, n, y, x) in enumerate(itertools.product(blocks, range(conv.batches), rows, columns)):
        extent = Tile(
            min(tiles.rows, conv.out_height - y), min(tiles.columns, conv.out_width - x),
            min(tiles.out_blocks, conv.out_blocks - o), tiles.in_blocks,
        )  # fmt: skip
        pixels = extent.rows * extent.columns
        acc, _ = tiles.acc.find(number)
        every = acc + np.arange(extent.out_blocks * pixels)[:, None] * np.array([1, 0])
        builder.gemm(np.pad(every, ((0, 0), (0, 1))), reset=True)
        for i in range(0, conv.in_blocks, tiles.in_blocks):
            inner = min(tiles.in_blocks, conv.in_blocks - i)
            inp, missing = tiles.inp.find((n, y, x, i))
            if missing:
                _load_inputs(builder, conv, tiles, extent, (n, i, inner, y, x), inp, data)
            wgt, missing = tiles.wgt.find((o, i))
            if missing:
                window = conv.kernel**2
                first = (o * conv.in_blocks + i) * window
                builder.load(
                    MemoryType.WGT, weights, first, wgt, inner * window, extent.out_blocks, conv.in_blocks * window
                )
            builder.gemm(_conv_steps(conv, tiles, extent, inner, acc, inp, wgt))
        with_bias = np.stack([every[:, 0], o + np.arange(extent.out_blocks * pixels) // pixels], axis=1)
        if bias_inputs is None:
            builder.alu(AluOpcode.ADD, with_bias)
        else:
            builder.gemm(np.insert(with_bias, 1, 0, axis=1))
        _finish(builder, requantize, with_bias[:, 0])
        for c in range(extent.out_blocks):
            place = (((n * conv.out_blocks + o + c) * conv.out_height) + y) * conv.out_width + x
            builder.store(output, place, acc + c * pixels, extent.columns, extent.rows, conv.out_width)


def _finish(builder: ProgramBuilder, requantize: Requantize, accumulators: Steps) -> None:
    steps = accumulators[:, None]
    # A distance has five bits in some hardware, the sign included.
    for distance in [15] * (requantize.shift // 15) + [requantize.shift % 15]:
        if distance:
            builder.alu(AluOpcode.SHR, steps, distance)
    builder.alu(AluOpcode.MAX, steps, requantize.low)
    builder.alu(AluOpcode.MIN, steps, requantize.high)


class _Tiles:
    """Extents that fit a convolution, and the slots for them."""

    def __init__(
        self, config: VTAConfig, conv: Conv2d, tile: Tile, most_slots: int, bias_in_weights: bool = False
    ) -> None:
        self.rows = min(tile.rows, conv.out_height)
        self.columns = min(tile.columns, conv.out_width)
        self.out_blocks = min(tile.out_blocks, conv.out_blocks)
        self.in_blocks = min(tile.in_blocks, conv.in_blocks)
        # Rows between those that a 1x1 window with a stride sees are not loaded.
        self.row_step = conv.stride if conv.kernel == 1 else 1
        self.in_rows = (self.rows - 1) * (conv.stride // self.row_step) + conv.kernel
        self.in_columns = (self.columns - 1) * conv.stride + conv.kernel
        sizes = {
            "inp": self.in_blocks * self.in_rows * self.in_columns,
            "wgt": self.out_blocks * self.in_blocks * conv.kernel**2,
            "acc": self.out_blocks * self.rows * self.columns,
        }
        taken = {"inp": 0, "wgt": 0, "acc": conv.out_blocks}
        if bias_in_weights:
            taken = {"inp": 1, "wgt": conv.out_blocks, "acc": 0}
        self.inp, self.wgt, self.acc = (
            Slots(config.depths[name], size, most_slots, taken[name]) for name, size in sizes.items()
        )
        for name, slots in (("inp", self.inp), ("wgt", self.wgt), ("acc", self.acc)):
            if not len(slots):
                raise VTAProgramError(
                    f"a tile of {sizes[name]} elements does not fit the {name} memory of {config.depths[name]}"
                    + (f" beside {taken[name]} of the bias" if taken[name] else "")
                    + f"; make {tile} smaller"
                )


def _load_inputs(
    builder: ProgramBuilder,
    conv: Conv2d,
    tiles: _Tiles,
    extent: Tile,
    origin: tuple[int, int, int, int, int],
    sram_base: int,
    data: str,
) -> None:
    """Load the inputs that a tile of outputs sees, block by block; what lies outside of the image is zero."""
    n, i, inner, y, x = origin
    step = tiles.row_step
    top, left = y * conv.stride - conv.padding, x * conv.stride - conv.padding
    in_rows = (extent.rows - 1) * (conv.stride // step) + conv.kernel
    in_columns = (extent.columns - 1) * conv.stride + conv.kernel
    # Where rows are left out the window is 1x1, and there is no padding.
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


def _conv_steps(conv: Conv2d, tiles: _Tiles, extent: Tile, inner: int, acc: int, inp: int, wgt: int) -> Steps:
    """List the steps of a tile, outermost loop first: output block, row; input block, window; column."""
    in_columns = (extent.columns - 1) * conv.stride + conv.kernel
    window = conv.kernel**2
    o, y, c, ky, kx, x = np.ogrid[
        : extent.out_blocks, : extent.rows, :inner, : conv.kernel, : conv.kernel, : extent.columns
    ]
    row = y * (conv.stride // tiles.row_step) + ky
    dst = acc + (o * extent.rows + y) * extent.columns + x
    src = inp + c * tiles.in_rows * tiles.in_columns + row * in_columns + x * conv.stride + kx
    weight = wgt + (o * inner + c) * window + ky * conv.kernel + kx
    return np.stack([part.ravel() for part in np.broadcast_arrays(dst, src, weight)], axis=1)


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
    tiles = _Tiles(builder.config, as_conv, Tile(1, columns, blocks, depth), 2)
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
