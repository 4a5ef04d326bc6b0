"""What a multiply-accumulate computes, as plain data: axes, and where each operand is read or written.

An operator and an instruction are described alike; the one is embedded into the other.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod


@dataclass(frozen=True)
class Axis:
    """An axis of the iteration domain: ``0 <= axis < extent``; whether it is summed over."""

    name: str
    extent: int
    reduces: bool


@dataclass(frozen=True)
class Access:
    """Where an operand is accessed, as an affine function of the axes.

    Attributes
    ----------
    tensor : str
    dtype : str
    shape : tuple of int
    index : tuple of tuple of int
        For each dimension of the tensor, the coefficient of each axis.
    offset : tuple of int
        What is added in each dimension.
    """

    tensor: str
    dtype: str
    shape: tuple[int, ...]
    index: tuple[tuple[int, ...], ...]
    offset: tuple[int, ...]

    def column(self, axis: int) -> tuple[int, ...]:
        """How far a step along an axis goes in each dimension."""
        return tuple(row[axis] for row in self.index)

    def uses(self, axis: int) -> bool:
        """Whether the address depends on an axis."""
        return any(row[axis] for row in self.index)

    def at(self, point: tuple[int, ...]) -> tuple[int, ...]:
        """Address of a point of the iteration domain."""
        return tuple(
            start + sum(step * value for step, value in zip(row, point, strict=True))
            for row, start in zip(self.index, self.offset, strict=True)
        )


def overlap(terms: Iterable[tuple[int, int]]) -> bool:
    """Whether a sum of steps (step, how many) meets a place twice, or might: each term must step over all below it."""
    reach = 0
    for step, extent in sorted((abs(step), extent) for step, extent in terms if step and extent > 1):
        if step <= reach:
            return True
        reach += step * (extent - 1)
    return False


@dataclass(frozen=True)
class Dataflow:
    """``output += left * right`` over an iteration domain.

    Attributes
    ----------
    name : str
    axes : tuple of Axis
    output : Access
    inputs : tuple of Access
        The two factors.
    """

    name: str
    axes: tuple[Axis, ...]
    output: Access
    inputs: tuple[Access, Access]

    @property
    def operands(self) -> tuple[Access, Access, Access]:
        """Left factor, right factor and result."""
        return (*self.inputs, self.output)

    @property
    def macs(self) -> int:
        """Multiply-adds of the whole."""
        return prod(axis.extent for axis in self.axes)

    def number(self, name: str) -> int:
        """Place of an axis among the axes."""
        return next(at for at, axis in enumerate(self.axes) if axis.name == name)

    def pattern(self, axis: int, swapped: bool = False) -> tuple[bool, ...]:
        """Which operands an axis moves in (left, right, result), and whether it is summed over.

        An axis of an instruction can only lie on axes of an operator that have the same pattern: an edge of the
        dataflow graph that one of them has and the other lacks would otherwise be lost (subgraph isomorphism).
        """
        left, right = reversed(self.inputs) if swapped else self.inputs
        return left.uses(axis), right.uses(axis), self.output.uses(axis), self.axes[axis].reduces

    def shares_dimension(self, axis: int) -> bool:
        """Whether another axis, even one of extent 1, moves along a dimension of a factor that an axis moves along."""
        return any(row[axis] and sum(bool(step) for step in row) > 1 for access in self.inputs for row in access.index)

    def in_stencil(self, axis: int) -> bool:
        """Whether windows that slide along an axis, or consist of it, overlap in a factor."""
        return any(
            row[axis] and overlap((step, it.extent) for step, it in zip(row, self.axes, strict=True))
            for access in self.inputs
            for row in access.index
        )

    def __str__(self) -> str:
        loops = " ".join(f"{axis.name}{'+' if axis.reduces else ''}:{axis.extent}" for axis in self.axes)
        left, right, result = (self._text(access) for access in self.operands)
        return f"{self.name}[{loops}] {result} += {left} * {right}"

    def _text(self, access: Access) -> str:
        terms = []
        for row, start in zip(access.index, access.offset, strict=True):
            parts = [
                axis.name if step == 1 else f"{step}*{axis.name}"
                for axis, step in zip(self.axes, row, strict=True)
                if step
            ]
            terms.append("+".join([*parts, *([str(start)] if start or not parts else [])]))
        return f"{access.tensor}[{', '.join(terms)}]"
