"""Reads the layers that VTA can run off a Relax function: patterns of operators, whatever they are called."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from tvm import relax

from tvm_ext.errors import InputError
from tvm_ext.passes.quantized_values import constant, static_shape
from tvm_ext.vta.layers import Kind, Layer, Shape


@dataclass(frozen=True)
class Node:
    """A part of the model that runs as a whole: one binding, or all bindings of a layer.

    Attributes
    ----------
    name : str
        Of its last variable.
    inputs : tuple of str
        Variables of other nodes, and parameters, that it reads.
    layer : Layer, optional
        What it is if VTA can run it.
    """

    name: str
    inputs: tuple[str, ...]
    layer: Layer | None = None


@dataclass(frozen=True)
class ModelGraph:
    """A function as nodes.

    Attributes
    ----------
    parameters : tuple of str
    nodes : tuple of Node
        In an order in which they can run.
    outputs : tuple of str
        Variables that leave the function.
    refused : mapping
        Variables of convolutions and matrix products that are no layers, and why.
    """

    parameters: tuple[str, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[str, ...]
    refused: Mapping[str, str]

    @property
    def layers(self) -> tuple[Layer, ...]:
        """Layers that VTA can run."""
        return tuple(node.layer for node in self.nodes if node.layer is not None)


class NotALayer(Exception):
    """Why an operator cannot run on VTA."""


def matrix_form(shape: tuple[int, ...], batch: int) -> Shape:
    """Return (N, C, H, W) of a matrix (..., K) with ``batch`` rows to a batch."""
    rows = int(np.prod(shape[:-1]))
    return (rows, shape[-1], 1, 1) if rows <= batch else (batch, shape[-1], 1, -(-rows // batch))


def bindings_of(function: relax.Function) -> list[relax.VarBinding]:
    """Return the bindings of a function that is one dataflow block; of any other none."""
    body = function.body
    if not isinstance(body, relax.SeqExpr) or len(body.blocks) != 1:
        return []
    block = body.blocks[0]
    bindings = list(block.bindings)
    plain = isinstance(block, relax.DataflowBlock) and all(isinstance(b, relax.VarBinding) for b in bindings)
    return bindings if plain else []


def read_graph(function: relax.Function, batch: int) -> ModelGraph:
    """Find the layers of a function.

    Parameters
    ----------
    function : relax.Function
        In inference form: batch norm folded, operands of operators that are constants written as constants.
    batch : int
        Rows of VTA's batch.

    Raises
    ------
    InputError
        If a parameter has a dimension that is open; the message names both.
    """
    for parameter in function.params:
        if static_shape(parameter) is None:
            shape = getattr(parameter.ty, "shape", None)
            raise InputError(
                f"input {parameter.name!r} has the shape {shape} with a dimension that is open; programs of VTA are "
                f"made for fixed shapes: give them with --input-shape {parameter.name}:1,... (input_shapes= in Python)"
            )
    return _Reader(function, batch).read()


class _Reader:
    """Walks over the bindings once and makes a layer of each anchor and what follows it."""

    def __init__(self, function: relax.Function, batch: int) -> None:
        self.function, self.batch = function, batch
        self.bindings = bindings_of(function)
        self.calls = {binding.var: binding.value for binding in self.bindings}
        self.position = {binding.var: at for at, binding in enumerate(self.bindings)}
        self.uses: dict[Any, list[Any]] = {}
        self.leaving = Counter(_variables(function.body.body) if self.bindings else [])
        for binding in self.bindings:
            for operand in _variables(binding.value):
                self.uses.setdefault(operand, []).append(binding.var)
        self.claimed: set[Any] = set()

    def read(self) -> ModelGraph:
        found: list[tuple[int, Layer]] = []
        refused: dict[str, str] = {}
        for kinds in (PRODUCTS, OTHERS):  # a sum belongs to the product before it, if there is one
            for binding in self.bindings:
                rule = kinds.get(_operator(binding.value))
                if rule is None or binding.var in self.claimed:
                    continue
                try:
                    layer, last = self._layer(binding.var, rule)
                except NotALayer as reason:
                    if kinds is PRODUCTS:
                        refused[binding.var.name] = f"{_operator(binding.value)}: {reason}"
                    continue
                found.append((self.position[last], layer))
        found.sort(key=lambda pair: pair[0])
        return ModelGraph(
            tuple(parameter.name for parameter in self.function.params),
            self._nodes(found),
            tuple(variable.name for variable in self.leaving),
            refused,
        )

    def _nodes(self, found: list[tuple[int, Layer]]) -> tuple[Node, ...]:
        covered = {name for _, layer in found for name in layer.covers}
        layers = {layer.name: layer for _, layer in found}
        nodes = []
        for binding in self.bindings:
            name = binding.var.name
            if name in layers:
                nodes.append(Node(name, layers[name].inputs, layers[name]))
            elif name not in covered:
                nodes.append(Node(name, tuple(dict.fromkeys(v.name for v in _variables(binding.value)))))
        return tuple(nodes)

    def _layer(self, anchor: Any, rule: LayerRule) -> tuple[Layer, Any]:
        """Read the operator of ``anchor`` and what can be done with its sums before they are stored."""
        layer, covers = rule(self, anchor)
        current = anchor
        while not np.isfinite(layer.high) and not np.isfinite(layer.low):
            following = self._only_use(current)
            if following is None:
                break
            extended = self._extended(layer, current, following)
            if extended is None:
                break
            layer, current = extended, following
            covers.append(following)
        self.claimed.update(covers)
        names = tuple(variable.name for variable in covers)
        return replace(layer, name=current.name, covers=names), current

    def _only_use(self, variable: Any) -> Any | None:
        uses = self.uses.get(variable, [])
        if len(uses) != 1 or self.leaving[variable] or uses[0] in self.claimed:
            return None
        return uses[0]

    def _extended(self, layer: Layer, current: Any, following: Any) -> Layer | None:
        call = self.calls[following]
        operator = _operator(call)
        if operator == "relax.nn.relu":
            return replace(layer, low=0.0)
        if operator == "relax.clip":
            low, high = (_number(argument) for argument in call.args[1:3])
            return None if low is None or high is None or low > high else replace(layer, low=low, high=high)
        if operator != "relax.add" or layer.kind == "max_pool2d":
            return None
        other = call.args[1] if call.args[0].same_as(current) else call.args[0]
        values = constant(other)
        if values is not None:
            bias = self._per_channel(values, following, len(cast(NDArray, layer.bias)))
            return None if bias is None else replace(layer, bias=cast(NDArray, layer.bias) + bias)
        same = isinstance(other, relax.Var) and static_shape(other) == static_shape(current)
        if not same or layer.residual is not None or not _is_float(other) or other.same_as(current):
            return None
        return replace(layer, residual=other.name)

    def _per_channel(self, values: NDArray, variable: Any, channels: int) -> NDArray[np.float32] | None:
        """Return a constant operand as one value a channel, None if it is something else."""
        shape = static_shape(variable)
        if shape is None or values.ndim > len(shape):
            return None
        axis = 1 if len(shape) == 4 else len(shape) - 1
        extents = (1,) * (len(shape) - values.ndim) + values.shape
        if any(extent != 1 for at, extent in enumerate(extents) if at != axis):
            return None
        return np.broadcast_to(values.reshape(-1), (channels,)).astype(np.float32)

    def shape(self, expr: Any) -> tuple[int, ...]:
        """Return a tensor's shape, which must be known, of float32 and not empty."""
        if not isinstance(expr, relax.Var):
            raise NotALayer("an operand is not a tensor that is computed")
        shape = static_shape(expr)
        if shape is None:
            raise NotALayer(f"the shape of {getattr(expr, 'name', 'an operand')} is not known")
        if not _is_float(expr):
            raise NotALayer(f"dtype {expr.ty.dtype}; VTA takes layers of float32, quantised by this compiler")
        if 0 in shape:
            raise NotALayer(f"{getattr(expr, 'name', 'an operand')} is empty")
        return shape

    def through_reshape(self, expr: Any) -> Any:
        """Return what a flattened tensor was before."""
        call = self.calls.get(expr) if isinstance(expr, relax.Var) else None
        while _operator(call) in FLATTENING:
            expr = cast(Any, call).args[0]
            call = self.calls.get(expr) if isinstance(expr, relax.Var) else None
        return expr


