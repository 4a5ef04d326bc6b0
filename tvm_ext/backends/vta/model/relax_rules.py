"""One rule for each operator that VTA can run: what it is as a layer, or why it is none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray
from tvm import relax

from tvm_ext.backends.vta.model.layers import Kind, Layer, Shape
from tvm_ext.relax_utils import constant, static_shape


class NotALayer(Exception):
    """Why an operator cannot run on VTA."""


def matrix_form(shape: tuple[int, ...], batch: int) -> Shape:
    """Return (N, C, H, W) of a matrix (..., K) with ``batch`` rows to a batch."""
    rows = int(np.prod(shape[:-1]))
    return (rows, shape[-1], 1, 1) if rows <= batch else (batch, shape[-1], 1, -(-rows // batch))


class LayerReader(Protocol):
    """What a rule sees of the function: :mod:`tvm_ext.backends.vta.model.relax_layers` has it."""

    @property
    def calls(self) -> Mapping[Any, Any]:
        """Variable to the value that is bound to it."""

    @property
    def batch(self) -> int:
        """Rows of VTA's batch."""

    def name(self, variable: Any) -> str:
        """Return the identifier of a variable."""

    def shape(self, expr: Any) -> tuple[int, ...]:
        """Return a tensor's shape, which must be known, of float32 and not empty."""

    def through_reshape(self, expr: Any) -> Any:
        """Return what a flattened tensor was before."""

    def per_channel(self, values: NDArray, variable: Any, channels: int) -> NDArray[np.float32] | None:
        """Return a constant operand as one finite value a channel, None if it is something else."""


LayerRule: TypeAlias = Callable[[LayerReader, Any], tuple[Layer, list[Any]]]
FLATTENING = frozenset(["relax.reshape", "relax.flatten", "relax.nn.batch_flatten", "relax.squeeze"])


def operator_of(expr: Any) -> str:
    """Return the name of the operator that is called, empty for anything else."""
    return str(getattr(expr.op, "name", "")) if isinstance(expr, relax.Call) else ""


def is_float(expr: Any) -> bool:
    """Return whether a tensor is float32."""
    return str(getattr(expr.ty, "dtype", "")) == "float32"


def number_of(expr: Any) -> float | None:
    """Return the value of a number in an attribute, None if it is something else."""
    value = getattr(expr, "value", None)
    value = getattr(value, "value", value)
    return float(value) if isinstance(value, int | float) else None


def _one(values: Any, what: str) -> int:
    """Return the one value of an attribute that VTA wants to be the same in all directions."""
    found = {int(value) for value in values}
    if len(found) != 1:
        raise NotALayer(f"{what} is {[int(value) for value in values]}; VTA's are the same in all directions")
    return found.pop()


def _sides(what: str, values: Any) -> tuple[int, int]:
    """Return an attribute along columns and along rows; what is before and after must be the same."""
    found = [int(value) for value in values]
    if len(found) == 1:
        return found[0], found[0]
    if len(found) == 4 and found[:2] != found[2:]:
        raise NotALayer(f"{what} is {found}; VTA's is the same on both sides")
    return found[0], found[1]


def _form(kernel: tuple[int, int], stride: tuple[int, int], padding: tuple[int, int]) -> dict[str, Any]:
    """Return the fields of a layer for a window."""
    for size, pad in zip(kernel, padding, strict=True):
        if not 0 <= pad < min(size, 16):
            raise NotALayer(f"padding is {pad}; expected less than the window, {size}, and than 16")
    down, across = zip(kernel, stride, padding, strict=True)
    return {"kernel": down[0], "stride": down[1], "padding": down[2], "across": None if across == down else across}


def _plain_layout(call: relax.Call) -> None:
    layout = str(call.attrs.data_layout) if hasattr(call.attrs, "data_layout") else str(call.attrs.layout)
    if layout != "NCHW":
        raise NotALayer(f"layout {layout}; expected NCHW")


