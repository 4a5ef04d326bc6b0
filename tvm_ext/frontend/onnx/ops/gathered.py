"""Operators that gather from, or scatter to, computed positions: images from columns, caches, deformed windows."""

from __future__ import annotations

from math import prod
from typing import Any

from tvm import relax, te, tirx
from tvm.relax.frontend.onnx import onnx_frontend

from tvm_ext.frontend.onnx.ops.base import Converter, Node, astype, dtype_of, emit, known
from tvm_ext.frontend.onnx.ops.extents import (
    can_prove,
    extents_in,
    is_computed_shape,
    is_number,
    listed,
    normal,
    taken_as,
)
from tvm_ext.frontend.relax.columns import picture_of_columns, window_steps


class Col2Im(Converter):
    """Sum of the windows of a picture, given as columns; the inverse of unfolding."""

    @classmethod
    def convert(cls, node: Node, bb: relax.BlockBuilder, inputs: Any) -> Any:
        """Give the picture."""
        x = emit(bb, inputs[0])
        extents: Any = listed(node, inputs[1])
        if extents is None and is_computed_shape(inputs[1]):
            extents = extents_in(bb, inputs[1]).values
        if extents is None:
            extents = node.constant(inputs[1], "image_shape")
        picture: list[Any] = [int(extent) if is_number(extent) else extent for extent in extents]
        block = [int(extent) for extent in node.constant(inputs[2], "block_shape")]
        rank = len(picture)
        ones, zeros = [1] * rank, [0] * 2 * rank
        strides, dilations = node.integers("strides", ones), node.integers("dilations", ones)
        pads = node.integers("pads", zeros)
        steps = window_steps(picture, block, strides, dilations, pads)
        batch, rows, columns = node.dims(x, "input")
        count = normal(prod(steps))
        fits = not isinstance(columns, int) or not is_number(count) or columns == int(count)
        if not fits or not isinstance(rows, int) or rows % prod(block):
            node.damaged(f"input of shape {(batch, rows, columns)} does not hold windows of {block} in {picture}")
        if not can_prove(columns == count):
            x = taken_as(bb, x, [x.ty.shape[0], x.ty.shape[1], count])
        return picture_of_columns(bb, x, picture, block, strides, dilations, pads)


class ScatterElements(onnx_frontend.ScatterElements):
    """With maxima and minima from version 16 on, as PyTorch writes them and onnxruntime takes them; ONNX has 18."""

    _impl_v16 = onnx_frontend.ScatterElements._impl_v18


class ScatterND(onnx_frontend.ScatterND):
    """With maxima and minima from version 16 on, like ``ScatterElements``."""

    _impl_v16 = onnx_frontend.ScatterND._impl_v18


class TensorScatter(Converter):
    """A cache with an update written at an index of its own for each sample of the batch."""

    @classmethod
    def convert(cls, node: Node, bb: relax.BlockBuilder, inputs: Any) -> Any:
        """Give the updated cache."""
        past, update = emit(bb, inputs[0]), emit(bb, inputs[1])
        shape, written = node.dims(past, "past_cache"), node.dims(update, "update")
        axis = node.axis("axis", len(shape), -2)
        circular = node.text("mode", "linear") == "circular"
        start: Any = relax.op.zeros([shape[0]], "int64") if inputs[2] is None else known(node, inputs[2])
        start = emit(bb, astype(bb, emit(bb, start), "int64"))

        def scatter(cache: Any, new: Any, first: Any) -> Any:
            def element(*at: Any) -> Any:
                step = at[axis] - first[at[0]]
                if circular:
                    step = tirx.floormod(step, shape[axis])
                inside = tirx.all(step >= 0, step < written[axis])
                place = list(at)
                place[axis] = tirx.max(tirx.min(step, written[axis] - 1), 0)
                return tirx.if_then_else(inside, new[tuple(place)], cache[at])

            return te.compute(shape, element, name="tensor_scatter")

        return bb.emit_te(scatter, past, update, start, primfunc_name_hint="tensor_scatter")


class Det(Converter):
    """Determinant of small square matrices, by expansion along their rows."""

    @classmethod
    def convert(cls, node: Node, bb: relax.BlockBuilder, inputs: Any) -> Any:
        """Give the determinants."""
        x = emit(bb, inputs[0])
        *batch, rows, columns = node.dims(x, "X")
        rows, columns = (node.fixed(dim, "X", len(batch) + axis) for axis, dim in enumerate((rows, columns)))
        if rows != columns:
            node.damaged(f"the matrices are {rows} by {columns}, square ones were expected")
        if not 0 < rows <= 4:
            node.refuse(f"the matrices are {rows} by {columns}, up to 4 by 4 are supported")

        def minor(source: Any, at: Any, row: int, left: tuple[int, ...]) -> Any:
            total: Any = None
            for position, column in enumerate(left):
                entry = source[(*at, row, column)]
                rest = left[:position] + left[position + 1 :]
                term = entry * minor(source, at, row + 1, rest) if rest else entry
                total = term if total is None else total - term if position % 2 else total + term
            return total

        def determinants(source: Any) -> Any:
            return te.compute(tuple(batch), lambda *at: minor(source, at, 0, tuple(range(rows))), name="det")

        if not batch:
            x = bb.emit(relax.op.reshape(x, [1, rows, columns]))
            batch = [1]
            return relax.op.reshape(bb.emit_te(determinants, x, primfunc_name_hint="det"), [])
        return bb.emit_te(determinants, x, primfunc_name_hint="det")


