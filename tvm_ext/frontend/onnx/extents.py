"""Computes with extents that are open: what a graph makes of ``Shape`` and ``Size`` of tensors without a fixed shape.

Such a value is an expression of symbolic variables, which shapes may hold. It stays one as long as operators do
arithmetic with it, so that a shape made of it is known to be that of another tensor. An operator that wants a tensor
gets one, of type int64.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import onnx
import tvm
from tvm import relax, tirx

from tvm_ext.frontend.onnx.graph import domain_of
from tvm_ext.frontend.onnx.ops.extents import (
    as_tensor,
    can_prove,
    is_extent,
    is_number,
    normal,
    number,
)
from tvm_ext.frontend.onnx.ops.windows import indices as picked_indices

TAKES_EXTENTS: Mapping[str, frozenset[int]] = {
    **dict.fromkeys(("BlackmanWindow", "HammingWindow", "HannWindow"), frozenset([0])),
    "AffineGrid": frozenset([1]),
    "Col2Im": frozenset([1]),
    "ConstantOfShape": frozenset([0]),
    "DFT": frozenset([1]),
    "Expand": frozenset([1]),
    "MaxUnpool": frozenset([2]),
    "MelWeightMatrix": frozenset([1]),
    "Range": frozenset([0, 1, 2]),
    "Reshape": frozenset([1]),
    "Resize": frozenset([2, 3]),
    "Slice": frozenset([1, 2]),
    "TopK": frozenset([1]),
    "Upsample": frozenset([1]),
}
"""Inputs that stand for extents, by operator; every other one is a tensor."""

LONGEST = 64
"""Elements of a constant that may be part of a shape: as many as a tensor can have dimensions."""


@dataclass(frozen=True)
class Extents:
    """A tensor of int64 whose elements are expressions.

    Attributes
    ----------
    values : tuple of tvm.tirx.Expr
    scalar : bool
        Without dimensions, and one value; else of one dimension.
    """

    values: tuple[Any, ...]
    scalar: bool

    def result(self) -> Any:
        """Give the form in which the importer keeps it: a constant if it is one, an expression or a shape."""
        values = [normal(value) for value in self.values]
        if all(map(is_number, values)):
            array = np.array([int(value) for value in values], "int64")
            return relax.const(array.reshape(()) if self.scalar else array, "int64")
        return values[0] if self.scalar else relax.ShapeExpr(values)


def extents_of(value: Any) -> Extents | None:
    """See an input as extents; None if it is something else."""
    if value is None:
        return None
    if is_extent(value):
        return Extents((value,), True) if str(value.ty) == "int64" else None
    if isinstance(value, relax.ShapeExpr):
        return Extents(tuple(value.values), False)
    array = _array(value)
    if array is None or array.dtype != np.int64 or array.ndim > 1 or array.size > LONGEST:
        return None
    return Extents(tuple(number(item) for item in array.ravel()), array.ndim == 0)


def with_tensors(bb: relax.BlockBuilder, node: onnx.NodeProto, inputs: Sequence[Any]) -> list[Any]:
    """Make tensors of the extents among the inputs of a node, but for those that its converter takes as extents."""
    taken = TAKES_EXTENTS.get(node.op_type, frozenset()) if domain_of(node) == "" else frozenset()
    return [value if position in taken else as_tensor(bb, value) for position, value in enumerate(inputs)]


def computed_extents(
    bb: relax.BlockBuilder, node: onnx.NodeProto, inputs: Sequence[Any], attributes: Mapping[str, Any]
) -> Any:
    """Compute a node whose result is made of extents.

    Parameters
    ----------
    inputs : sequence of relax.Expr or None
    attributes : mapping
        Of the node, as TVM's importer parses them.

    Returns
    -------
    relax.Expr or None
        None if the result is none, or has to be computed as a tensor.
    """
    if domain_of(node) != "":
        return None
    if node.op_type in ("Shape", "Size"):
        return _of_tensor(bb, node.op_type, inputs[0], attributes)
    compute = _OPERATORS.get(node.op_type)
    open_ones = any(is_extent(value) or isinstance(value, relax.ShapeExpr) for value in inputs)
    if compute is None or not open_ones:
        return None
    result = compute(list(inputs), attributes)
    return result.result() if isinstance(result, Extents) else result


def _of_tensor(bb: relax.BlockBuilder, operator_name: str, x: Any, attributes: Mapping[str, Any]) -> Any:
    """Give the shape of a tensor or the number of its elements."""
    known = extents_of(x)
    if known is not None:
        dims: list[Any] = [] if known.scalar else [number(len(known.values))]
    elif not isinstance(x.ty, relax.TensorType) or x.ty.ndim < 0:
        return None
    elif x.ty.shape is None:
        found = bb.emit(relax.op.shape_of(x))
        dims = [tirx.Var(f"extent_{axis}", "int64") for axis in range(x.ty.ndim)]
        bb.match_cast(found, relax.ShapeType(dims))
    else:
        dims = list(x.ty.shape)
    if operator_name == "Size":
        return Extents((reduce(operator.mul, dims, number(1)),), True).result()
    return Extents(tuple(dims[attributes.get("start", 0) : attributes.get("end")]), False).result()


def _array(value: Any) -> np.ndarray | None:
    return np.asarray(value.value.numpy()) if isinstance(value, tvm.ir.GenericConst) else None


def _same(inputs: list[Any], attributes: Mapping[str, Any]) -> Extents | None:
    return extents_of(inputs[0])


def _cast(inputs: list[Any], attributes: Mapping[str, Any]) -> Extents | None:
    return extents_of(inputs[0]) if attributes.get("to") == onnx.TensorProto.INT64 else None


def _together(inputs: Sequence[Any]) -> tuple[list[tuple[Any, ...]], bool] | None:
    """Broadcast operands: their elements side by side, and whether the result is a scalar."""
    operands = [extents_of(value) for value in inputs]
    if not operands or any(item is None for item in operands):
        return None
    given = [item for item in operands if item is not None]
    lengths = {len(item.values) for item in given} - {1}
    if len(lengths) > 1:
        return None
    length = lengths.pop() if lengths else 1
    columns = [item.values * length if len(item.values) == 1 else item.values for item in given]
    return list(zip(*columns, strict=True)), all(item.scalar for item in given)


def _elementwise(compute: Callable[..., Any]) -> Callable[..., Any]:
    """Make an operator on single elements; ``compute`` gives None for what has to be a tensor."""

    def apply(inputs: list[Any], attributes: Mapping[str, Any]) -> Extents | None:
        rows = _together(inputs)
        if rows is None:
            return None
        values = [compute(*row) for row in rows[0]]
        return None if any(value is None for value in values) else Extents(tuple(values), rows[1])

    return apply


def _divided(left: Any, right: Any) -> Any:
    if not is_number(right) or int(right) == 0:
        return None  # by a number that may be zero
    positive = int(right) > 0 and can_prove(left >= number(0))
    return tirx.floordiv(left, right) if positive else tirx.truncdiv(left, right)


def _remainder(inputs: list[Any], attributes: Mapping[str, Any]) -> Extents | None:
    kind = tirx.truncmod if attributes.get("fmod", 0) else tirx.floormod
    return _elementwise(lambda left, right: kind(left, right) if is_number(right) and int(right) > 0 else None)(
        inputs, attributes
    )


def _compared(compare: Callable[[Any, Any], Any], opposite: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """Make a comparison whose outcome is the same whatever the extents are; None where it is not."""

    def apply(inputs: list[Any], attributes: Mapping[str, Any]) -> Any:
        rows = _together(inputs)
        if rows is None:
            return None
        outcome = []
        for left, right in rows[0]:
            if not can_prove(compare(left, right)) and not can_prove(opposite(left, right)):
                return None
            outcome.append(can_prove(compare(left, right)))
        return relax.const(np.array(outcome[0] if rows[1] else outcome, bool), "bool")

    return apply


def _chosen(inputs: list[Any], attributes: Mapping[str, Any]) -> Extents | None:
    condition, rows = _array(inputs[0]), _together(inputs[1:])
    if condition is None or rows is None or condition.ndim > 1:
        return None
    pairs, scalar = rows
    length = max(len(pairs), condition.size)
    if {len(pairs), condition.size} - {1, length}:
        return None
    pairs = pairs * length if len(pairs) == 1 else pairs
    chosen = [pair[0] if choice else pair[1] for choice, pair in zip(np.resize(condition, length), pairs, strict=True)]
    return Extents(tuple(chosen), scalar and condition.ndim == 0)


def _gathered(inputs: list[Any], attributes: Mapping[str, Any]) -> Extents | None:
    data, index = extents_of(inputs[0]), _array(inputs[1])
    if data is None or data.scalar or index is None or index.ndim > 1:
        return None
    count = len(data.values)
    if np.any(index < -count) or np.any(index >= count):
        return None
    return Extents(tuple(data.values[int(place)] for place in index.ravel()), index.ndim == 0)


def _sliced(inputs: list[Any], attributes: Mapping[str, Any]) -> Extents | None:
    data = extents_of(inputs[0])
    if "starts" in attributes:
        bounds: list[Any] = [np.asarray(attributes[name]) for name in ("starts", "ends")]
        bounds += [np.asarray(attributes.get("axes", (0,))), np.ones(1, "int64")]
    else:
        given = [*inputs[1:], None, None][:4]
        bounds = [np.array([default]) if value is None else _array(value)
                  for value, default in zip(given, (0, 0, 0, 1), strict=True)]  # fmt: skip
    if data is None or data.scalar or any(bound is None or bound.size != 1 for bound in bounds):
        return None
    start, end, axis, step = (int(bound.item()) for bound in bounds)
    if axis not in (0, -1) or step == 0:
        return None
    return Extents(tuple(data.values[place] for place in picked_indices(start, end, step, len(data.values))), False)


def _joined(inputs: list[Any], attributes: Mapping[str, Any]) -> Extents | None:
    parts = [extents_of(value) for value in inputs]
    if attributes.get("axis", 0) not in (0, -1) or any(part is None or part.scalar for part in parts):
        return None
    return Extents(tuple(value for part in parts if part is not None for value in part.values), False)


def _axes(inputs: list[Any], attributes: Mapping[str, Any]) -> list[int] | None:
    """Axes of an attribute or a second input; empty if there are none, None if they are computed."""
    if "axes" in attributes:
        return [int(axis) for axis in attributes["axes"]]
    if len(inputs) < 2 or inputs[1] is None:
        return []
    array = _array(inputs[1])
    return None if array is None else [int(axis) for axis in array.ravel()]


def _squeezed(inputs: list[Any], attributes: Mapping[str, Any]) -> Extents | None:
    data, axes = extents_of(inputs[0]), _axes(inputs, attributes)
    if data is None or axes is None or axes not in ([], [0], [-1]):
        return None
    if len(data.values) == 1 or data.scalar:
        return Extents(data.values, True) if not (data.scalar and axes) else None
    return None if axes else data


def _unsqueezed(inputs: list[Any], attributes: Mapping[str, Any]) -> Extents | None:
    data, axes = extents_of(inputs[0]), _axes(inputs, attributes)
    return Extents(data.values, False) if data is not None and data.scalar and axes in ([0], [-1]) else None


def _reshaped(inputs: list[Any], attributes: Mapping[str, Any]) -> Extents | None:
    data = extents_of(inputs[0])
    target = np.asarray(attributes["shape"]) if "shape" in attributes else _array(inputs[1])
    if data is None or target is None:
        return None
    if target.size == 0 and len(data.values) == 1:
        return Extents(data.values, True)
    return Extents(data.values, False) if target.tolist() in ([-1], [len(data.values)]) else None


def _reduced(combine: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """Make a reduction of a whole shape to one number."""

    def apply(inputs: list[Any], attributes: Mapping[str, Any]) -> Extents | None:
        data, axes = extents_of(inputs[0]), _axes(inputs, attributes)
        if data is None or data.scalar or not data.values or axes not in ([], [0], [-1]):
            return None
        if not axes and attributes.get("noop_with_empty_axes", 0):
            return data
        return Extents((reduce(combine, data.values),), not attributes.get("keepdims", 1))

    return apply


_OPERATORS: dict[str, Callable[[list[Any], Mapping[str, Any]], Any]] = {
    "Abs": _elementwise(lambda value: tirx.max(value, -value)),
    "Add": _elementwise(operator.add),
    "Cast": _cast,
    "Concat": _joined,
    "Div": _elementwise(_divided),
    "Equal": _compared(operator.eq, operator.ne),
    "Gather": _gathered,
    "Greater": _compared(operator.gt, operator.le),
    "GreaterOrEqual": _compared(operator.ge, operator.lt),
    "Identity": _same,
    "Less": _compared(operator.lt, operator.ge),
    "LessOrEqual": _compared(operator.le, operator.gt),
    "Max": _elementwise(lambda *values: reduce(tirx.max, values)),
    "Min": _elementwise(lambda *values: reduce(tirx.min, values)),
    "Mod": _remainder,
    "Mul": _elementwise(operator.mul),
    "Neg": _elementwise(operator.neg),
    "ReduceMax": _reduced(tirx.max),
    "ReduceMin": _reduced(tirx.min),
    "ReduceProd": _reduced(operator.mul),
    "ReduceSum": _reduced(operator.add),
    "Reshape": _reshaped,
    "Slice": _sliced,
    "Squeeze": _squeezed,
    "Sub": _elementwise(operator.sub),
    "Unsqueeze": _unsqueezed,
    "Where": _chosen,
}