def _convolution(reader: LayerReader, anchor: Any) -> tuple[Layer, list[Any]]:
    call = reader.calls[anchor]
    _plain_layout(call)
    weights = constant(call.args[1])
    if weights is None:
        raise NotALayer("its weights are not constant")
    if _one(call.attrs.dilation, "dilation") != 1:
        raise NotALayer(f"dilation is {int(call.attrs.dilation[0])}; VTA has none")
    in_shape, out_shape = reader.shape(call.args[0]), reader.shape(anchor)
    kernel = (weights.shape[2], weights.shape[3])
    form = _form(kernel, _sides("stride", call.attrs.strides), _sides("padding", call.attrs.padding))
    kind: Kind = "conv2d"
    groups = int(call.attrs.groups)
    if operator_of(call) == "relax.nn.conv2d_transpose":
        kind = "conv2d_transpose"
        form["output_padding"] = _one(call.attrs.output_padding, "output_padding")
        down, across = (form["kernel"], form["stride"], form["padding"]), form["across"]
        for size, stride, padding in (down, across or down):
            if size < stride or form["output_padding"] > padding:
                raise NotALayer("its window is smaller than its stride, or its output padding larger than its padding")
        # (I, O / groups, KH, KW) -> (O, I / groups, KH, KW)
        by_group = weights.reshape(groups, -1, *weights.shape[1:]).swapaxes(1, 2)
        weights = np.ascontiguousarray(by_group.reshape(-1, *by_group.shape[2:]))
    layer = Layer(
        reader.name(anchor), kind, reader.name(call.args[0]), cast(Shape, in_shape), cast(Shape, out_shape),
        groups=groups, weights=weights.astype(np.float32), bias=np.zeros(len(weights), np.float32),
        operator=kind, **form,
    )  # fmt: skip
    return layer, [anchor]


def _product(reader: LayerReader, anchor: Any) -> tuple[Layer, list[Any]]:
    call = reader.calls[anchor]
    weights = constant(call.args[1])
    if weights is None or weights.ndim != 2:
        raise NotALayer("its right operand is not a constant matrix")
    shape, out = reader.shape(call.args[0]), reader.shape(anchor)
    if len(shape) < 2 or len(out) < 2:
        raise NotALayer("its left operand is a vector")
    matrix = np.ascontiguousarray(weights.T.astype(np.float32))
    bias = np.zeros(len(matrix), np.float32)
    out_form = matrix_form(out, reader.batch)
    source = reader.through_reshape(call.args[0])
    before = static_shape(source) or ()
    rows = int(np.prod(shape[:-1]))
    flattened = isinstance(source, relax.Var) and len(before) == 4 and before[0] == rows
    if flattened and rows <= reader.batch and len(shape) == 2 and not source.same_as(call.args[0]):
        # The matrix sees the whole picture: a convolution whose window is as large.
        picture = matrix.reshape(len(matrix), *before[1:])
        return Layer(
            reader.name(anchor), "conv2d", reader.name(source), cast(Shape, before), out_form,
            weights=picture, bias=bias, operator="matmul", **_form((before[2], before[3]), (1, 1), (0, 0)),
        ), [anchor]  # fmt: skip
    if len(shape) == 4:
        raise NotALayer("its left operand has four dimensions; expected a matrix or a batch of sequences")
    form = matrix_form(shape, reader.batch)
    return Layer(
        reader.name(anchor), "conv2d", reader.name(call.args[0]), form, out_form,
        weights=matrix[:, :, None, None], bias=bias, operator="matmul",
    ), [anchor]  # fmt: skip


def _maximum(reader: LayerReader, anchor: Any) -> tuple[Layer, list[Any]]:
    call = reader.calls[anchor]
    _plain_layout(call)
    if _one(call.attrs.dilation, "dilation") != 1 or call.attrs.ceil_mode:
        raise NotALayer("dilated, or with rounding up")
    kernel, padding = _one(call.attrs.pool_size, "window"), _one(call.attrs.padding, "padding")
    data = call.args[0]
    if padding and not _is_not_negative(reader, data):
        raise NotALayer("padded, and its input may be negative")
    if padding >= kernel:
        raise NotALayer("padding as large as the window")
    return Layer(
        reader.name(anchor), "max_pool2d", reader.name(data),
        cast(Shape, reader.shape(data)), cast(Shape, reader.shape(anchor)),
        kernel, _one(call.attrs.strides, "stride"), padding, operator="max_pool2d",
    ), [anchor]  # fmt: skip


