"""Geometry of convolutions and of windows on packed data."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tvm_ext.errors import VTAProgramError


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
        """How many pairs of an output and a place in the window there are that see an input."""
        outputs, taps = np.ogrid[: self.outputs, : self.kernel]
        if self.transposed:
            inputs, between = np.divmod(outputs + self.padding - taps, self.stride)
            seen = (between == 0) & (0 <= inputs) & (inputs < self.length)
        else:
            inputs = outputs * self.stride - self.padding + taps
            seen = (0 <= inputs) & (inputs < self.length)
        return int(seen.sum())

    @property
    def loaded_every(self) -> int:
        """Inputs from one that is loaded to the next."""
        return self.stride if self.skips and self.kernel == 1 and not self.transposed else 1

    @property
    def margins(self) -> tuple[int, int]:
        """How far outputs see beyond the first input, and beyond the last one."""
        if self.transposed:
            before = -((self.padding + 1 - self.kernel) // self.stride)
            return before, max((self.outputs - 1 + self.padding) // self.stride + 1 - self.length, 0)
        return self.padding, max((self.outputs - 1) * self.stride + self.kernel - self.padding - self.length, 0)

    def most_seen(self, count: int) -> int:
        """Count the inputs that so many outputs see at most."""
        if self.transposed:
            return (count + self.kernel - 2) // self.stride + 1
        return (count - 1) * (self.stride // self.loaded_every) + self.kernel


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
        stride = self._stride(self.height, self.stride)
        return Window(self.height, self.kernel, stride, self.padding, self.transposed, self.output_padding, True)

    @property
    def horizontal(self) -> Window:
        """What it is along rows."""
        kernel, stride, padding = self.across or (self.kernel, self.stride, self.padding)
        stride = self._stride(self.width, stride)
        return Window(self.width, kernel, stride, padding, self.transposed, self.output_padding)

    def _stride(self, length: int, stride: int) -> int:
        """Give the stride along an axis: one input is not apart from another, and without steps no rest is asked for.

        TVM does not see that a schedule of such rests covers what it reads.
        """
        return 1 if self.transposed and length == 1 else stride

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

    @cached_property
    def steps(self) -> int:
        """Steps of GEMM on inputs that are not padding, without those for biases and residuals."""
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
