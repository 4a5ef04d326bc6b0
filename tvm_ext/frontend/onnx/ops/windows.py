"""Sliding-window operators whose padding TVM's converters work out otherwise than ONNX, and slices."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax
from tvm.relax.frontend.onnx import onnx_frontend

from tvm_ext.dynamic import LARGEST_EXTENT
from tvm_ext.frontend.onnx.ops.base import Converter, Node, constant, dtype_of, emit, multiply, subtract
from tvm_ext.frontend.onnx.ops.computed_parts import slice_at_run_time
from tvm_ext.frontend.onnx.ops.extents import as_tensor, listed, slice_by_extents
from tvm_ext.frontend.onnx.ops.open_padding import depends_on_size, padded_at_run_time
from tvm_ext.frontend.onnx.ops.selections import max_pool_with_indices

_POOL_OPSET = 12
_SLICE_OPSET = 13
_SAME = ("SAME_UPPER", "SAME_LOWER")


def same_padding(
    sizes: list[int], kernel: list[int], strides: list[int], dilations: list[int], upper: bool
) -> list[int]:
    """Give the padding with which the output is the input divided by the stride, rounded up.

    Parameters
    ----------
    upper : bool
        Put the odd element at the end, else at the beginning.

    Returns
    -------
    list of int
        All beginnings, then all ends.
    """
    begins, ends = [], []
    for size, extent, stride, dilation in zip(sizes, kernel, strides, dilations, strict=True):
        total = max((-(-size // stride) - 1) * stride + (extent - 1) * dilation + 1 - size, 0)
        begins.append(total // 2 if upper else total - total // 2)
        ends.append(total - begins[-1])
    return begins + ends


def _padded_by_hand(node: Node, x: Any, kernel: list[int]) -> dict[str, Any]:
    """Give attributes that write the automatic padding of a node out.

    Raises
    ------
    UnsupportedOperatorError
        If it depends on an extent that is only known at run time.
    """
    sizes = list(node.dims(x, "X")[2:])
    ones = [1] * len(sizes)
    strides, dilations = node.integers("strides", ones), node.integers("dilations", ones)
    for axis, (size, stride) in enumerate(zip(sizes, strides, strict=True)):
        if depends_on_size(size, (kernel[axis] - 1) * dilations[axis] + 1, stride):
            node.refuse(
                f"its automatic padding in steps of {stride} depends on extent {size}, which is open; bind the model's "
                "input shapes, or export the model with the padding written out"
            )
        sizes[axis] = size if isinstance(size, int) else 1  # padding in steps of one is the same for all sizes
    pads = same_padding(sizes, kernel, strides, dilations, node.text("auto_pad") == "SAME_UPPER")
    return {"pads": pads, "auto_pad": b"NOTSET"}


def _padded(
    node: Node, bb: relax.BlockBuilder, inputs: Any, kernel: list[int], filling: Any
) -> tuple[dict[str, Any], list[Any]]:
    """Give attributes that write the automatic padding out, and operands, padded where the sizes of a run decide.

    Raises
    ------
    UnsupportedOperatorError
        If the sizes decide and padding is no value.
    """
    sizes = node.dims(inputs[0], "X")[2:]
    ones = [1] * len(sizes)
    strides, dilations = node.integers("strides", ones), node.integers("dilations", ones)
    reaches = [(extent - 1) * dilation + 1 for extent, dilation in zip(kernel, dilations, strict=True)]
    is_placed = node.attributes.get("tvm_custom", {}).get("num_outputs", 1) > 1
    if filling == "none" or is_placed or not any(map(depends_on_size, sizes, reaches, strides)):
        return dict(node.attributes) | _padded_by_hand(node, inputs[0], kernel), inputs
    padded = padded_at_run_time(node, bb, inputs[0], reaches, strides, filling)
    written = {"pads": [0] * 2 * len(sizes), "auto_pad": b"NOTSET"}
    return dict(node.attributes) | written, onnx_frontend.onnx_input([padded, *list(inputs)[1:]])


def _rounded_up_by_padding(node: Node) -> dict[str, Any]:
    """Give attributes that round the number of windows up by padding at the end, where no window begins in it."""
    kernel = node.integers("kernel_shape")
    ones, pads = [1] * len(kernel), node.integers("pads", [0] * 2 * len(kernel))
    ends = [
        max(end, min(end + stride, (extent - 1) * dilation + 1) - 1)
        for end, extent, stride, dilation in zip(
            pads[len(kernel) :], kernel, node.integers("strides", ones), node.integers("dilations", ones), strict=True
        )
    ]
    return {"pads": pads[: len(kernel)] + ends, "ceil_mode": 0}


class Conv(Converter):
    """Convolution whose automatic padding is written out where extents are open."""

    @classmethod
    def convert(cls, node: Node, bb: relax.BlockBuilder, inputs: Any) -> Any:
        """Give the convolution."""
        attributes = dict(node.attributes)
        if node.text("auto_pad", "NOTSET") in _SAME and not all(
            isinstance(dim, int) for dim in node.dims(inputs[0], "X")
        ):
            kernel = node.integers("kernel_shape", node.shape(inputs[1], "W")[2:])
            attributes, inputs = _padded(node, bb, inputs, kernel, 0.0)
        return onnx_frontend.Conv.get_converter(11)(bb, inputs, attributes, node.parameters)


class _Pool(Converter):
    """A pooling operator with its automatic padding written out."""

    stock: Any
    filling: Any = "none"
    """What padding may hold that each run computes: None is the lowest value of the type."""

    @classmethod
    def convert(cls, node: Node, bb: relax.BlockBuilder, inputs: Any) -> Any:
        """Give the pooled tensor."""
        attributes = dict(node.attributes)
        if node.text("auto_pad", "NOTSET") in _SAME:
            attributes, inputs = _padded(node, bb, inputs, node.integers("kernel_shape"), cls.filling)
        elif node.integer("ceil_mode", 0):
            attributes |= cls.rounded_up(node, inputs[0])
        pooled = cls.stock.get_converter(_POOL_OPSET)(bb, inputs, attributes, node.parameters)
        return cls.with_indices(node, bb, inputs, pooled, attributes)

    @classmethod
    def rounded_up(cls, node: Node, x: Any) -> dict[str, Any]:
        """Give attributes that round an open number of windows up.

        TVM's kernel chooses between two numbers of windows, and whatever follows would have that choice in its extents.
        """
        if all(isinstance(dim, int) for dim in node.dims(x, "X")[2:]):
            return {}
        return _rounded_up_by_padding(node) | {"count_include_pad": 0}

    @classmethod
    def with_indices(
        cls, node: Node, bb: relax.BlockBuilder, inputs: Any, pooled: Any, attributes: dict[str, Any]
    ) -> Any:
        """Add what a node asks for beside the pooled tensor: nothing."""
        return pooled


class MaxPool(_Pool):
    """Maximum over windows, and where it is if that is asked for."""

    stock = onnx_frontend.MaxPool
    filling = None

    @classmethod
    def with_indices(
        cls, node: Node, bb: relax.BlockBuilder, inputs: Any, pooled: Any, attributes: dict[str, Any]
    ) -> Any:
        """Add the places of the maxima."""
        if node.attributes.get("tvm_custom", {}).get("num_outputs", 1) < 2:
            return pooled
        values, places = max_pool_with_indices(node, bb, emit(bb, inputs[0]), bb.normalize(pooled), attributes)
        return node.outputs([values, places])


class AveragePool(_Pool):
    """Mean over windows."""

    stock = onnx_frontend.AveragePool

    @classmethod
    def convert(cls, node: Node, bb: relax.BlockBuilder, inputs: Any) -> Any:
        """Give the pooled tensor; padding that counts is written out where an open number of windows is rounded up.

        What a last window reaches beyond the padding does not count.
        """
        sizes, pads = node.dims(inputs[0], "X")[2:], node.integers("pads")
        counts = node.integer("ceil_mode", 0) and node.integer("count_include_pad", 0) and any(pads)
        if not counts or all(isinstance(size, int) for size in sizes):
            return super().convert(node, bb, inputs)
        kernel, ones = node.integers("kernel_shape"), [1] * len(sizes)
        strides, dilations = node.integers("strides", ones), node.integers("dilations", ones)
        begins, ends = pads[: len(sizes)], pads[len(sizes) :]
        for axis, end in enumerate(ends):
            reach = (kernel[axis] - 1) * dilations[axis] + 1
            if end + strides[axis] > reach:  # such a window is none
                node.refuse(
                    f"ceil_mode=1 and count_include_pad=1 with pads={pads}: along axis {axis + 2} the "
                    f"last window of an open size may begin in the padding; give the sizes with --input-shape"
                )
        width = [0, 0, 0, 0] + [pad for pair in zip(begins, ends, strict=True) for pad in pair]
        padded = bb.emit(relax.op.nn.pad(emit(bb, inputs[0]), width))
        attributes = dict(node.attributes) | {"pads": [0] * len(pads), "count_include_pad": 0}
        return super().convert(Node("AveragePool", attributes, node.parameters), bb, [padded])


class LpPool(_Pool):
    """Norm over windows."""

    stock = onnx_frontend.LpPool
    filling = 0.0

    @classmethod
    def rounded_up(cls, node: Node, x: Any) -> dict[str, Any]:
        """Pad at the end as far as the last window reaches; TVM multiplies means, which are of fewer elements there."""
        return _rounded_up_by_padding(node)


class ConvTranspose(Converter):
    """Transposed convolution whose output shape may be given instead of its padding."""

    @classmethod
    def convert(cls, node: Node, bb: relax.BlockBuilder, inputs: Any) -> Any:
        """Give the convolution."""
        attributes = dict(node.attributes)
        target = node.integers("output_shape")
        if target:
            shape, weights = node.shape(inputs[0], "X"), node.shape(inputs[1], "W")
            sizes, kernel = shape[2:], node.integers("kernel_shape", weights[2:])
            zeros, ones = [0] * len(sizes), [1] * len(sizes)
            strides, dilations = node.integers("strides", ones), node.integers("dilations", ones)
            extra = node.integers("output_padding", zeros)
            begins, ends = [], []
            for axis, wanted in enumerate(target[-len(sizes) :]):
                reach = (kernel[axis] - 1) * dilations[axis] + 1
                total = strides[axis] * (sizes[axis] - 1) + extra[axis] + reach - wanted
                extra[axis] += max(-total, 0)
                total = max(total, 0)
                if extra[axis] >= strides[axis]:
                    reached = wanted - extra[axis]
                    node.refuse(f"output_shape asks for {wanted} elements where the kernel reaches {reached}")
                small = total // 2
                begins.append(small if node.text("auto_pad") == "SAME_UPPER" else total - small)
                ends.append(total - begins[-1])
            attributes |= {"pads": begins + ends, "output_padding": extra, "auto_pad": b"NOTSET"}
            del attributes["output_shape"]
        return onnx_frontend.ConvTranspose.get_converter(11)(bb, inputs, attributes, node.parameters)


class Slice(Converter):
    """Slices; steps may be negative, starts and ends may be computed."""

    @classmethod
    def _impl_v1(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict[str, Any], params: list[Any]) -> Any:
        node = Node("Slice", attr, params)
        names = ("starts", "ends", "axes")
        bounds = [np.asarray(attr[name], "int64") if name in attr else None for name in names]
        return cls._slice(node, bb, emit(bb, inputs[0]), bounds[0], bounds[1], bounds[2], None)

    @classmethod
    def _impl_v10(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict[str, Any], params: list[Any]) -> Any:
        node = Node("Slice", attr, params)
        starts, ends, axes, steps = (
            None if inputs[index] is None else node.array(inputs[index]) for index in range(1, 5)
        )
        x = emit(bb, as_tensor(bb, inputs[0]))
        if x.ty.ndim < 0 or (axes is None and inputs[3] is not None):
            given = [as_tensor(bb, value) for value in inputs]
            return onnx_frontend.Slice.get_converter(_SLICE_OPSET)(bb, given, attr, params)
        if steps is None and inputs[4] is not None:
            return cls._open(node, bb, x, inputs[1], inputs[2], axes, inputs[4])
        if starts is None or ends is None or x.ty.shape is None:
            return cls._open(node, bb, x, inputs[1], inputs[2], axes, steps)
        return cls._slice(node, bb, x, starts, ends, axes, steps)

    @staticmethod
    def _open(node: Node, bb: relax.BlockBuilder, x: Any, starts: Any, ends: Any, axes: Any, steps: Any) -> Any:
        """Slice between bounds, or along axes, that are only known at run time."""
        bounds = [listed(node, value) for value in (starts, ends)]
        count = node.shape(starts, "starts")[0] if bounds[0] is None else len(bounds[0])
        along = [node.in_range(int(axis), x.ty.ndim) for axis in (np.arange(count) if axes is None else axes)]
        if steps is not None and not isinstance(steps, np.ndarray):
            starts, ends, steps = (emit(bb, as_tensor(bb, value)) for value in (starts, ends, steps))
            return slice_at_run_time(node, bb, x, starts, ends, along, steps)
        steps = [1] * count if steps is None else [int(step) for step in steps]
        if 0 in steps:
            node.damaged(f"the step along axis {along[steps.index(0)]} is 0")
        if x.ty.shape is not None and set(steps) <= {1} and bounds[0] is not None and bounds[1] is not None:
            return slice_by_extents(bb, x, bounds[0], bounds[1], along)
        starts, ends = (emit(bb, as_tensor(bb, value)) for value in (starts, ends))
        return slice_at_run_time(node, bb, x, starts, ends, along, steps)

    @classmethod
    def _slice(cls, node: Node, bb: relax.BlockBuilder, x: Any, starts: Any, ends: Any, axes: Any, steps: Any) -> Any:
        dims, rank = x.ty.shape, x.ty.ndim
        axes = np.arange(len(starts)) if axes is None else axes
        steps = np.ones(len(starts), "int64") if steps is None else steps
        kept: dict[int, range] = {}
        flipped = []
        for start, end, axis, step in zip(starts.tolist(), ends.tolist(), axes.tolist(), steps.tolist(), strict=True):
            axis = node.in_range(axis, rank)
            if step == 0:
                node.damaged(f"the step along axis {axis} is 0")
            if hasattr(dims[axis], "value"):
                picked = indices(start, end, step, int(dims[axis]))
            elif start >= 0 and end >= start and step > 0:
                picked = range(start, _TO_THE_END if end > LARGEST_EXTENT else end, step)
            else:
                return cls._open(node, bb, x, starts, ends, axes, steps)
            if not picked:
                picked = range(0, 0)
            elif step < 0:
                picked = picked[::-1]
                flipped.append(axis)
            kept[axis] = picked
        sliced = sorted(kept)
        bounds = [[getattr(kept[axis], name) for axis in sliced] for name in ("start", "stop", "step")]
        # Bounds that TVM clips give a kernel's open extents other expressions than the operator's.
        is_open = any(not hasattr(dims[axis], "value") for axis in sliced)
        part = slice_by_extents(bb, x, bounds[0], bounds[1], sliced, bounds[2]) if is_open else None
        result = bb.emit(relax.op.strided_slice(x, sliced, *bounds) if part is None else part)
        for axis in flipped:
            result = bb.emit(relax.op.flip(result, axis))
        return result


_TO_THE_END = 2**63 - 1
"""What TVM takes for the end of an axis, however long it is."""


class RoiAlign(Converter):
    """Averages of samples in boxes; half a pixel is taken off boxes that are in pixels of the picture, not before.

    Without ``sampling_ratio`` a box has a sample for each of its pixels, so one of a million pixels takes as long.
    """

    @classmethod
    def _impl_v10(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict[str, Any], params: list[Any]) -> Any:
        attr = {"coordinate_transformation_mode": b"output_half_pixel", **attr}
        return cls.convert(Node(cls.__name__, attr, params), bb, inputs)

    @classmethod
    def _impl_v16(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict[str, Any], params: list[Any]) -> Any:
        return cls.convert(Node(cls.__name__, attr, params), bb, inputs)

    @classmethod
    def convert(cls, node: Node, bb: relax.BlockBuilder, inputs: Any) -> Any:
        """Give the averages."""
        x, boxes, picture = (emit(bb, value) for value in inputs[:3])
        mode, dtype = node.text("coordinate_transformation_mode", "half_pixel"), dtype_of(boxes)
        if node.text("mode", "avg") != "avg":
            node.refuse(f"its mode is {node.text('mode')!r}, avg is supported")
        if mode not in ("half_pixel", "output_half_pixel"):
            node.damaged(f"attribute coordinate_transformation_mode is {mode!r}, half_pixel was expected")
        boxes = multiply(bb, boxes, constant(node.number("spatial_scale", 1.0), dtype))
        if mode == "half_pixel":
            boxes = subtract(bb, boxes, constant(0.5, dtype))
        picture = bb.emit(relax.op.astype(bb.emit(relax.op.expand_dims(picture, 1)), dtype))
        return relax.op.vision.roi_align(
            x,
            bb.emit(relax.op.concat([picture, boxes], 1)),
            pooled_size=(node.integer("output_height", 1), node.integer("output_width", 1)),
            spatial_scale=1.0,
            sample_ratio=node.integer("sampling_ratio", 0),
            aligned=mode == "half_pixel",
            layout="NCHW",
            mode="avg",
        )


def indices(start: int, end: int, step: int, size: int) -> range:
    """Give the indices that a slice picks; with a negative step an end below the first element is before it."""
    start = start + size if start < 0 else start
    end = end + size if end < 0 else end
    if step > 0:
        return range(min(max(start, 0), size), min(max(end, 0), size), step)
    return range(min(max(start, 0), size - 1), min(max(end, -1), size - 1), step)


CONVERTERS: dict[tuple[str, str], type] = {
    ("", "AveragePool"): AveragePool,
    ("", "Conv"): Conv,
    ("", "ConvTranspose"): ConvTranspose,
    ("", "LpPool"): LpPool,
    ("", "MaxPool"): MaxPool,
    ("", "RoiAlign"): RoiAlign,
    ("", "Slice"): Slice,
}