def _is_not_negative(reader: LayerReader, variable: Any) -> bool:
    call = reader.calls.get(variable)
    while operator_of(call) == "relax.nn.max_pool2d":
        call = reader.calls.get(cast(Any, call).args[0])
    if operator_of(call) == "relax.clip":
        return (number_of(cast(Any, call).args[1]) or 0.0) >= 0
    return operator_of(call) == "relax.nn.relu"


def _average(reader: LayerReader, anchor: Any) -> tuple[Layer, list[Any]]:
    call = reader.calls[anchor]
    _plain_layout(call)
    kernel = _sides("window", call.attrs.pool_size)
    if any(_sides("padding", call.attrs.padding)) or _one(call.attrs.dilation, "dilation") != 1 or call.attrs.ceil_mode:
        raise NotALayer("padded, dilated, or with rounding up")
    return _by_channel(reader, anchor, kernel, _sides("stride", call.attrs.strides), 1 / (kernel[0] * kernel[1]))


def _mean(reader: LayerReader, anchor: Any) -> tuple[Layer, list[Any]]:
    call = reader.calls[anchor]
    shape = reader.shape(call.args[0])
    axes = sorted(int(axis) % len(shape) for axis in call.attrs.axis or ())
    if len(shape) != 4 or axes != [2, 3] or not call.attrs.keepdims:
        raise NotALayer("not the mean of pictures")
    return _by_channel(reader, anchor, (shape[2], shape[3]), (1, 1), 1 / (shape[2] * shape[3]))


def _sum(reader: LayerReader, anchor: Any) -> tuple[Layer, list[Any]]:
    call = reader.calls[anchor]
    first, second = call.args
    if not isinstance(first, relax.Var) or not isinstance(second, relax.Var) or first.same_as(second):
        raise NotALayer("not a sum of two tensors")
    if reader.shape(first) != reader.shape(second) or len(reader.shape(first)) != 4:
        raise NotALayer("its operands have other shapes")
    layer, covers = _by_channel(reader, anchor, (1, 1), (1, 1), 1.0)
    return replace(layer, residual=reader.name(second), operator="add"), covers


def _scale(reader: LayerReader, anchor: Any) -> tuple[Layer, list[Any]]:
    call = reader.calls[anchor]
    data, other = call.args if isinstance(call.args[0], relax.Var) else reversed(call.args)
    values = constant(other)
    if values is None or len(reader.shape(data)) != 4 or static_shape(data) != static_shape(anchor):
        raise NotALayer("not a product of pictures and a constant")
    each = reader.per_channel(values, anchor, reader.shape(data)[1])
    if each is None:
        raise NotALayer("its constant is not one value for each channel")
    layer, covers = _by_channel(reader, anchor, (1, 1), (1, 1), 1.0, data)
    return replace(layer, weights=each[:, None, None, None].copy(), operator="scale"), covers


def _by_channel(
    reader: LayerReader,
    anchor: Any,
    kernel: tuple[int, int],
    stride: tuple[int, int],
    weight: float,
    data: Any = None,
) -> tuple[Layer, list[Any]]:
    """Make a convolution that adds up a window of each channel, all values with the same weight."""
    data = reader.calls[anchor].args[0] if data is None else data
    shape = cast(Shape, reader.shape(data))
    return Layer(
        reader.name(anchor), "conv2d", reader.name(data), shape, cast(Shape, reader.shape(anchor)), groups=shape[1],
        weights=np.full((shape[1], 1, *kernel), weight, np.float32), bias=np.zeros(shape[1], np.float32),
        operator="average", **_form(kernel, stride, (0, 0)),
    ), [anchor]  # fmt: skip


PRODUCTS: dict[str, LayerRule] = {
    "relax.nn.conv2d": _convolution,
    "relax.nn.conv2d_transpose": _convolution,
    "relax.matmul": _product,
}
OTHERS: dict[str, LayerRule] = {
    "relax.nn.max_pool2d": _maximum,
    "relax.nn.avg_pool2d": _average,
    "relax.mean": _mean,
    "relax.add": _sum,
    "relax.multiply": _scale,
}
