"""Puts the operators that TVM's importer emits into the precision that the PyTorch program has.

TVM's importer asks for float32 results of all matrix products and convolutions, also of half, bfloat16, double and
integer operands: it refuses the sums that follow, or would compute a double network in single precision. And Relax
knows no bfloat16 in a number of operators (power, layer normalisation, isnan, ...). Here each expression is put right
as it is emitted: results have the type of the operands, bfloat16 is computed in single precision and rounded, as
PyTorch does on a CPU, and normalisations of doubles are written out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import tvm
from tvm import relax

from tvm_ext.graph.origins import emit_from
from tvm_ext.passes.single_precision import in_single_precision

_WINDOW = ("strides", "padding", "dilation", "groups", "data_layout", "kernel_layout", "out_layout")
_TRANSPOSED = (*_WINDOW, "output_padding")

PRODUCTS: Mapping[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    "relax.matmul": (relax.op.matmul, ()),
    "relax.nn.conv1d": (relax.op.nn.conv1d, _WINDOW),
    "relax.nn.conv2d": (relax.op.nn.conv2d, _WINDOW),
    "relax.nn.conv3d": (relax.op.nn.conv3d, _WINDOW),
    "relax.nn.conv1d_transpose": (relax.op.nn.conv1d_transpose, _TRANSPOSED),
    "relax.nn.conv2d_transpose": (relax.op.nn.conv2d_transpose, _TRANSPOSED),
    "relax.nn.conv3d_transpose": (relax.op.nn.conv3d_transpose, _TRANSPOSED),
}
"""Operators for whose results the importer asks for float32: how each is made, from operands and attributes."""

_OWN_TYPES = frozenset(["float16", "bfloat16", "float64", "int8", "uint8", "int16", "int32", "int64"])
"""Types of operands that PyTorch gives the result, too; sums of integers wrap around."""


class PreciseBuilder:
    """A block builder that puts what is emitted into the precision of its operands.

    Parameters
    ----------
    builder : relax.BlockBuilder
        Does everything else.
    """

    def __init__(self, builder: relax.BlockBuilder) -> None:
        self._builder = builder
        self._span: Any = None

    @contextmanager
    def coming_from(self, span: Any) -> Iterator[None]:
        """Let what is emitted inside come from what a span says."""
        before, self._span = self._span, span
        try:
            yield
        finally:
            self._span = before

    def __getattr__(self, name: str) -> Any:
        return getattr(self._builder, name)

    def emit(self, value: Any, name_hint: str = "") -> Any:
        """Bind an expression to a variable, the operators inside it before."""
        return self._emit(self._precise(value), name_hint)

    def emit_output(self, value: Any, name_hint: str = "") -> Any:
        """Bind an expression to a variable that leaves the block."""
        return emit_from(self._builder, self._precise(value), self._span, name_hint, leaves=True)

    def close(self) -> None:
        """End the blocks that a failure has left open, of which TVM complains on stderr when the builder goes."""
        with suppress(tvm.error.InternalError):  # there is none any more
            while True:
                self._builder._end_block()

    def _emit(self, value: Any, name_hint: str = "") -> Any:
        return emit_from(self._builder, value, self._span, name_hint)

    def _precise(self, value: Any) -> Any:
        if not isinstance(value, relax.Call) or not isinstance(value.op, tvm.ir.Op):
            return value
        arguments = [self._typed(argument) for argument in value.args]
        if any(new is not old for new, old in zip(arguments, value.args, strict=True)):
            value = relax.Call(value.op, arguments, value.attrs, value.ty_args)
        value = _in_type_of_operands(value)
        normalize = NORMALIZATIONS.get(value.op.name)
        if normalize is not None and str(arguments[0].ty.dtype) == "float64":
            return normalize(value, self._emit)
        if any(_is_bfloat16(argument) for argument in arguments) and value.op.name not in PRODUCTS:
            changed = in_single_precision(value, self._emit)
            return value if changed is None else changed
        return value

    def _typed(self, argument: Any) -> Any:
        """Bind operators among the operands to variables of their own, which have types."""
        if isinstance(argument, relax.Tuple):
            fields = [self._typed(field) for field in argument.fields]
            same = all(new is old for new, old in zip(fields, argument.fields, strict=True))
            return argument if same else relax.Tuple(fields)
        return self.emit(argument) if isinstance(argument, relax.Call) and _is_operator(argument) else argument


def _normal(data: Any, axes: Any, epsilon: float, emit: Callable[[Any], Any]) -> Any:
    """``(x - mean) / sqrt(variance + epsilon)`` over some axes."""
    centred = emit(relax.op.subtract(data, emit(relax.op.mean(data, axes, keepdims=True))))
    variance = emit(relax.op.mean(emit(relax.op.multiply(centred, centred)), axes, keepdims=True))
    widened = emit(relax.op.add(variance, relax.const(epsilon, str(data.ty.dtype))))
    return emit(relax.op.multiply(centred, emit(relax.op.rsqrt(widened))))


def _scaled(normal: Any, weight: Any, bias: Any, shape: Sequence[Any] | None, emit: Callable[[Any], Any]) -> Any:
    if shape is not None:
        weight, bias = (emit(relax.op.reshape(value, shape)) for value in (weight, bias))
    return relax.op.add(emit(relax.op.multiply(normal, weight)), bias)


def _layer_norm(call: relax.Call, emit: Callable[[Any], Any]) -> Any:
    data, weight, bias = call.args
    axes = [int(axis) for axis in call.attrs.axes]
    return _scaled(_normal(data, axes, float(call.attrs.epsilon), emit), weight, bias, None, emit)


def _group_norm(call: relax.Call, emit: Callable[[Any], Any]) -> Any:
    data, weight, bias = call.args
    shape, groups = list(data.ty.shape), int(call.attrs.num_groups)
    parts = emit(relax.op.reshape(data, [shape[0], groups, shape[1] // groups, *shape[2:]]))
    normal = _normal(parts, list(range(2, len(shape) + 1)), float(call.attrs.epsilon), emit)
    whole = emit(relax.op.reshape(normal, shape))
    return _scaled(whole, weight, bias, [1, shape[1], *[1] * (len(shape) - 2)], emit)


def _instance_norm(call: relax.Call, emit: Callable[[Any], Any]) -> Any:
    data, weight, bias = call.args
    axes = [int(axis) for axis in call.attrs.axes]
    shape = [1 if axis in axes or axis == 0 else extent for axis, extent in enumerate(data.ty.shape)]
    return _scaled(_normal(data, axes, float(call.attrs.epsilon), emit), weight, bias, shape, emit)


NORMALIZATIONS: Mapping[str, Callable[[relax.Call, Callable[[Any], Any]], Any]] = {
    "relax.nn.layer_norm": _layer_norm,
    "relax.nn.group_norm": _group_norm,
    "relax.nn.instance_norm": _instance_norm,
}
"""Operators that Relax only knows in single and half precision, as PyTorch uses them: channels on axis 1."""


def _is_operator(call: relax.Call) -> bool:
    return isinstance(call.op, tvm.ir.Op) and call.op.name.startswith("relax.")


def _is_bfloat16(argument: Any) -> bool:
    if isinstance(argument, relax.Tuple):
        return any(map(_is_bfloat16, argument.fields))
    return isinstance(argument.ty, relax.TensorType) and str(argument.ty.dtype) == "bfloat16"


def _in_type_of_operands(call: relax.Call) -> relax.Call:
    """Take back the wish for a float32 result of other types."""
    if call.op.name not in PRODUCTS or str(call.attrs.out_dtype) != "float32":
        return call
    types = {str(argument.ty.dtype) for argument in call.args[:2]}
    if len(types) != 1 or not types <= _OWN_TYPES:
        return call
    make, names = PRODUCTS[call.op.name]
    return make(*call.args, **{name: getattr(call.attrs, name) for name in names})
