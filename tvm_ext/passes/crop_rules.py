"""What operators read to compute a part of their results.

Open extents take part as numbers of their own, so large that no known extent comes near (:class:`Extents`): a part of
an open axis is then all of it, or lies at one of its ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx

from tvm_ext.passes.crop_plan import Follows, Operator, Reading, Windows, read_region, whole
from tvm_ext.relax_utils import constant, slice_begins

LAYOUTS = {1: ("NCW", "OIW"), 2: ("NCHW", "OIHW"), 3: ("NCDHW", "OIDHW")}
CONVOLUTIONS = {f"relax.nn.conv{rank}d": rank for rank in LAYOUTS}
POOLINGS = {f"relax.nn.{kind}_pool{rank}d": rank for rank in LAYOUTS for kind in ("max", "avg")}
RESHAPES = frozenset(["relax.reshape", "relax.squeeze", "relax.expand_dims", "relax.flatten"])

POINTWISE = frozenset(
    f"relax.{name}"
    for name in (
        "abs ceil cos erf exp floor log negative round rsqrt sigmoid sign sin sqrt square tan tanh clip astype nn.relu "
        "nn.leakyrelu nn.gelu nn.gelu_tanh nn.selu nn.silu nn.softplus add subtract multiply divide power maximum "
        "minimum where less less_equal greater greater_equal equal not_equal logical_and logical_or logical_not isnan"
    ).split()
)
"""Operators that compute each element from those at the same place of their operands, which may be broadcast."""

REDUCTIONS = frozenset(f"relax.{name}" for name in "sum mean max min prod variance std".split())
ALONG_ONE = frozenset(["relax.nn.softmax", "relax.nn.log_softmax"])
_ALONG_SOME = frozenset(["relax.nn.layer_norm", "relax.nn.rms_norm"])

_UNIT = 2**40


class Extents:
    """Extents as numbers: open ones have a number for each expression.

    Parameters
    ----------
    values : mapping of Var to Expr
        What variables are bound to.
    """

    def __init__(self, values: Mapping[Any, Any]) -> None:
        self.open: list[Any] = []
        self.values = values

    def of(self, expr: Any) -> tuple[int, ...] | None:
        """List the extents of a tensor; None where not even their number is known."""
        shape = getattr(expr.ty, "shape", None)
        if not isinstance(shape, relax.ShapeExpr):
            return None
        return tuple(self.number(extent) for extent in shape.values)

    def number(self, extent: Any) -> int:
        """Give the number that stands for an extent."""
        if isinstance(extent, int | tirx.IntImm):
            return int(extent)
        for place, known in enumerate(self.open):
            if tvm_ffi.structural_equal(known, extent):
                return (place + 1) * _UNIT
        self.open.append(extent)
        return len(self.open) * _UNIT

    def expression(self, number: int) -> Any:
        """Give the place in memory that a number stands for: an integer, or one relative to an open extent."""
        place = (number + _UNIT // 2) // _UNIT
        return number if place == 0 else self.open[place - 1] + (number - place * _UNIT)

    def scalar(self, expr: Any) -> int | None:
        """Find the value of a tensor of one integer; that of an extent is what stands for it."""
        value = constant(expr)
        if value is not None:
            return int(value) if value.shape == () else None
        call = self.values.get(expr) if isinstance(expr, relax.Var) else None
        if not isinstance(call, relax.Call) or not isinstance(call.op, tvm.ir.Op):
            return None
        if call.op.name == "relax.where":
            condition = self.scalar(call.args[0])
            return None if condition is None else self.scalar(call.args[1 if condition else 2])
        if call.op.name == "relax.add":
            first, second = self.scalar(call.args[0]), self.scalar(call.args[1])
            return None if first is None or second is None else first + second
        if call.op.name == "relax.take":
            axis = self.scalar(call.args[1])
            extents = self._shape(call.args[0])
            return None if axis is None or extents is None else extents[axis]
        return None

    def _shape(self, expr: Any) -> tuple[int, ...] | None:
        for name in ("relax.shape_to_tensor", "relax.shape_of"):
            call = self.values.get(expr) if isinstance(expr, relax.Var) else None
            if not isinstance(call, relax.Call) or getattr(call.op, "name", "") != name:
                return None
            expr = call.args[0]
        return self.of(expr)


def is_open(extents: Sequence[int]) -> bool:
    """Whether one of the extents is open."""
    return any(extent >= _UNIT // 2 for extent in extents)


def operator_of(value: Any, places: Mapping[Any, int], returned: bool, extents: Extents) -> Operator | None:
    """Describe a call that can compute a part of its result; None for any other expression."""
    if not isinstance(value, relax.Call) or not isinstance(value.op, tvm.ir.Op):
        return None
    name, shape = value.op.name, extents.of(value)
    tensors = [argument for argument in value.args if isinstance(argument.ty, relax.TensorType)]
    shapes = [extents.of(tensor) for tensor in tensors]
    if not shape or not tensors or 0 in shape or any(known is None for known in shapes):
        return None
    known_shapes = [known for known in shapes if known is not None]
    if name in CONVOLUTIONS or name in POOLINGS:
        return _window(value, places, returned, shape, known_shapes)
    if name == "relax.take":
        tensors, known_shapes = tensors[:1], known_shapes[:1]
    if any(tensor not in places if isinstance(tensor, relax.Var) else constant(tensor) is None for tensor in tensors):
        return None
    operands = tuple(places[tensor] if isinstance(tensor, relax.Var) else None for tensor in tensors)
    rule = _rule(name)
    found = (
        None
        if rule is None or (operands[0] is None and len(operands) == 1)
        else rule(value, shape, known_shapes, extents)
    )
    if found is None:
        return None
    readings, whole_axes, work = found
    slices = name in ("relax.strided_slice", "relax.take")
    operator = Operator("mapped", shape, operands, readings=tuple(readings), whole_axes=tuple(whole_axes), work=work,
                        slices=slices, returned=returned)  # fmt: skip
    return operator if _reads_what_is_there(operator, known_shapes) else None


def _reads_what_is_there(operator: Operator, shapes: Sequence[Sequence[int]]) -> bool:
    """Whether what is read lies in the operands: open extents that are equal may be written in different ways."""
    for index, shape in enumerate(shapes):
        read = read_region(operator, index, shape, whole(operator.shape))
        if read is None or any(begin < 0 or end > extent for (begin, end), extent in zip(read, shape, strict=True)):
            return False
    return True


_Found = tuple[Sequence[Reading], Sequence[int], int] | None
_Rule = Callable[[relax.Call, tuple[int, ...], list[tuple[int, ...]], Extents], _Found]


def _rule(name: str) -> _Rule | None:
    if name in POINTWISE:
        return _pointwise
    if name in REDUCTIONS:
        return _reduction
    if name in ALONG_ONE or name in _ALONG_SOME:
        return _along
    if name in RESHAPES:
        return _reshape
    return _RULES.get(name)


def _broadcast(shape: Sequence[int], operand: Sequence[int]) -> Reading:
    """Tell what an element-wise operator reads: operands of fewer axes, and of extents of one, are broadcast."""
    missing = len(shape) - len(operand)
    return tuple((0, 1) if extent == 1 else Follows(missing + axis) for axis, extent in enumerate(operand))


def _pointwise(call: relax.Call, shape: tuple[int, ...], shapes: list[tuple[int, ...]], extents: Extents) -> _Found:
    return [_broadcast(shape, operand) for operand in shapes], (), 1


def _broadcast_to(call: relax.Call, shape: tuple[int, ...], shapes: list[tuple[int, ...]], extents: Extents) -> _Found:
    return [_broadcast(shape, shapes[0])], (), 0


def _reduction(call: relax.Call, shape: tuple[int, ...], shapes: list[tuple[int, ...]], extents: Extents) -> _Found:
    operand, attrs = shapes[0], call.attrs
    axes = range(len(operand)) if attrs.axis is None else [int(axis) % len(operand) for axis in attrs.axis]
    reading: list[Follows | tuple[int, int] | None] = []
    place = 0
    for axis in range(len(operand)):
        reading.append(None if axis in axes else Follows(place))
        place += axis not in axes or bool(attrs.keepdims)
    return [tuple(reading)], (), prod(operand[axis] for axis in axes)


def _along(call: relax.Call, shape: tuple[int, ...], shapes: list[tuple[int, ...]], extents: Extents) -> _Found:
    axes = [call.attrs.axis] if call.op.name in ALONG_ONE else call.attrs.axes
    data = tuple(Follows(axis) for axis in range(len(shape)))
    parameters: list[Reading] = [(None,) * len(operand) for operand in shapes[1:]]
    return [data, *parameters], [int(axis) % len(shape) for axis in axes], 1


def _permute(call: relax.Call, shape: tuple[int, ...], shapes: list[tuple[int, ...]], extents: Extents) -> _Found:
    rank = len(shape)
    axes = range(rank)[::-1] if call.attrs.axes is None else [int(axis) % rank for axis in call.attrs.axes]
    return [tuple(Follows(place) for _, place in sorted((axis, place) for place, axis in enumerate(axes)))], (), 0


def _reshape(call: relax.Call, shape: tuple[int, ...], shapes: list[tuple[int, ...]], extents: Extents) -> _Found:
    """Axes that stay what they are can be read in part, those that are divided or joined cannot."""
    before, after = shapes[0], shape
    reading: list[Follows | tuple[int, int] | None] = [(0, 1) if extent == 1 else None for extent in before]
    whole_axes = []
    ours, theirs = ([axis for axis, extent in enumerate(side) if extent != 1] for side in (before, after))
    while ours or theirs:
        joined, divided = [ours.pop(0)] if ours else [], [theirs.pop(0)] if theirs else []
        while (product := prod(before[axis] for axis in joined)) != (other := prod(after[axis] for axis in divided)):
            side, axes = (joined, ours) if product < other else (divided, theirs)
            if not axes:
                return None
            side.append(axes.pop(0))
        if len(joined) == len(divided) == 1:
            reading[joined[0]] = Follows(divided[0])
        else:
            whole_axes += divided
    return [tuple(reading)], whole_axes, 0


def _product(call: relax.Call, shape: tuple[int, ...], shapes: list[tuple[int, ...]], extents: Extents) -> _Found:
    first, second = shapes
    if len(first) < 2 or len(second) < 2:
        return None
    readings = []
    for operand, own in ((first, 0), (second, 1)):
        batch = _broadcast(shape[:-2], operand[:-2])
        rows_and_columns = [Follows(len(shape) - 2), None] if own == 0 else [None, Follows(len(shape) - 1)]
        readings.append((*batch, *rows_and_columns))
    return readings, (), 2 * first[-1]


def _slice(call: relax.Call, shape: tuple[int, ...], shapes: list[tuple[int, ...]], extents: Extents) -> _Found:
    begins = None if is_open(shapes[0]) else slice_begins(call, shapes[0])
    return None if begins is None else ([tuple(Follows(axis, offset) for axis, offset in enumerate(begins))], (), 0)


def _take(call: relax.Call, shape: tuple[int, ...], shapes: list[tuple[int, ...]], extents: Extents) -> _Found:
    """One index takes one element along an axis, which vanishes."""
    if call.attrs.axis is None or extents.of(call.args[1]) != ():
        return None
    index, axis = extents.scalar(call.args[1]), int(call.attrs.axis) % len(shapes[0])
    if index is None or not 0 <= index < shapes[0][axis] or _other_extent(index, shapes[0][axis]):
        return None
    reading = [
        Follows(place - (place > axis)) if place != axis else (index, index + 1) for place in range(len(shapes[0]))
    ]
    return [tuple(reading)], (), 0


def _other_extent(index: int, extent: int) -> bool:
    """Whether an index is relative to another extent than that of its axis."""
    return index >= _UNIT // 2 and not 0 < extent - index < _UNIT // 2


_RULES: dict[str, _Rule] = {
    "relax.broadcast_to": _broadcast_to,
    "relax.permute_dims": _permute,
    "relax.matmul": _product,
    "relax.strided_slice": _slice,
    "relax.take": _take,
}


def _window(
    call: relax.Call, places: Mapping[Any, int], returned: bool, shape: tuple[int, ...], shapes: list[tuple[int, ...]]
) -> Operator | None:
    """Describe how a convolution or pooling slides along each axis; None where its layout or extents are others."""
    name, attrs, data = call.op.name, call.attrs, call.args[0]
    rank = CONVOLUTIONS.get(name) or POOLINGS[name]
    if data not in places or len(shapes[0]) != rank + 2 or any(is_open(known) for known in (shape, *shapes)):
        return None
    layout, kernel_layout = LAYOUTS[rank]
    is_convolution = name in CONVOLUTIONS
    if is_convolution:
        if (str(attrs.data_layout), str(attrs.kernel_layout)) != (layout, kernel_layout):
            return None
        kernel = list(shapes[1][2:])
    else:
        kernel = [int(extent) for extent in attrs.pool_size]
        if str(attrs.layout) != layout:
            return None
    if str(attrs.out_layout or layout) != layout:
        return None
    padding = [int(item) for item in attrs.padding]
    windows = tuple(
        Windows(shapes[0][2 + axis], kernel[axis], int(attrs.strides[axis]), int(attrs.dilation[axis]),
                (padding[axis], padding[rank + axis]))
        for axis in range(rank)
    )  # fmt: skip
    cuts = not is_convolution or (int(attrs.groups) == 1 and constant(call.args[1]) is not None)
    return Operator("window", shape, (places[data],), windows, cuts, is_convolution, returned=returned)
