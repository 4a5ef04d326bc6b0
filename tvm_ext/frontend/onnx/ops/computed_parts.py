"""Parts and borders of tensors whose extents are computed from values: slices, paddings, splits."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from tvm_ext.frontend.onnx.ops.base import Node, astype, constant, emit
from tvm_ext.frontend.onnx.ops.extents import as_tensor, extents_in, listed, normal, number, slice_by_extents


def slice_at_run_time(
    node: Node, bb: relax.BlockBuilder, x: Any, starts: Any, ends: Any, axes: list[int], steps: Any
) -> Any:
    """Slice with bounds, and maybe steps, that are computed.

    Each axis is gathered at ``start + step * i``; how many there are is a symbolic variable of the module.

    Parameters
    ----------
    x : relax.Expr
        The tensor; its rank is known.
    starts, ends : relax.Expr
        One integer for each of ``axes``, beyond the ends and from the back as ONNX allows.
    axes : list of int
        Which axes.
    steps : list of int or relax.Expr
        Distances between what is taken, one for each axis; not zero. A computed step of zero takes nothing.
    """
    zero, one = constant([0], "int64"), constant([1], "int64")
    for position, axis in enumerate(axes):
        start, end = (_picked(bb, bound, position) for bound in (starts, ends))
        extent = x.ty.shape[axis] if x.ty.shape is not None else None
        if isinstance(extent, tvm.tirx.IntImm):
            size: Any = constant([int(extent)], "int64")
        else:
            shape = bb.emit(relax.op.shape_to_tensor(bb.emit(relax.op.shape_of(x))))
            size = bb.emit(relax.op.strided_slice(shape, [0], [axis], [axis + 1]))
        step = constant([steps[position]], "int64") if isinstance(steps, list) else _picked(bb, steps, position)
        # Of a negative step the first is at most the last element, and the end at least the one before the first.
        backwards = astype(bb, bb.emit(relax.op.less(step, zero)), "int64")
        highest = bb.emit(relax.op.subtract(size, backwards))
        first = _within(bb, _from_front(bb, start, size), zero, highest)
        last = _within(bb, _from_front(bb, end, size), bb.emit(relax.op.negative(backwards)), highest)
        apart = bb.emit(relax.op.subtract(last, first))
        apart = bb.emit(relax.op.where(bb.emit(relax.op.less(step, zero)), bb.emit(relax.op.negative(apart)), apart))
        stride = bb.emit(relax.op.maximum(bb.emit(relax.op.abs(step)), one))
        apart = bb.emit(relax.op.add(apart, bb.emit(relax.op.subtract(stride, one))))
        count = bb.emit(relax.op.maximum(bb.emit(relax.op.floor_divide(apart, stride)), zero))
        if not isinstance(steps, list):
            count = bb.emit(relax.op.where(bb.emit(relax.op.equal(step, zero)), zero, count))
        places = bb.emit(relax.op.multiply(_counting(bb, count, "picked"), step))
        x = bb.emit(relax.op.take(x, bb.emit(relax.op.add(places, first)), axis, mode="clip"))
    return x


def pad_at_run_time(bb: relax.BlockBuilder, x: Any, widths: Any, value: Any, axes: list[int], mode: str) -> Any:
    """Pad with widths that are computed.

    Each axis is gathered at ``i - before``; how long it becomes is a symbolic variable of the module.

    Parameters
    ----------
    x : relax.Expr
        The tensor; its shape is known, as expressions.
    widths : relax.Expr
        What to put in front of each of ``axes``, then behind each; a negative number takes away.
    value : relax.Expr
        A scalar, for the mode constant.
    axes : list of int
    mode : str
        ``constant``, ``edge``, ``reflect`` or ``wrap``.
    """
    zero, one = constant([0], "int64"), constant([1], "int64")
    for position, axis in enumerate(axes):
        before, after = _picked(bb, widths, position), _picked(bb, widths, len(axes) + position)
        dims = list(x.ty.shape)
        size = bb.emit(relax.op.shape_to_tensor(relax.ShapeExpr([dims[axis]])))
        count = bb.emit(relax.op.add(bb.emit(relax.op.add(size, before)), after))
        places = _counting(bb, bb.emit(relax.op.maximum(count, zero)), "padded")
        places = bb.emit(relax.op.subtract(places, before))
        if mode == "constant":
            # One more element is the value; it is where a place is none of the tensor's.
            x = bb.emit(relax.op.concat([x, bb.emit(relax.op.full([*dims[:axis], 1, *dims[axis + 1 :]], value))], axis))
            low, high = bb.emit(relax.op.less(places, zero)), bb.emit(relax.op.less(places, size))
            places = bb.emit(relax.op.where(low, size, bb.emit(relax.op.where(high, places, size))))
        elif mode == "reflect":
            last = bb.emit(relax.op.subtract(size, one))
            mirrored = bb.emit(relax.op.abs(bb.emit(relax.op.subtract(last, bb.emit(relax.op.abs(places))))))
            places = bb.emit(relax.op.subtract(last, mirrored))
        elif mode == "wrap":
            places = bb.emit(relax.op.floor_mod(places, bb.emit(relax.op.maximum(size, one))))
        x = bb.emit(relax.op.take(x, places, axis, mode="clip"))
    return x


def split_at_run_time(node: Node, bb: relax.BlockBuilder, x: Any, lengths: Any) -> Any:
    """Split a tensor into parts whose lengths are extents, or are computed.

    Parameters
    ----------
    lengths : relax.Expr
        As many as there are parts; a run checks computed ones (see :mod:`tvm_ext.frontend.onnx.value_checks`).
    """
    axis = node.axis("axis", len(node.dims(x, "input")), 0)
    extents = listed(node, lengths) if isinstance(lengths, relax.ShapeExpr) else None
    if extents is None:
        lengths = emit(bb, as_tensor(bb, lengths))
        if not isinstance(node.dims(lengths, "split")[0], int):
            node.refuse("how many parts there are is only known at run time")
        extents = list(extents_in(bb, lengths).values)
    parts, begin = [], number(0)
    for extent in extents:
        end = normal(begin + extent)
        parts.append(emit(bb, slice_by_extents(bb, x, [begin], [end], [axis])))
        begin = end
    return node.outputs(parts)


def _picked(bb: relax.BlockBuilder, vector: Any, position: int) -> Any:
    """Take one element of a vector of integers, as a vector of int64."""
    return astype(bb, bb.emit(relax.op.strided_slice(vector, [0], [position], [position + 1])), "int64")


def _counting(bb: relax.BlockBuilder, count: Any, name: str) -> Any:
    """Count from zero; how far is computed, and becomes a symbolic variable of the module."""
    extent = tvm.tirx.Var(name, "int64")
    bb.match_cast(bb.emit(relax.op.tensor_to_shape(count)), relax.ShapeType([extent]))
    return bb.emit(relax.op.arange(0, extent, 1, "int64"))


def _from_front(bb: relax.BlockBuilder, place: Any, size: Any) -> Any:
    is_negative = bb.emit(relax.op.less(place, constant([0], "int64")))
    return bb.emit(relax.op.where(is_negative, bb.emit(relax.op.add(place, size)), place))


def _within(bb: relax.BlockBuilder, value: Any, lowest: Any, highest: Any) -> Any:
    return bb.emit(relax.op.minimum(bb.emit(relax.op.maximum(value, lowest)), highest))
