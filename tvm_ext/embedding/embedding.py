"""An embedding, the decision of this room: which axes of an operator lie on which axes of an instruction."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, NamedTuple

from tvm_ext.embedding.dataflow import Dataflow


class Digit(NamedTuple):
    """A part of an axis of the operator that lies on an axis of the instruction.

    Attributes
    ----------
    axis : int
        Of the operator.
    size : int
        How many points of it.
    stride : int
        How far they are apart.
    padded : int
        Extent that the axis is padded to.
    """

    axis: int
    size: int
    stride: int
    padded: int


Fused = tuple[Digit, ...]
"""What lies on one axis of the instruction, outermost first."""


@dataclass(frozen=True)
class Embedding:
    """One way in which an instruction fits an operator.

    Attributes
    ----------
    operator, instruction : Dataflow
    digits : tuple of Fused
        For each axis of the instruction.
    swapped : bool
        Whether the instruction's left factor is the operator's right one.
    """

    operator: Dataflow
    instruction: Dataflow
    digits: tuple[Fused, ...]
    swapped: bool = False

    def operand(self, number: int) -> int:
        """Which operand of the operator an operand of the instruction (0, 1: factors, 2: result) is."""
        return number if number == 2 or not self.swapped else 1 - number

    @cached_property
    def padded(self) -> tuple[int, ...]:
        """Extents of the operator's axes after padding."""
        extents = [axis.extent for axis in self.operator.axes]
        for fused in self.digits:
            for digit in fused:
                extents[digit.axis] = max(extents[digit.axis], digit.padded)
        return tuple(extents)

    @property
    def unrolled(self) -> bool:
        """Whether a window lies on the instruction, so that its elements are stored more than once."""
        return any(
            self.operator.axes[digit.axis].reduces and digit.size > 1 and self.operator.in_stencil(digit.axis)
            for fused in self.digits
            for digit in fused
        )

    @property
    def macs(self) -> int:
        """Multiply-adds, those on padding included."""
        return prod(self.padded)

    @property
    def calls(self) -> int:
        """How often the instruction runs."""
        return self.macs // self.instruction.macs

    def on_axis(self, axis: int) -> list[tuple[int, Digit]]:
        """List what of an axis of the operator lies on the instruction, as (axis of the instruction, digit)."""
        return [(number, digit) for number, fused in enumerate(self.digits) for digit in fused if digit.axis == axis]

    def mapping(self) -> dict[str, list[dict[str, Any]]]:
        """Return the mapping by names, as JSON has it."""
        return {
            axis.name: [
                {
                    "axis": self.operator.axes[digit.axis].name,
                    "size": digit.size,
                    "stride": digit.stride,
                    "padded": digit.padded,
                }
                for digit in fused
            ]
            for axis, fused in zip(self.instruction.axes, self.digits, strict=True)
        }

    def __str__(self) -> str:
        return ", ".join(
            f"{axis.name} <- {' x '.join(self._text(digit) for digit in fused) or '1'}"
            for axis, fused in zip(self.instruction.axes, self.digits, strict=True)
        )

    def _text(self, digit: Digit) -> str:
        axis = self.operator.axes[digit.axis]
        stride = f" by {digit.stride}" if digit.stride > 1 else ""
        padded = f" padded {axis.extent}->{digit.padded}" if digit.padded != axis.extent else ""
        return f"{axis.name}:{digit.size}{stride}{padded}"