LayerRule = Callable[[_Reader, Any], "tuple[Layer, list[Any]]"]
FLATTENING = frozenset(["relax.reshape", "relax.flatten", "relax.nn.batch_flatten", "relax.squeeze"])


def _operator(expr: Any) -> str:
    return str(getattr(expr.op, "name", "")) if isinstance(expr, relax.Call) else ""


def _variables(expr: Any) -> list[Any]:
    found: list[Any] = []
    relax.analysis.post_order_visit(
        expr, lambda node: found.append(node) if isinstance(node, relax.Var) and node not in found else None
    )
    return found


def _is_float(expr: Any) -> bool:
    return str(getattr(expr.ty, "dtype", "")) == "float32"


def _number(expr: Any) -> float | None:
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


def _convolution(reader: _Reader, anchor: Any) -> tuple[Layer, list[Any]]:
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
    if _operator(call) == "relax.nn.conv2d_transpose":
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
        anchor.name, kind, call.args[0].name, cast(Shape, in_shape), cast(Shape, out_shape), groups=groups,
        weights=weights.astype(np.float32), bias=np.zeros(len(weights), np.float32), operator=kind, **form,
    )  # fmt: skip
    return layer, [anchor]


def _product(reader: _Reader, anchor: Any) -> tuple[Layer, list[Any]]:
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
    flattened = len(before) == 4 and before[0] == rows
    if flattened and rows <= reader.batch and len(shape) == 2 and not source.same_as(call.args[0]):
        # The matrix sees the whole picture: a convolution whose window is as large.
        picture = matrix.reshape(len(matrix), *before[1:])
        return Layer(
            anchor.name, "conv2d", source.name, cast(Shape, before), out_form,
            weights=picture, bias=bias, operator="matmul", **_form((before[2], before[3]), (1, 1), (0, 0)),
        ), [anchor]  # fmt: skip
    if len(shape) == 4:
        raise NotALayer("its left operand has four dimensions; expected a matrix or a batch of sequences")
    form = matrix_form(shape, reader.batch)
    return Layer(
        anchor.name, "conv2d", call.args[0].name, form, out_form,
        weights=matrix[:, :, None, None], bias=bias, operator="matmul",
    ), [anchor]  # fmt: skip


