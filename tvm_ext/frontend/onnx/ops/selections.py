"""Operators that select elements: maxima with their places, and parts."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from functools import reduce
from operator import eq, mul
from typing import Any, ClassVar

import numpy as np
from tvm import relax
from tvm.relax.frontend.onnx import onnx_frontend

from tvm_ext.frontend.onnx.ops import operator_level
from tvm_ext.frontend.onnx.ops.base import Converter, Node, add, astype, constant, dtype_of, emit, reshape
from tvm_ext.frontend.onnx.ops.computed_parts import pad_at_run_time, split_at_run_time
from tvm_ext.frontend.onnx.ops.extents import (
    as_tensor,
    can_prove,
    counted,
    is_computed_shape,
    is_number,
    listed,
    normal,
    number,
    reshape_to_computed,
    reshape_to_extents,
    slice_by_extents,
    taken_as,
)
from tvm_ext.frontend.onnx.ops.open_pooling import open_max_pool_with_indices
from tvm_ext.frontend.onnx.ops.positive import is_positive


def window_places(
    sizes: list[int], steps: list[int], kernel: list[int], strides: list[int], dilations: list[int], begins: list[int]
) -> np.ndarray:
    """List the elements of each window of a pooling operator.

    Parameters
    ----------
    sizes, steps : list of int
        Extents of the picture, and of the result.
    begins : list of int
        Padding before the first element of each axis.

    Returns
    -------
    numpy.ndarray of int64
        Of shape (windows, elements of the kernel): places in the flattened picture, in the order of the kernel. In
        place of padding there is the first element of the window that is none, and -1 if there is none.
    """
    places, inside = np.zeros([1, 1], "int64"), np.ones([1, 1], bool)
    for size, count, extent, stride, dilation, begin in zip(
        sizes, steps, kernel, strides, dilations, begins, strict=True
    ):
        along = np.arange(count)[:, None] * stride + np.arange(extent)[None] * dilation - begin
        places = np.kron(places, np.ones_like(along)) * size + np.kron(np.ones_like(places), along)
        inside = np.kron(inside, (along >= 0) & (along < size))
    first = np.take_along_axis(places, inside.argmax(1)[:, None], 1)
    return np.where(inside, places, np.where(inside.max(1, keepdims=True), first, -1))


def max_pool_with_indices(
    node: Node, bb: relax.BlockBuilder, x: Any, maxima: Any, attributes: dict[str, Any]
) -> tuple[Any, Any]:
    """Give the maxima of windows and where they are, in the whole tensor flattened.

    The elements of a window are gathered side by side; the first of equal ones counts.

    Parameters
    ----------
    x, maxima : relax.Expr
        The picture, and the result of the operator without indices, which says how many windows there are.
    attributes : dict
        Of the node, with its padding written out.
    """
    rank = len(node.dims(x, "X")) - 2
    pads = [int(pad) for pad in attributes.get("pads", [0] * 2 * rank)]
    if not all(isinstance(dim, int) for dim in (*node.dims(x, "X"), *node.dims(maxima, "Y"))):
        return open_max_pool_with_indices(node, bb, x, maxima, pads)
    batch, channels, *sizes = node.shape(x, "X")
    steps = list(node.shape(maxima, "Y"))[2:]
    kernel = node.integers("kernel_shape")
    strides, dilations = node.integers("strides", [1] * rank), node.integers("dilations", [1] * rank)
    places = window_places(sizes, steps, kernel, strides, dilations, pads[:rank])
    if places.size and places.min() < 0:
        node.refuse("a window has no element that is not padding, so there is no index of its maximum")
    flat = reshape(bb, x, [batch, channels, int(np.prod(sizes))])
    windows = bb.emit(relax.op.take(flat, constant(places.ravel(), "int64"), 2, mode="clip"))
    windows = reshape(bb, windows, [batch, channels, *places.shape])
    wide = astype(bb, windows, "int32") if dtype_of(x) in ("int8", "uint8") else windows
    which = bb.emit(relax.op.argmax(wide, 3))
    taken = bb.emit(relax.op.expand_dims(which, 3))
    maxima = reshape(bb, bb.emit(relax.op.gather_elements(windows, taken, 3)), [batch, channels, *steps])
    numbered = places
    if node.integer("storage_order", 0):  # columns before rows
        coordinates = np.unravel_index(places, sizes)
        numbered = np.ravel_multi_index(coordinates[::-1], sizes[::-1]) if places.size else places
    table = constant(numbered.ravel(), "int64")
    rows = constant(np.arange(len(places)) * places.shape[1], "int64")
    index = bb.emit(relax.op.take(table, reshape(bb, add(bb, which, rows), [-1]), 0, mode="clip"))
    index = reshape(bb, index, [batch, channels, len(places)])
    offsets = np.arange(batch * channels).reshape(batch, channels, 1) * int(np.prod(sizes))
    return maxima, reshape(bb, add(bb, index, constant(offsets, "int64")), [batch, channels, *steps])


class MaxUnpool(Converter):
    """Elements put back to where they were before pooling, zeros elsewhere."""

    @classmethod
    def convert(cls, node: Node, bb: relax.BlockBuilder, inputs: Any) -> Any:
        """Give the picture."""
        x, places = emit(bb, inputs[0]), emit(bb, inputs[1])
        batch, channels, *sizes = node.dims(x, "X")
        kernel, rank = node.integers("kernel_shape"), len(sizes)
        strides, pads = node.integers("strides", [1] * rank), node.integers("pads", [0] * 2 * rank)
        inferred = [
            (sizes[axis] - 1) * strides[axis] - pads[axis] - pads[axis + rank] + kernel[axis] for axis in range(rank)
        ]
        shape = [normal(extent) for extent in (batch, channels, *inferred)]
        if len(inputs) > 2 and inputs[2] is not None:
            target = listed(node, inputs[2]) or list(node.constant(inputs[2], "output_shape").ravel())
            if len(target) != len(shape) or not all(map(can_prove, map(eq, target, shape))):
                target, shape = ([int(dim) if is_number(dim) else dim for dim in dims] for dims in (target, shape))
                # ONNX's reference takes the indices for places in what the windows cover, onnxruntime for places in
                # the output.
                node.refuse(f"its output_shape is {target} and its windows cover {shape}; indices may be of either")
        empty = bb.emit(relax.op.zeros(relax.ShapeExpr([normal(reduce(mul, shape))]), dtype_of(x)))
        flat = relax.op.scatter_elements(empty, reshape(bb, places, [-1]), reshape(bb, x, [-1]), 0)
        return reshape(bb, bb.emit(flat), shape)


class Reshape(Converter):
    """Another shape; a zero in it is an extent of zero if attribute ``allowzero`` says so, else the input's extent."""

    @classmethod
    def _impl_v1(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict[str, Any], params: list[Any]) -> Any:
        node = Node("Reshape", attr, params)
        if len(inputs) > 1 and isinstance(inputs[1], relax.ShapeExpr) and node.array(inputs[1]) is None:
            return reshape_to_extents(node, bb, inputs[0], inputs[1].values)
        if len(inputs) > 1 and is_computed_shape(inputs[1]) and node.array(inputs[1]) is None:
            return reshape_to_computed(bb, inputs[0], inputs[1], bool(node.integer("allowzero", 0)))
        return onnx_frontend.Reshape.get_converter(13)(bb, inputs, attr, params)

    @classmethod
    def _impl_v14(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict[str, Any], params: list[Any]) -> Any:
        node = Node("Reshape", attr, params)
        target = node.array(inputs[1])
        if not attr.get("allowzero", 0) or target is None or np.all(target):
            return cls._impl_v1(bb, inputs, attr, params)
        x = emit(bb, inputs[0])
        if 0 not in node.shape(x, "data"):
            node.damaged(f"its shape {target.tolist()} has no elements, and its input has some")
        # Relax reads zeros in a shape as by default. No value is lost where there is none.
        return relax.op.zeros([int(extent) for extent in target], dtype_of(x))


