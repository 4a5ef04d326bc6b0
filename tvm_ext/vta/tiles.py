"""Tiles of convolutions: what is computed at once, and where it lies on the chip."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass

from tvm_ext.errors import VTAProgramError
from tvm_ext.vta.config import VTAConfig


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
    groups : int
        Groups of blocks: an output block sees the input blocks of its own group.

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

    def __post_init__(self) -> None:
        for field in ("batches", "in_blocks", "out_blocks", "height", "width", "kernel", "stride", "groups"):
            if (value := getattr(self, field)) < 1:
                raise VTAProgramError(f"{field} of a convolution is {value}; expected at least 1", field=field)
        if self.in_blocks % self.groups or self.out_blocks % self.groups:
            raise VTAProgramError(
                f"groups of a convolution is {self.groups}; expected a divisor of its {self.in_blocks} input blocks "
                f"and {self.out_blocks} output blocks",
                field="groups",
            )
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
        pixels = self.out_height * self.out_width
        return self.batches * self.out_blocks * pixels * self.group_in * self.kernel**2

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
