"""Calls of HVX kernels in a Relax function, and the tensors that they pass to each other as panels.

Tensors of a model are pictures of one image, NCHW. Kernels take and give panels (:mod:`tvm_ext.schedules.hexagon`);
what other operators need is turned back into planes, which is dead code where they do not.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
from tvm import relax, tirx

from tvm_ext.backends.hexagon.model import costs
from tvm_ext.backends.hexagon.model.selection import Layouts, Node, Operand
from tvm_ext.graph.origins import words_of
from tvm_ext.relax_utils import static_shape
from tvm_ext.schedules.hexagon.code import VECTOR
from tvm_ext.schedules.hexagon.elementwise import WeightedSum, look_up, multiply, packed_table, weighted_sum
from tvm_ext.schedules.hexagon.fixed_point import Rescaling
from tvm_ext.schedules.hexagon.gathering import gathering
from tvm_ext.schedules.hexagon.panels import LAYOUTS, TWO, Panels
from tvm_ext.schedules.hexagon.product import needs_halves, packed_weights, product
from tvm_ext.schedules.hexagon.quantize import quantize, threshold_table
from tvm_ext.schedules.hexagon.relayout import from_planes, relayout, to_planes
from tvm_ext.schedules.hexagon.window import Window
from tvm_ext.schedules.hexagon.windows import average, depthwise, depthwise_weights, mask, maximum

PREFIX = "hvx_"
"""What the names of these kernels begin with; kernels of other names run on the scalar core."""


class Calls:
    """Emits calls of kernels, and keeps what it knows of the tensors they give.

    Parameters
    ----------
    builder : relax.BlockBuilder
    layouts : Layouts
        Of operators; those that are emitted are noted there.
    """

    def __init__(self, builder: relax.BlockBuilder, layouts: Layouts) -> None:
        self._builder = builder
        self._layouts = layouts
        self._makers: dict[Any, int] = {}  # operators by the pictures they make
        self._functions: dict[Hashable, Any] = {}
        self._panels: dict[Any, dict[Panels, Any]] = {}  # by the planes of a picture
        self._flat: dict[Any, Any] = {}  # planes as a kernel gives them, by what they were reshaped to

    def convolution(self, data: Any, window: Window, padding: int, weight: np.ndarray, bias: np.ndarray,
                    rescaling: Rescaling) -> Any:  # fmt: skip
        """Emit a convolution of one group.

        Parameters
        ----------
        data : relax.Expr
            uint8, (1, I, H, W).
        window : Window
        padding : int
            Byte outside the picture.
        weight : np.ndarray
            int8, OIHW.
        bias : np.ndarray
            int64, one for each output channel.
        rescaling : Rescaling

        Returns
        -------
        relax.Var
            uint8, (1, O, out height, out width).
        """
        outputs, inputs = weight.shape[:2]
        # Which weights are neighbours in vmpa's layout says whether it needs halves.
        kinds = {TWO: "product of halves"} if needs_halves(_by_tap(weight, -(-inputs // 2) * 2)) else {}
        layout = self._chosen(
            "nn.conv2d", [data],
            lambda layout: costs.windows(layout, window, inputs) + costs.packets(
                kinds.get(layout, "product"), layout, window.out_pixels,
                window.taps * layout.padded(1, inputs)[1], outputs,
            ),
        )  # fmt: skip
        padded = inputs if window.is_pointwise else layout.padded(1, inputs)[1]
        matrix = _by_tap(weight, padded)
        halves = layout is TWO and needs_halves(matrix)
        operand = self.panels(data, layout)
        operand = self._gathered(operand, layout, window, inputs, padding)
        arguments = (layout, window.out_pixels, len(matrix), outputs)
        scale = (rescaling.left, rescaling.low, rescaling.high)
        result = self._call(
            f"{PREFIX}{layout.instruction}_product",
            lambda name: product(*arguments, halves=halves, rescale=scale, name=name),
            (*arguments, halves, scale),
            [operand, packed_weights(layout, matrix, halves), self._table(layout, rescaling, bias)],
            layout.size(window.out_pixels, outputs),
        )
        return self._planes(result, layout, (1, outputs, window.out_height, window.out_width))

    def depthwise(self, data: Any, window: Window, padding: int, weight: np.ndarray, bias: np.ndarray,
                  rescaling: Rescaling) -> Any:  # fmt: skip
        """Emit a convolution of as many groups as channels; ``weight`` is (channels, taps)."""
        channels, taps = weight.shape
        layout = self._chosen(
            "nn.conv2d by channel", [data],
            lambda layout: costs.windows(layout, window, channels)
            + costs.packets("depthwise", layout, window.out_pixels, channels, taps),
        )  # fmt: skip
        windows = self._gathered(self.panels(data, layout), layout, window, channels, padding)
        arguments = (layout, window.out_pixels, channels, taps, (rescaling.left, rescaling.low, rescaling.high))
        result = self._call(
            f"{PREFIX}depthwise", lambda name: depthwise(*arguments, name=name), arguments,
            [windows, depthwise_weights(layout, weight), self._table(layout, rescaling, bias)],
            layout.size(window.out_pixels, channels),
        )  # fmt: skip
        return self._planes(result, layout, (1, channels, window.out_height, window.out_width))

    def maximum(self, data: Any, window: Window) -> Any:
        """Emit a maximum over windows; bytes outside the picture count for the least."""
        channels = _channels(data)
        layout = self._chosen(
            "nn.max_pool2d", [data],
            lambda layout: costs.windows(layout, window, channels)
            + costs.packets("maximum", layout, window.out_pixels, channels, window.taps),
        )  # fmt: skip
        panels, vectors = layout.blocks(window.out_pixels, channels)
        windows = self._gathered(self.panels(data, layout), layout, window, channels, 0)
        arguments = (vectors, panels, window.taps)
        size = layout.size(window.out_pixels, channels)
        result = self._call(f"{PREFIX}maximum", lambda name: maximum(*arguments, name=name), arguments, [windows], size)
        return self._planes(result, layout, (1, channels, window.out_height, window.out_width))

    def average(self, data: Any, bias: np.ndarray, rescaling: Rescaling) -> Any:
        """Emit the rescaled sums over all pixels, (1, C, 1, 1)."""
        channels, pixels = _extents(data)
        layout = self._chosen("mean", [data], lambda layout: costs.packets("average", layout, pixels, channels))
        arguments = (layout, pixels, channels, (rescaling.left, rescaling.low, rescaling.high))
        result = self._call(
            f"{PREFIX}average", lambda name: average(*arguments, name=name), arguments,
            [self.panels(data, layout), mask(layout, pixels), self._table(layout, rescaling, bias)],
            layout.size(1, channels),
        )  # fmt: skip
        return self._planes(result, layout, (1, channels, 1, 1))

    def weighted_sum(self, first: Any, second: Any, plan: WeightedSum) -> Any:
        """Emit a sum of two pictures of one shape."""
        extents = _pixels(first), _channels(first)
        layout = self._chosen("add", [first, second], lambda layout: costs.packets("add", layout, *extents))
        operands = [self.panels(item, layout) for item in (first, second)]
        size = layout.size(_pixels(first), _channels(first))
        result = self._call(
            f"{PREFIX}add", lambda name: weighted_sum(size // VECTOR, plan, name=name), (size, plan), operands, size
        )
        return self._planes(result, layout, static_shape(first))

    def multiply(self, first: Any, second: Any, zero_points: tuple[int, int], rescaling: Rescaling) -> Any:
        """Emit the product of two pictures of one shape, or of one and a number for each of its channels."""
        by_channel, extents = _pixels(second) < _pixels(first), (_pixels(first), _channels(first))
        kind = "multiply by channel" if by_channel else "multiply"
        layout = self._chosen("multiply", [first, second], lambda layout: costs.packets(kind, layout, *extents))
        blocks = layout.blocks(*extents)
        arguments = (layout, blocks, zero_points, (rescaling.left, rescaling.low, rescaling.high), by_channel)
        result = self._call(
            f"{PREFIX}multiply", lambda name: multiply(*arguments, name=name), arguments,
            [self.panels(first, layout), self.panels(second, layout), rescaling.table(np.zeros(1, np.int32), 1)],
            layout.size(_pixels(first), _channels(first)),
        )  # fmt: skip
        return self._planes(result, layout, static_shape(first))

    def quantize(self, data: Any, scale: float, zero_point: int) -> Any:
        """Emit the rounding of floats, of any shape."""
        shape = static_shape(data)
        assert shape is not None
        size = int(np.prod(shape))
        flat = self._builder.emit(relax.op.reshape(data, (size,)))
        arguments = (size, scale, zero_point)
        result = self._call(
            f"{PREFIX}quantize", lambda name: quantize(*arguments, name=name), arguments,
            [flat, threshold_table(scale, zero_point)], size,
        )  # fmt: skip
        rounded = self._builder.emit(relax.op.reshape(result, shape))
        self._flat[rounded] = result
        return rounded

    def look_up(self, data: Any, table: np.ndarray) -> Any:
        """Emit a function of bytes, given by its 256 values."""
        extents = _pixels(data), _channels(data)
        layout = self._chosen("look-up", [data], lambda layout: costs.packets("look_up", layout, *extents))
        size = layout.size(*extents)
        result = self._call(
            f"{PREFIX}look_up", lambda name: look_up(size // VECTOR, name=name), size,
            [self.panels(data, layout), packed_table(table)], size,
        )  # fmt: skip
        return self._planes(result, layout, static_shape(data))

    def panels(self, data: Any, layout: Panels) -> Any:
        """Give a picture as panels: those that a kernel made, or turned from others, or from planes."""
        known = self._known(data)
        if layout not in known:
            rows, columns = _pixels(data), _channels(data)
            size = layout.size(rows, columns)
            if known:
                source, value = next(iter(known.items()))
                known[layout] = self._call(
                    f"{PREFIX}relayout", lambda name: relayout(source, layout, rows, columns, name=name),
                    (source, layout, rows, columns), [value], size,
                )  # fmt: skip
            else:
                flat = self._flat.get(data)
                if flat is None:  # a reshape of a reshape would be a kernel that copies
                    flat = self._builder.emit(relax.op.reshape(data, (rows * columns,)))
                known[layout] = self._call(
                    f"{PREFIX}from_planes", lambda name: from_planes(layout, rows, columns, name=name),
                    (layout, rows, columns), [flat], size,
                )  # fmt: skip
        return known[layout]

    def _known(self, data: Any) -> dict[Panels, Any]:
        """Find what there is of a picture."""
        return self._panels.setdefault(self._base(data), {})

    def _base(self, data: Any) -> Any:
        """Find a picture as it was made; one that was reshaped without moving channels is the same."""
        while data not in self._panels and isinstance(data, relax.Var):
            call = self._builder.lookup_binding(data)
            if getattr(getattr(call, "op", None), "name", "") not in ("relax.reshape", "relax.flatten"):
                break
            source = call.args[0]
            shapes = static_shape(source), static_shape(data)
            if any(shape is None or len(shape) < 2 for shape in shapes) or _extents(source) != _extents(data):
                break
            data = source
        return data

    def _chosen(self, operator: str, operands: Sequence[Any], packets: Callable[[Panels], int]) -> Panels:
        """Note an operator that is about to be emitted; gives its layout."""
        read = tuple(Operand(self._makers.get(self._base(data)), _pixels(data), _channels(data)) for data in operands)
        estimates = {layout.instruction: packets(layout) for layout in LAYOUTS}
        return self._layouts.of(Node(operator, words_of(self._builder), read, estimates))

    def _planes(self, value: Any, layout: Panels, shape: tuple[int, ...] | None) -> Any:
        """Give a result as a picture."""
        assert shape is not None
        rows, columns = int(np.prod(shape[2:])), shape[1]
        flat = self._call(
            f"{PREFIX}to_planes", lambda name: to_planes(layout, rows, columns, name=name), (layout, rows, columns),
            [value], rows * columns,
        )  # fmt: skip
        picture = self._builder.emit(relax.op.reshape(flat, shape))
        self._panels[picture] = {layout: value}
        self._makers[picture] = len(self._layouts.nodes) - 1
        return picture

    def _gathered(self, operand: Any, layout: Panels, window: Window, channels: int, padding: int) -> Any:
        for step in gathering(layout, window, channels, padding):
            operand = self._call(
                f"{PREFIX}{step.kind}", step.make, step.key, [operand, *step.tables], step.size, step.workspace
            )
        return operand

    def _table(self, layout: Panels, rescaling: Rescaling, bias: np.ndarray) -> np.ndarray:
        return rescaling.table(bias, layout.padded(1, len(bias))[1])

    def _call(
        self,
        name: str,
        make: Callable[[str], tirx.PrimFunc],
        key: Hashable,
        operands: list[Any],
        size: int,
        workspace: int = 0,
    ) -> Any:
        """Emit a call that gives ``size`` bytes; equal kernels are made once."""
        if (name, key) not in self._functions:
            self._functions[name, key] = self._builder.add_func(make(name).without_attr("global_symbol"), name)
        given = [relax.const(item) if isinstance(item, np.ndarray) else item for item in operands]
        function, result = self._functions[name, key], relax.TensorType((size,), "uint8")
        if not workspace:
            return self._builder.emit(relax.call_tir(function, given, result))
        both = relax.call_tir(function, given, [relax.TensorType((workspace,), "uint8"), result])
        return self._builder.emit(relax.TupleGetItem(self._builder.emit(both), 1))


def _by_tap(weight: np.ndarray, padded: int) -> np.ndarray:
    """Give weights OIHW as a matrix: taps times inputs, which are padded, and outputs."""
    outputs, inputs, *kernel = weight.shape
    taps = int(np.prod(kernel))
    by_tap = np.zeros((taps, padded, outputs), np.int8)
    by_tap[:, :inputs] = weight.transpose(2, 3, 1, 0).reshape(taps, inputs, outputs)
    return by_tap.reshape(-1, outputs)


def _channels(data: Any) -> int:
    return _extents(data)[0]


def _pixels(data: Any) -> int:
    return _extents(data)[1]


def _extents(data: Any) -> tuple[int, int]:
    """Channels and pixels of a picture, (1, C, ...)."""
    shape = static_shape(data)
    assert shape is not None
    return shape[1], int(np.prod(shape[2:]))