class Split(Converter):
    """Parts along an axis, empty ones among them."""

    @classmethod
    def _impl_v2(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict[str, Any], params: list[Any]) -> Any:
        node = Node("Split", attr, params)
        return cls._split(node, bb, inputs, node.integers("split") or None)

    @classmethod
    def _impl_v13(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict[str, Any], params: list[Any]) -> Any:
        node = Node("Split", attr, params)
        given = inputs[1] if len(inputs) > 1 else None
        known = None if given is None else node.array(given)
        if given is not None and known is None:
            return split_at_run_time(node, bb, emit(bb, inputs[0]), given)
        return cls._split(node, bb, inputs, None if known is None else known.ravel().tolist())

    @staticmethod
    def _split(node: Node, bb: relax.BlockBuilder, inputs: Any, lengths: list[int] | None) -> Any:
        if lengths is None or all(length > 0 for length in lengths):
            # Equal parts, or borders that rise, as Relax wants them.
            attributes = dict(node.attributes) | ({} if lengths is None else {"split": lengths})
            version = 13 if lengths is None or len(inputs) > 1 else 1
            return onnx_frontend.Split.get_converter(version)(bb, inputs, attributes, node.parameters)
        x = emit(bb, inputs[0])
        axis = node.axis("axis", x.ty.ndim, 0)
        borders = np.cumsum([0, *lengths]).tolist()
        parts = [
            bb.emit(relax.op.strided_slice(x, [axis], [begin], [end])) for begin, end in itertools.pairwise(borders)
        ]
        return node.outputs(parts)