class DeformConv(Converter):
    """Convolution whose windows are moved by an offset for each of their elements, with linear interpolation."""

    @classmethod
    def convert(cls, node: Node, bb: relax.BlockBuilder, inputs: Any) -> Any:
        """Give the convolution: moved windows as columns, then a product with the weights."""
        x, weights, offsets = (emit(bb, value) for value in inputs[:3])
        bias, mask = inputs[3], inputs[4]
        batch, channels, height, width = node.dims(x, "X")
        channels = node.fixed(channels, "X", 1)
        filters, depth, tall, wide = node.shape(weights, "W")
        _, _, rows, columns = node.dims(offsets, "offset")
        group, spread = node.integer("group", 1), node.integer("offset_group", 1)
        strides, dilations = node.integers("strides", (1, 1)), node.integers("dilations", (1, 1))
        pads = node.integers("pads", (0, 0, 0, 0))
        if channels % spread or channels % group or depth * group != channels:
            node.damaged(f"{channels} channels in {group} groups and {spread} offset groups do not fit the weights")
        dtype, count = dtype_of(x), tall * wide
        operands = [x, offsets] + ([] if mask is None else [emit(bb, mask)])

        def columns_of(source: Any, moved: Any, share: Any = None) -> Any:
            # Channels of a group lie on an axis of their own, along which places are the same.
            members = channels // spread

            def pixel(image: Any, channel: Any, row: Any, column: Any) -> Any:
                inside = tirx.all(row >= 0, row < height, column >= 0, column < width)
                at = (tirx.max(tirx.min(row, height - 1), 0), tirx.max(tirx.min(column, width - 1), 0))
                return tirx.if_then_else(inside, source[(image, channel, *at)], tirx.const(0, dtype))

            def kept(place: Any, extent: Any) -> Any:
                # Beyond the image all is 0, where the distance of an infinite place from itself would be NaN.
                inside = tirx.And(place > tirx.const(-1, dtype), place < tirx.Cast(dtype, extent))
                return tirx.Select(inside, place, tirx.const(-2, dtype))

            def element(image: Any, part: Any, member: Any, step: Any, up: Any, across: Any) -> Any:
                channel = part * members + member
                base = part * 2 * count + 2 * step
                place = (
                    up * strides[0] - pads[0] + tirx.floordiv(step, wide) * dilations[0],
                    across * strides[1] - pads[1] + tirx.floormod(step, wide) * dilations[1],
                )
                down = kept(place[0].astype(dtype) + moved[image, base, up, across], height)
                right = kept(place[1].astype(dtype) + moved[image, base + 1, up, across], width)
                low, near = tirx.floor(down), tirx.floor(right)
                value: Any = tirx.const(0, dtype)
                for lower in (0, 1):
                    for nearer in (0, 1):
                        by_row = down - low if lower else 1 - (down - low)
                        by_column = right - near if nearer else 1 - (right - near)
                        corner = pixel(image, channel, low.astype("int64") + lower, near.astype("int64") + nearer)
                        value = value + by_row * by_column * corner
                return value if share is None else value * share[image, part * count + step, up, across]

            return te.compute((batch, spread, members, count, rows, columns), element, name="deformed_columns")

        unfolded = bb.emit_te(columns_of, *operands, primfunc_name_hint="deformed_columns")
        unfolded = bb.emit(relax.op.reshape(unfolded, [batch, group, depth * count, rows * columns]))
        kernel = bb.emit(relax.op.reshape(weights, [1, group, filters // group, depth * count]))
        result = bb.emit(relax.op.matmul(kernel, unfolded))
        result = bb.emit(relax.op.reshape(result, [batch, filters, rows, columns]))
        if bias is None:
            return result
        return relax.op.add(result, bb.emit(relax.op.reshape(emit(bb, bias), [1, filters, 1, 1])))


_OPERATORS = (Col2Im, DeformConv, Det, ScatterElements, ScatterND, TensorScatter)
CONVERTERS: dict[tuple[str, str], type] = {("", operator.__name__): operator for operator in _OPERATORS}