def _maximum(reader: _Reader, anchor: Any) -> tuple[Layer, list[Any]]:
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
        anchor.name, "max_pool2d", data.name, cast(Shape, reader.shape(data)), cast(Shape, reader.shape(anchor)),
        kernel, _one(call.attrs.strides, "stride"), padding, operator="max_pool2d",
    ), [anchor]  # fmt: skip


def _is_not_negative(reader: _Reader, variable: Any) -> bool:
    call = reader.calls.get(variable)
    while _operator(call) == "relax.nn.max_pool2d":
        call = reader.calls.get(cast(Any, call).args[0])
    if _operator(call) == "relax.clip":
        return (_number(cast(Any, call).args[1]) or 0.0) >= 0
    return _operator(call) == "relax.nn.relu"


def _average(reader: _Reader, anchor: Any) -> tuple[Layer, list[Any]]:
    call = reader.calls[anchor]
    _plain_layout(call)
    kernel = _sides("window", call.attrs.pool_size)
    if any(_sides("padding", call.attrs.padding)) or _one(call.attrs.dilation, "dilation") != 1 or call.attrs.ceil_mode:
        raise NotALayer("padded, dilated, or with rounding up")
    return _by_channel(reader, anchor, kernel, _sides("stride", call.attrs.strides), 1 / (kernel[0] * kernel[1]))


def _mean(reader: _Reader, anchor: Any) -> tuple[Layer, list[Any]]:
    call = reader.calls[anchor]
    shape = reader.shape(call.args[0])
    axes = sorted(int(axis) % len(shape) for axis in call.attrs.axis or ())
    if len(shape) != 4 or axes != [2, 3] or not call.attrs.keepdims:
        raise NotALayer("not the mean of pictures")
    return _by_channel(reader, anchor, (shape[2], shape[3]), (1, 1), 1 / (shape[2] * shape[3]))


def _sum(reader: _Reader, anchor: Any) -> tuple[Layer, list[Any]]:
    call = reader.calls[anchor]
    first, second = call.args
    if not isinstance(first, relax.Var) or not isinstance(second, relax.Var) or first.same_as(second):
        raise NotALayer("not a sum of two tensors")
    if reader.shape(first) != reader.shape(second) or len(reader.shape(first)) != 4:
        raise NotALayer("its operands have other shapes")
    layer, covers = _by_channel(reader, anchor, (1, 1), (1, 1), 1.0)
    return replace(layer, residual=second.name, operator="add"), covers


def _by_channel(
    reader: _Reader, anchor: Any, kernel: tuple[int, int], stride: tuple[int, int], weight: float
) -> tuple[Layer, list[Any]]:
    """Make a convolution that adds up a window of each channel, all values with the same weight."""
    data = reader.calls[anchor].args[0]
    shape = cast(Shape, reader.shape(data))
    return Layer(
        anchor.name, "conv2d", data.name, shape, cast(Shape, reader.shape(anchor)), groups=shape[1],
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
}
