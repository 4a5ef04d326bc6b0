"""How a depthwise convolution of a plain tensor is computed plane by plane, and which shuffle of channels it reads.

Between grouped products, which read and write planes, a depthwise convolution of blocks of channels would cost two
transpositions, and a shuffle in front of it a third. Plane by plane it needs none, and reads any channel next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from tvm_ext.errors import GraphError
from tvm_ext.layout.convolution_plan import ConvolutionShape
from tvm_ext.schedules.cpu.machine import Machine
from tvm_ext.schedules.cpu.plane_window import UNROLLED_PRODUCTS

NARROWEST = 4
"""Columns of a result below which vectors along rows would be mostly empty, and lanes of the least vector."""

MOST_TAPS = 9
"""Taps of a filter up to which planes gain that are not written out whole.

On AMD Zen 5, with 5 x 5 taps, images of 14 x 14 take 0.6 of what blocks of channels and their transpositions take,
and images of 28 x 28 1.3 times as long.
"""


@dataclass(frozen=True)
class Shuffle:
    """A permutation of channels: as an array of shape ``factors``, their axes are put into the ``order``.

    ``Shuffle((4, 34), (1, 0))`` is ShuffleNet's of four groups of 34 channels.
    """

    factors: tuple[int, ...] = ()
    order: tuple[int, ...] = ()


@dataclass(frozen=True)
class PlanePlan:
    """How planes are convolved.

    Attributes
    ----------
    lanes : int
        Columns of a vector.
    computed : int
        Columns that are computed, those that fill up the last vector of a row included.
    shuffle : Shuffle
        Of the channels that are read.
    """

    lanes: int
    computed: int
    shuffle: Shuffle = Shuffle()


def plan_planes(shape: ConvolutionShape, shuffle: Shuffle, machine: Machine) -> PlanePlan | None:
    """Choose the vectors along rows: few, and of as many the narrower; None: not for a shape."""
    if not shape.is_depthwise or shape.rank != 2 or min(shape.padding) < 0:
        return None
    if (shape.strides, shape.dilation) != ((1, 1), (1, 1)):
        return None  # vectors would read every other column
    width = shape.results[-1]
    if width < NARROWEST or min(shape.results) < 1:
        return None
    widths, lanes = [], machine.lanes("float32")
    while lanes >= NARROWEST:
        widths.append(lanes)
        lanes //= 2
    lanes = min(widths, key=lambda lanes: (-(-width // lanes), lanes), default=0)
    if not lanes or (prod(shape.kernel) > MOST_TAPS and _products(shape, lanes) > UNROLLED_PRODUCTS):
        return None
    return PlanePlan(lanes, -(-width // lanes) * lanes, shuffle)


def _products(shape: ConvolutionShape, lanes: int) -> int:
    """Count the products of vectors that a plane takes."""
    rows, width = shape.results
    return rows * -(-width // lanes) * prod(shape.kernel)


def verify_planes(plan: PlanePlan, shape: ConvolutionShape) -> None:
    """Check a plan by counting: every column is computed, and every channel is read once.

    Raises
    ------
    GraphError
        If not.
    """
    columns = [first + lane for first in range(0, plan.computed, plan.lanes) for lane in range(plan.lanes)]
    if columns[: shape.results[-1]] != list(range(shape.results[-1])) or len(columns) - shape.results[-1] >= plan.lanes:
        raise GraphError(f"planes: {plan.computed} columns in vectors of {plan.lanes} for {shape.results[-1]}")
    if plan.shuffle.factors and sorted(channels_read(plan.shuffle)) != list(range(shape.in_channels)):
        raise GraphError(f"planes: {plan.shuffle} is no permutation of {shape.in_channels} channels")


def channels_read(shuffle: Shuffle) -> list[int]:
    """List for each channel behind a shuffle which one it was."""
    steps = [prod(shuffle.factors[axis + 1 :]) for axis in range(len(shuffle.factors))]
    found = [0]
    for axis in shuffle.order:
        found = [place + steps[axis] * index for place in found for index in range(shuffle.factors[axis])]
    return found


def shuffle_of(shape: Sequence[int], split: Sequence[int], axes: Sequence[int]) -> Shuffle | None:
    """Read a shuffle off a reshape to ``split``, a transpose by ``axes`` and a reshape back; None: it is none.

    Parameters
    ----------
    shape : sequence of int
        ``(N, C, ...)``, before and behind.
    """
    behind, count = len(shape) - 2, len(split) - len(shape) + 1
    if count < 2 or split[0] != shape[0] or tuple(split[1 + count :]) != tuple(shape[2:]):
        return None
    if axes[0] != 0 or tuple(axes[1 + count :]) != tuple(range(1 + count, 1 + count + behind)):
        return None
    factors = tuple(split[1 : 1 + count])
    return Shuffle(factors, tuple(axis - 1 for axis in axes[1 : 1 + count])) if prod(factors) == shape[1] else None