class Pad(Converter):
    """Padding, also with a value that is computed."""

    @classmethod
    def _impl_v2(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict[str, Any], params: list[Any]) -> Any:
        return operator_level.Pad.get_converter(2)(bb, inputs, attr, params)

    @classmethod
    def _impl_v11(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict[str, Any], params: list[Any]) -> Any:
        return cls._pad(11, Node("Pad", attr, params), bb, inputs)

    @classmethod
    def _impl_v18(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict[str, Any], params: list[Any]) -> Any:
        return cls._pad(18, Node("Pad", attr, params), bb, inputs)

    @classmethod
    def _impl_v19(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict[str, Any], params: list[Any]) -> Any:
        return cls._pad(19, Node("Pad", attr, params), bb, inputs)

    @staticmethod
    def _pad(version: int, node: Node, bb: relax.BlockBuilder, inputs: Any) -> Any:
        value, rest = inputs[2], inputs[3:]
        if node.text("mode", "constant") == "wrap":
            version = 19  # PyTorch writes it in operator sets before that, and onnxruntime takes it
        if node.array(inputs[1]) is None:
            return Pad._computed(node, bb, inputs)

        def padded(x: Any, by: Any) -> Any:
            attributes = dict(node.attributes)
            result = operator_level.Pad.get_converter(version)(
                bb, [x, inputs[1], by, *rest], attributes, node.parameters
            )
            return bb.normalize(result)

        is_constant = node.text("mode", "constant") == "constant"
        if value is None or not is_constant or node.array(value) is not None:
            return padded(inputs[0], value if is_constant else None)
        x = emit(bb, inputs[0])
        inside = padded(bb.emit(relax.op.ones(list(node.dims(x, "data")), "bool")), constant(np.array(False)))
        return relax.op.where(inside, padded(x, None), reshape(bb, value, []))

    @staticmethod
    def _computed(node: Node, bb: relax.BlockBuilder, inputs: Any) -> Any:
        """Pad by widths that are only known at run time."""
        x, widths = emit(bb, as_tensor(bb, inputs[0])), emit(bb, as_tensor(bb, inputs[1]))
        rank, mode = len(node.dims(x, "data")), node.text("mode", "constant")
        axes = np.arange(rank) if len(inputs) < 4 or inputs[3] is None else node.constant(inputs[3], "axes")
        if mode not in ("constant", "edge", "reflect", "wrap"):
            node.damaged(f"attribute mode is {mode!r}, constant, edge, reflect or wrap was expected")
        if node.dims(widths, "pads") != (2 * len(axes),):
            node.damaged(f"input pads has shape {node.dims(widths, 'pads')}, ({2 * len(axes)},) was expected")
        value = constant(0, dtype_of(x)) if inputs[2] is None else reshape(bb, emit(bb, inputs[2]), [])
        return pad_at_run_time(bb, x, widths, value, [node.in_range(int(axis), rank) for axis in axes], mode)


