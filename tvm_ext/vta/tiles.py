"""Tiles of convolutions: what is computed at once, and where it lies on the chip."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tvm_ext.errors import VTAProgramError
from tvm_ext.vta.config import VTAConfig

Indices: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True)
class Window:
    """A convolution along one axis.

    Attributes
    ----------
    length : int
        Of the input.
    kernel, stride, padding : int
    transposed : bool
        Whether inputs are ``stride`` apart in the output instead of outputs in the input.
    output_padding : int
        Further outputs at the end, of a transposed one.
    skips : bool
        Whether inputs that nothing sees are not loaded.
    """

    length: int
    kernel: int
    stride: int
    padding: int
    transposed: bool = False
    output_padding: int = 0
    skips: bool = False

    @property
    def outputs(self) -> int:
        """Length of the output."""
        if self.transposed:
            return (self.length - 1) * self.stride - 2 * self.padding + self.kernel + self.output_padding
        return (self.length + 2 * self.padding - self.kernel) // self.stride + 1

    @property
    def products(self) -> int:
        """How many pairs of an output and a place in the window there are."""
        return sum(ys.size * taps.size for ys, taps, _ in self.phases(0, self.outputs))

    @property
    def loaded_every(self) -> int:
        """Inputs from one that is loaded to the next."""
        return self.stride if self.skips and self.kernel == 1 and not self.transposed else 1

    def seen(self, first: int, count: int) -> tuple[int, int]:
        """First input, and number of inputs to load, that some outputs see; they may lie outside of the input."""
        if self.transposed:
            low = -((self.kernel - 1 - self.padding - first) // self.stride)
            return low, (first + count - 1 + self.padding) // self.stride - low + 1
        return first * self.stride - self.padding, (count - 1) * (self.stride // self.loaded_every) + self.kernel

    def most_seen(self, count: int) -> int:
        """Count the inputs that so many outputs see at most."""
        return (count + self.kernel - 2) // self.stride + 1 if self.transposed else self.seen(0, count)[1]

    def phases(self, first: int, count: int) -> Iterator[tuple[Indices, Indices, Indices]]:
        """Sort outputs by which places of the window they see.

        Yields
        ------
        outputs, taps, inputs
            Indices from ``first`` on; places in the window; for each of both, the input from the first one seen.
        """
        every = np.arange(self.kernel)
        if not self.transposed:
            outputs = np.arange(count)
            yield outputs, every, outputs[:, None] * (self.stride // self.loaded_every) + every
            return
        low, _ = self.seen(first, count)
        for phase in range(min(self.stride, count)):
            outputs = np.arange(phase, count, self.stride)
            taps = every[(first + phase + self.padding - every) % self.stride == 0]
            yield outputs, taps, (first + outputs[:, None] + self.padding - taps) // self.stride - low


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
        Along columns, and along rows unless ``across`` says otherwise; the padding is smaller than the kernel.
    groups : int
        Groups of blocks: an output block sees the input blocks of its own group.
    across : tuple of int, optional
        Kernel, stride and padding along rows, where they are others.
    transposed : bool
        Whether it is a transposed convolution; its kernel is no smaller than its stride then.
    output_padding : int
        Further rows and columns of a transposed convolution, at most as many as the padding.

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
    groups: int = 1
    across: tuple[int, int, int] | None = None
    transposed: bool = False
    output_padding: int = 0

    def __post_init__(self) -> None:
        for field in ("batches", "in_blocks", "out_blocks", "height", "width", "groups"):
            if (value := getattr(self, field)) < 1:
                raise VTAProgramError(f"{field} of a convolution is {value}; expected at least 1", field=field)
        if self.in_blocks % self.groups or self.out_blocks % self.groups:
            raise VTAProgramError(
                f"groups of a convolution is {self.groups}; expected a divisor of its {self.in_blocks} input blocks "
                f"and {self.out_blocks} output blocks",
                field="groups",
            )
        for window in (self.vertical, self.horizontal):
            _check_window(window, f"{self.height} x {self.width}")

    @property
    def vertical(self) -> Window:
        """What it is along columns."""
        return Window(self.height, self.kernel, self.stride, self.padding, self.transposed, self.output_padding, True)

    @property
    def horizontal(self) -> Window:
        """What it is along rows."""
        kernel, stride, padding = self.across or (self.kernel, self.stride, self.padding)
        return Window(self.width, kernel, stride, padding, self.transposed, self.output_padding)

    @property
    def window(self) -> int:
        """Places in the window."""
        return self.vertical.kernel * self.horizontal.kernel

    @property
    def group_in(self) -> int:
        """Input blocks that an output block sees."""
        return self.in_blocks // self.groups

    @property
    def group_out(self) -> int:
        """Output blocks of a group."""
        return self.out_blocks // self.groups

    @property
    def steps(self) -> int:
        """Steps of GEMM, without those for biases and residuals."""
        return self.batches * self.out_blocks * self.group_in * self.vertical.products * self.horizontal.products

    @property
    def out_height(self) -> int:
        """Rows of the output."""
        return self.vertical.outputs

    @property
    def out_width(self) -> int:
        """Columns of the output."""
        return self.horizontal.outputs


def _check_window(window: Window, extents: str) -> None:
    for field in ("kernel", "stride"):
        if (value := getattr(window, field)) < 1:
            raise VTAProgramError(f"{field} of a convolution is {value}; expected at least 1", field=field)
    if not 0 <= window.padding < window.kernel:
        raise VTAProgramError(
            f"padding of a convolution is {window.padding}; expected 0 to {window.kernel - 1}, less than the kernel",
            field="padding",
        )
    if window.outputs < 1:
        raise VTAProgramError(
            f"kernel {window.kernel} does not fit {extents} inputs with padding {window.padding}", field="kernel"
        )
    if window.transposed and window.kernel < window.stride:
        raise VTAProgramError(
            f"kernel of a transposed convolution is {window.kernel}; expected at least its stride {window.stride}",
            field="kernel",
        )
    if not 0 <= window.output_padding <= (window.padding if window.transposed else 0):
        raise VTAProgramError(
            f"output_padding of a convolution is {window.output_padding}; expected 0, or at most the padding of a "
            "transposed one",
            field="output_padding",
        )


@dataclass(frozen=True)
class Tile:
    """Extents of an output tile: rows, columns, output blocks; and of the input blocks that are loaded at once."""

    rows: int
    columns: int
    out_blocks: int
    in_blocks: int


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


class TileSlots:
    """Extents that fit a convolution, and the slots for them.

    Raises
    ------
    VTAProgramError
        If a tile does not fit its memory.
    """

    def __init__(
        self, config: VTAConfig, conv: Conv2d, tile: Tile, most_slots: int = 2,
        bias_in_weights: bool = False, with_residual: bool = False,
    ) -> None:  # fmt: skip
        self.conv = conv
        self.rows = min(tile.rows, conv.out_height)
        self.columns = min(tile.columns, conv.out_width)
        self.out_blocks = min(tile.out_blocks, conv.group_out)
        self.in_blocks = min(tile.in_blocks, conv.group_in)
        self.in_rows = conv.vertical.most_seen(self.rows)
        self.in_columns = conv.horizontal.most_seen(self.columns)
        sizes = {
            "inp": self.in_blocks * self.in_rows * self.in_columns,
            "wgt": self.out_blocks * self.in_blocks * conv.window,
            "acc": self.out_blocks * self.rows * self.columns,
        }
        taken = {"inp": 0, "wgt": 0, "acc": conv.out_blocks}
        if bias_in_weights:
            taken = {"inp": 1, "wgt": conv.out_blocks, "acc": 0}
        depths, slots = config.depths, {}
        if with_residual:
            taken["wgt"] += 1
            # Residuals of two tiles, or of one if that leaves no room for inputs.
            for count in (most_slots, 1):
                room = depths["inp"] - count * sizes["acc"]
                if room - taken["inp"] >= sizes["inp"] or count == 1:
                    slots["residual"] = Slots(depths["inp"], sizes["acc"], count, max(room, 0))
                    depths = {**depths, "inp": max(room, 0)}
                    break
        for name, size in sizes.items():
            slots[name] = Slots(depths[name], size, most_slots, taken[name])
        for name, found in slots.items():
            memory = "inp" if name == "residual" else name
            size = sizes["acc" if name == "residual" else name]
            if not len(found):
                raise VTAProgramError(
                    f"a tile of {size} elements does not fit the {memory} memory of {config.depths[memory]}"
                    + (f" beside {taken[memory]} of the bias" if taken[memory] else "")
                    + (" and the residual" if with_residual and memory == "inp" else "")
                    + f"; make {tile} smaller"
                )
        self.inp, self.wgt, self.acc = slots["inp"], slots["wgt"], slots["acc"]
        self.residual = slots.get("residual", self.inp)

    def origins(self) -> Iterator[tuple[int, int, int, int]]:
        """First output block, batch, row and column of every tile; no tile crosses a group."""
        conv = self.conv
        firsts = [
            group + first
            for group in range(0, conv.out_blocks, conv.group_out)
            for first in range(0, conv.group_out, self.out_blocks)
        ]
        rows, columns = range(0, conv.out_height, self.rows), range(0, conv.out_width, self.columns)
        return itertools.product(firsts, range(conv.batches), rows, columns)
