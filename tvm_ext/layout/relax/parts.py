"""Blocked tensors that are joined, split, sliced and padded: along channels in whole blocks, along an image anywhere.

before: ``y = concat((a, b), axis=2)`` with ``a`` and ``b`` of convolutions, in blocks
after:  ``y = concat((a, b), axis=2)`` of the blocks, as rows of a block lie as rows of a channel do
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax

from tvm_ext.layout import lanes as lane_arithmetic
from tvm_ext.layout.block_selection import PLAIN
from tvm_ext.layout.lanes import ANYTHING, Lanes
from tvm_ext.layout.relax.blocked import Blocked, BlockedLayoutMutator
from tvm_ext.relax_utils import open_shape, slice_begins
from tvm_ext.schedules.compute.layout import turn


def concat_rule(rewriter: BlockedLayoutMutator, call: relax.Call) -> Blocked | None:
    """Join tensors along their channels, where every part fills its blocks, or images along their rows or columns."""
    items = call.args[0]
    shape = open_shape(call)
    if not isinstance(items, relax.Tuple) or call.attrs.axis is None or shape is None:
        return None
    known = [rewriter.known(item) for item in items.fields]
    first = next((value for value in known if value), None)
    axis = int(call.attrs.axis) % len(shape)
    if first is None or first.rank != len(shape) or axis == 0:
        return None
    block = rewriter.wanted_block or min(value.block for value in known if value)
    if block == PLAIN:
        return None
    if axis == 1:
        channels = [(open_shape(item) or (0, None))[1] for item in items.fields]
        if any(not isinstance(count, int) or count % block for count in channels):
            return None
        parts = [rewriter.to_block(item, block, first.turned).var for item in items.fields]
        # Every part fills its blocks, so that all lanes are channels.
        return rewriter.describe(rewriter.builder_.emit(relax.op.concat(parts, axis=1)), first, ANYTHING, sum(channels))
    if any(value is None for value in known):
        return None  # a plain part would be brought into blocks only to be copied
    images = [rewriter.to_block(item, block, first.turned) for item in items.fields]
    joined = rewriter.builder_.emit(relax.op.concat([image.var for image in images], _place(axis, first)))
    return rewriter.describe(joined, first, _either([image.lanes for image in images]))


def split_rule(rewriter: BlockedLayoutMutator, call: relax.Call) -> tuple[Blocked, ...] | None:
    """Split a tensor between blocks of channels that are full, or an image anywhere."""
    value = rewriter.known(call.args[0])
    sections = [open_shape(field) for field in call.ty.fields]
    if value is None or any(shape is None for shape in sections):
        return None
    axis = int(call.attrs.axis) % value.rank
    extents = [shape[axis] for shape in sections if shape is not None]
    step = value.block if axis == 1 else 1
    if axis == 0 or (axis == 1 and not value.full):
        return None
    if any(not isinstance(extent, int) or extent % step for extent in extents):
        return None
    bounds = [int(bound) for bound in np.cumsum([extent // step for extent in extents])[:-1]]
    parts = rewriter.builder_.emit(relax.op.split(value.var, bounds, _place(axis, value)))
    items = [rewriter.builder_.emit(relax.TupleGetItem(parts, index)) for index in range(len(sections))]
    if axis > 1:
        return tuple(rewriter.describe(item, value, value.lanes) for item in items)
    return tuple(rewriter.describe(item, value, ANYTHING, extent) for item, extent in zip(items, extents, strict=True))


def slice_rule(rewriter: BlockedLayoutMutator, call: relax.Call) -> Blocked | None:
    """Take rows or columns of an image, or whole blocks of channels."""
    value = rewriter.known(call.args[0])
    axes = call.args[1]
    if value is None or value.block == PLAIN or not isinstance(axes, relax.Tuple):
        return None
    numbers = [_integer(axis) for axis in axes.fields]
    if [number is not None and number % value.rank for number in numbers] == [1]:
        return _channels(rewriter, call, value)
    if any(number is None or number % value.rank < 2 for number in numbers):
        return None
    places = [_place(number % value.rank, value) for number in numbers if number is not None]
    taken = relax.Call(
        call.op, [value.var, relax.Tuple([relax.prim_value(place) for place in places]), *call.args[2:]], call.attrs
    )
    return rewriter.describe(rewriter.builder_.emit(taken), value, value.lanes)


def pad_rule(rewriter: BlockedLayoutMutator, call: relax.Call) -> Blocked | None:
    """Put numbers, or its own rows and columns, around an image."""
    value, attributes = rewriter.known(call.args[0]), call.attrs
    widths = [int(width) for width in attributes.pad_width]
    if value is None or value.block == PLAIN or value.is_open or min(widths) < 0 or any(widths[:4]):
        return None
    pairs = [tuple(widths[place : place + 2]) for place in range(4, len(widths), 2)]
    stored = turn([*([(0, 0)] if value.rank == 3 else []), *pairs], value.turned)
    outer = [0] * 4 + [width for pair in stored for width in pair] + [0, 0]
    mode, number = str(attributes.pad_mode), float(attributes.pad_value)
    padded = rewriter.builder_.emit(relax.op.nn.pad(value.var, outer, mode, number))
    lanes: Lanes | None = value.lanes
    if mode == "constant":
        lanes = _either([lanes, lane_arithmetic.of_values(np.array([number]), str(call.ty.dtype))])
    return rewriter.describe(padded, value, lanes)


def _channels(rewriter: BlockedLayoutMutator, call: relax.Call, value: Blocked) -> Blocked | None:
    """Take blocks of channels; what is not full can only be the last one."""
    begins, shape = slice_begins(call, open_shape(call.args[0]) or ()), open_shape(call)
    if begins is None or shape is None or not isinstance(shape[1], int) or shape[1] == 0:
        return None
    begin, end = begins[1], begins[1] + shape[1]
    if begin % value.block or (end % value.block and end != value.channels):
        return None
    bounds = [[1], [begin // value.block], [-(-end // value.block)]]
    taken = rewriter.builder_.emit(relax.op.strided_slice(value.var, *bounds))
    return rewriter.describe(taken, value, value.lanes if end == value.channels else ANYTHING, shape[1])


def _place(axis: int, value: Blocked) -> int:
    """Give the axis of a blocked tensor that an axis of the plain one is."""
    if axis < 2:
        return axis
    places = turn(range(2, len(value.shape) - 1), value.turned)
    return places[axis - value.rank]


def _either(lanes: Sequence[Lanes | None]) -> Lanes | None:
    """Bound the lanes of what is made of several tensors."""
    known = [item for item in lanes if item is not None]
    if len(known) < len(lanes):
        return ANYTHING
    return Lanes(min(item.low for item in known), max(item.high for item in known))


def _integer(value: Any) -> int | None:
    value = getattr(value, "value", value)
    return int(value) if isinstance(value, int) else None