class TopK(Converter):
    """The largest or smallest elements and where they are; sorted also where the order may be any."""

    # TVM sorts these types only as others.
    as_others: ClassVar[Mapping[str, str]] = {
        "int8": "int32",
        "uint8": "int32",
        "int16": "int32",
        "uint16": "int32",
        "uint32": "int64",
    }

    @classmethod
    def convert(cls, node: Node, bb: relax.BlockBuilder, inputs: Any) -> Any:
        """Give the elements and their places."""
        attributes = dict(node.attributes) | {"sorted": 1}
        dtype = dtype_of(inputs[0])
        turned = constant(np.int64(-(2**63)), "int64")  # with this bit changed, unsigned numbers keep their order
        if dtype == "uint64":
            signed = astype(bb, emit(bb, inputs[0]), "int64")
            inputs[0] = bb.emit(relax.op.bitwise_xor(signed, turned))
        elif dtype in cls.as_others:
            inputs[0] = astype(bb, emit(bb, inputs[0]), cls.as_others[dtype])
        version, count = 11 if len(inputs) > 1 and inputs[1] is not None else 1, None
        asked = node.array(inputs[1]) if version == 11 else None
        if version == 11 and not cls._has_enough(node, inputs):
            count, inputs[1] = counted(node, bb, inputs[1]), constant([-1], "int64")  # all of them, in order
        found = bb.emit(onnx_frontend.TopK.get_converter(version)(bb, inputs, attributes, node.parameters))
        values, places = (bb.emit(relax.TupleGetItem(found, index)) for index in range(2))
        if count is not None:
            axis, zero = node.axis("axis", values.ty.ndim, -1), number(0)
            values, places = (
                emit(bb, slice_by_extents(bb, part, [zero], [count], [axis])) for part in (values, places)
            )
            if asked is not None:  # each run finds out whether there were as many
                whole = [number(int(asked.ravel()[0])) if at == axis else dim for at, dim in enumerate(values.ty.shape)]
                values, places = (taken_as(bb, part, whole) for part in (values, places))
        if dtype == "uint64":
            values = bb.emit(relax.op.bitwise_xor(values, turned))
        return relax.Tuple([astype(bb, values, dtype), places])

    @staticmethod
    def _has_enough(node: Node, inputs: Any) -> bool:
        """Whether there are as many elements as are asked for, whatever the sizes; TVM's kernel would read beyond.

        Not where none is asked for, of which TVM makes all.
        """
        asked, shape = node.array(inputs[1]), inputs[0].ty.shape
        if asked is None or shape is None:
            return asked is not None
        extent = shape[node.axis("axis", len(shape), -1)]
        count = int(asked.ravel()[0])
        if count == 0:
            return False
        return is_number(extent) or can_prove(extent >= number(count)) or is_positive(normal(extent - (count - 1)))


class Compress(Converter):
    """Elements, or slices along an axis, where a condition holds; what it says beyond the last of them counts not."""

    @classmethod
    def convert(cls, node: Node, bb: relax.BlockBuilder, inputs: Any) -> Any:
        """Give what is selected."""
        x, condition = emit(bb, inputs[0]), emit(bb, inputs[1])
        axis = node.in_range(node.integer("axis", 0), x.ty.ndim) if "axis" in node.attributes else None
        if axis is None:
            x = reshape(bb, x, [-1])
        extent, known = None if x.ty.shape is None else x.ty.shape[axis or 0], node.array(inputs[1])
        if known is not None and extent is not None and is_number(extent):
            kept = np.flatnonzero(known[: int(extent)])
            return relax.op.take(x, relax.const(kept.astype("int64"), "int64"), axis or 0, mode="clip")
        if extent is not None and condition.ty.shape is not None:
            condition = emit(bb, slice_by_extents(bb, condition, [number(0)], [extent], [0]))
        stock = onnx_frontend.Compress.get_converter(11)
        return stock(bb, [x, condition], dict(node.attributes), node.parameters)


_OPERATORS = (Compress, MaxUnpool, Pad, Reshape, Split, TopK)
CONVERTERS: dict[tuple[str, str], type] = {("", operator.__name__): operator for operator in _OPERATORS}
