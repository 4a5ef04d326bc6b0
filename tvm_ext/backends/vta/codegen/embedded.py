"""An embedding of VTA's matrix unit becomes a convolution on packed data, which schedules and programs are there for.

Loops over outputs that the weights do not see are images of a batch, or rows and columns; loops over weights and
outputs are output blocks; summed loops without a window are input blocks; loops over all three are groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from operator import mul

import numpy as np
from numpy.typing import NDArray

from tvm_ext.backends.vta.codegen.geometry import Conv2d
from tvm_ext.backends.vta.codegen.result_order import ResultOrder
from tvm_ext.backends.vta.config import VTAConfig
from tvm_ext.embedding.packing import pack, unpack
from tvm_ext.embedding.strategy import Dimension, Stored, Strategy
from tvm_ext.errors import EmbeddingError


@dataclass(frozen=True)
class EmbeddedLayer:
    """A strategy as a layer of VTA.

    Attributes
    ----------
    strategy : Strategy
    conv : Conv2d
        Its geometry on packed data, without padding: what windows see beyond images is stored.
    orders : tuple of tuple of int
        Order of the stored dimensions of data, weights and result in VTA's memory.
    shapes : tuple of tuple of int
        Their shapes there.
    axes : tuple of tuple of int
        For each axis of the result of ``conv`` but lanes, the stored dimensions that it consists of.
    first, windowed : tuple of int
        How many of the stored dimensions of data, weights and result are images (of weights: groups and blocks of
        outputs), and how many are rows and columns; those of channels lie between them.
    """

    strategy: Strategy
    conv: Conv2d
    orders: tuple[tuple[int, ...], ...]
    shapes: tuple[tuple[int, ...], ...]
    axes: tuple[tuple[int, ...], ...]
    first: tuple[int, int, int]
    windowed: tuple[int, int, int]

    @property
    def data(self) -> int:
        """Factor of the matrix unit (0 or 1) that the operator's data becomes; its weights become the other."""
        return int(self.strategy.embedding.operand(0))

    def pack(self, number: int, values: NDArray) -> NDArray:
        """Store values of the operator as VTA reads them: its left factor (0) or its right one (1)."""
        stored = self.strategy.operands[self.strategy.embedding.operand(number)]
        return np.ascontiguousarray(pack(values, stored).transpose(self.orders[number])).reshape(self.shapes[number])

    def unpack(self, values: NDArray) -> NDArray:
        """Read the operator's result from what VTA stored."""
        stored, order = self.strategy.operands[2], self.orders[2]
        dimensions = values.reshape([stored.shape[at] for at in order])
        return unpack(dimensions.transpose(np.argsort(order)), self.strategy)

    def direct_order(self) -> ResultOrder | None:
        """Order in which VTA stores the operator's own result, so that nobody has to unpack it; None if there is none.

        It is there where the parts of all axes, from the largest stride to the smallest, and then the lanes, fill the
        result's tensor.
        """
        stored = self.strategy.operands[2]
        shape = stored.access.shape
        strides = [prod(shape[at + 1 :]) for at in range(len(shape))]
        step = [sum(map(mul, dimension.steps, strides)) for dimension in stored.dimensions]
        outer = [(axis, part, at) for axis, parts in enumerate(self.axes) for part, at in enumerate(parts)]
        outer.sort(key=lambda place: (-step[place[2]], stored.dimensions[place[2]].extent == 1))
        lanes = self.orders[2][len(outer) :]
        filled = 1
        for at in reversed([*(at for _, _, at in outer), *lanes]):
            extent = stored.dimensions[at].extent
            if extent > 1 and step[at] != filled:
                return None
            filled *= extent
        if filled != prod(shape):
            return None
        extents = tuple(tuple(stored.dimensions[at].extent for at in parts) or (1,) for parts in self.axes)
        order = [(axis, 0) for axis, parts in enumerate(self.axes) if not parts]
        return ResultOrder(extents, (*order, *((axis, part) for axis, part, _ in outer)))

    def plain(self, number: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Say how data (0), weights (1) or result (2) are those of an ordinary convolution in NCHW.

        Returns
        -------
        order : tuple of int
            Of the stored dimensions: those that are images (of weights, outputs), channels, rows and columns.
        shape : tuple of int
            Of the four axes that they are together.
        """
        order, conv = self.orders[number], self.conv
        stored = self.strategy.operands[self.strategy.embedding.operand(number)]
        lanes = [at for at in order if stored.dimensions[at].kind == "lane"]
        loops = order[: len(order) - len(lanes)]
        first, channels, image = loops[: self.first[number]], loops[self.first[number] :], loops[len(loops) :]
        if self.windowed[number]:
            channels, image = channels[: -self.windowed[number]], channels[-self.windowed[number] :]
        rows = _lane_axes(self.strategy)[number]
        first_lanes = [at for at in lanes if (lane := stored.dimensions[at].lane) is not None and lane[0] == rows]
        channel_lanes = [at for at in lanes if at not in first_lanes]
        sizes = (
            (conv.height, conv.width),
            (conv.kernel, conv.horizontal.kernel),
            (conv.out_height, conv.out_width),
        )[number]
        ours = [*first, *first_lanes], [*channels, *channel_lanes]
        outer = tuple(prod(stored.dimensions[at].extent for at in part) for part in ours)
        return (*ours[0], *ours[1], *image), (*outer, *sizes)

    def elements(self, number: int) -> int:
        """Elements of data, weights or result in VTA's memory."""
        return prod(self.shapes[number])


def embedded_layer(found: Strategy, config: VTAConfig) -> EmbeddedLayer:
    """Write a strategy as a layer.

    Raises
    ------
    EmbeddingError
        If the operator has more windows than a convolution, one along weights, or loops that no axis of it stands for.
    """
    embedding = found.embedding
    stored = [found.operands[embedding.operand(number)] for number in range(3)]
    kinds = _kinds(found, stored)
    windows = [dimension for dimension in stored[0].dimensions if dimension.kind == "stencil"]
    if len(windows) > 2:
        raise EmbeddingError(f"{embedding.operator.name} has {len(windows)} windows; VTA's convolutions have two")
    if any(dimension.kind == "stencil" for dimension in stored[1].dimensions):
        raise EmbeddingError(f"a window of {embedding.operator.name} slides along what would be VTA's weights")
    slides = [dimension.loops[0] for dimension in windows]
    taps = [dimension.loops[1] for dimension in windows]
    if any(step != 1 for _, step in taps):
        raise EmbeddingError(f"the taps of {embedding.operator.name} are not next to each other")
    image = {loop for loop, _ in slides}
    free = sorted((loop for loop in kinds["batch"] if loop not in image), key=lambda loop: -found.loops[loop].extent)
    image_loops = [loop for loop, _ in slides]
    while len(image_loops) < 2 and free:
        image_loops.append(free.pop(0))
    batch = [loop for loop in kinds["batch"] if loop not in image_loops]
    tap_loops = [loop for loop, _ in taps]
    sums = [loop for loop in kinds["sum"] if loop not in tap_loops]
    groups = kinds["group"]

    def order(number: int, outer: Sequence[int], windowed: Sequence[int]) -> tuple[int, ...]:
        dimensions = stored[number].dimensions
        at = {loop: place for place, dimension in enumerate(dimensions) for loop, _ in dimension.loops}
        lanes = [place for place, dimension in enumerate(dimensions) if dimension.kind == "lane"]
        return (*(at[loop] for loop in outer), *(at[loop] for loop in windowed), *lanes)

    extent = [loop.extent for loop in found.loops]
    n, g, c, o = (prod(extent[loop] for loop in loops) for loops in (batch, groups, sums, kinds["out"]))
    size = [(1, 1, 1)] * (2 - len(image_loops))  # (input, kernel, stride) along rows and columns
    for place, loop in enumerate(image_loops):
        if place < len(windows):
            size.append((windows[place].extent, extent[taps[place][0]], slides[place][1]))
        else:
            size.append((extent[loop], 1, 1))
    (height, kernel, stride), (width, kernel_across, stride_across) = size
    across = (kernel_across, stride_across, 0)
    conv = Conv2d(n, g * c, g * o, height, width, kernel, stride, 0, g, across)
    grouped = (g,) if g > 1 else ()
    rows, block = config.batch, config.block
    orders = (
        order(0, (*batch, *groups, *sums), image_loops),
        order(1, (*groups, *kinds["out"], *sums), tap_loops),
        order(2, (*batch, *groups, *kinds["out"]), image_loops),
    )
    shapes = (
        (n, *grouped, c, height, width, rows, block),
        (*grouped, o, c, kernel, kernel_across, block, block),
        (n, *grouped, o, conv.out_height, conv.out_width, rows, block),
    )
    at = {loop: place for place, dimension in enumerate(stored[2].dimensions) for loop, _ in dimension.loops}
    empty: list[list[int]] = [[]] * (2 - len(image_loops))
    axes = [batch, *([groups] if g > 1 else []), kinds["out"], *empty, *([loop] for loop in image_loops)]
    first, windowed = len(batch), len(image_loops)
    return EmbeddedLayer(
        found, conv, orders, shapes, tuple(tuple(at[loop] for loop in loops) for loops in axes),
        (first, len(groups) + len(kinds["out"]), first), (windowed, len(tap_loops), windowed),
    )  # fmt: skip


def _lane_axes(found: Strategy) -> tuple[int, int, int]:
    """Axes of the instruction that are rows of data, outputs of weights, and rows of the result."""
    left, right, _ = found.embedding.instruction.operands
    instruction = found.embedding.instruction
    rows = next(at for at in range(len(instruction.axes)) if left.uses(at) and not right.uses(at))
    outputs = next(at for at in range(len(instruction.axes)) if right.uses(at) and not left.uses(at))
    return rows, outputs, rows


def _kinds(found: Strategy, stored: Sequence[Stored]) -> dict[str, list[int]]:
    """Sort the loops by the operands that they move in."""
    names = {
        (True, False, True): "batch",
        (False, True, True): "out",
        (True, True, False): "sum",
        (True, True, True): "group",
    }
    kinds: dict[str, list[int]] = {name: [] for name in names.values()}
    for number, loop in enumerate(found.loops):
        uses = tuple(_moves(number, operand.dimensions) for operand in stored)
        if uses not in names:
            raise EmbeddingError(f"loop {loop.name} moves in one operand only; VTA's convolutions have no such loop")
        kinds[names[uses]].append(number)
    return kinds


def _moves(loop: int, dimensions: Sequence[Dimension]) -> bool:
    return any(loop == other for dimension in dimensions for other, _ in dimension.loops)
