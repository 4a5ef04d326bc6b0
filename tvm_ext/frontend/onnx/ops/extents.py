"""Operators whose results have open extents, and the arithmetic of such extents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.relax.frontend.onnx import onnx_frontend

from tvm_ext.frontend.onnx.ops.base import Converter, Node, astype, constant, emit
from tvm_ext.frontend.onnx.ops.positive import is_positive

MOST_TERMS = 64
"""Variables in the expressions of one shape, above which a run computes it."""

MANY = 1 << 48
"""More elements than an axis can have; bounds from here on mean its end."""


def is_extent(value: Any) -> bool:
    """Whether a value is an expression that a shape may hold, rather than a tensor; a constant scalar is none."""
    return value is not None and bool(tvm.ir.is_prim_expr(value))


def number(value: Any) -> Any:
    """Extent that is known."""
    return tirx.IntImm("int64", int(value))


def is_number(value: Any) -> bool:
    """Whether an extent is known."""
    return isinstance(value, int | tirx.IntImm)


def _analyzer(*expressions: Any) -> Any:
    """Tell an analyzer that variables of shapes are not negative."""
    analyzer = tvm.sym.Analyzer()
    for expression in expressions:
        for variable in tirx.analysis.undefined_vars(expression):
            analyzer.update(variable, tvm.sym.ConstIntBound(0, tvm.sym.ConstIntBound.POS_INF), True)
    return analyzer


def normal(value: Any) -> Any:
    """Write an extent as short as may be."""
    value = number(value) if isinstance(value, int) else value
    return value if isinstance(value, tirx.IntImm | tirx.Var) else _analyzer(value).simplify(value)


def can_prove(condition: Any) -> bool:
    """Whether a condition on extents holds whatever they are."""
    if isinstance(condition, bool):
        return condition
    return bool(_analyzer(condition).can_prove(condition))


def as_tensor(bb: relax.BlockBuilder, value: Any) -> Any:
    """Make a tensor of int64 of an extent or a shape; anything else stays what it is."""
    if value is None:
        return value
    if isinstance(value, tirx.IntImm):
        return constant(int(value), "int64")
    if is_extent(value):
        vector = bb.emit(relax.op.shape_to_tensor(relax.ShapeExpr([value])))
        return bb.emit(relax.op.reshape(vector, relax.ShapeExpr([])))
    if isinstance(getattr(value, "ty", None), relax.ShapeType):
        return bb.emit(relax.op.shape_to_tensor(value))
    return value


def listed(node: Node, value: Any) -> list[Any] | None:
    """Elements of a vector of extents or of a constant; None if they are computed."""
    if isinstance(value, relax.ShapeExpr):
        return list(value.values)
    if is_extent(value):
        return [value]
    array = value if isinstance(value, np.ndarray) else node.array(value)
    return None if array is None else [number(item) for item in array.ravel()]


def _variables(*extents: Any) -> set[Any]:
    return {variable for extent in extents for variable in tirx.analysis.undefined_vars(extent)}


def slice_by_extents(
    bb: relax.BlockBuilder,
    x: Any,
    starts: Sequence[Any],
    ends: Sequence[Any],
    axes: list[int],
    steps: Sequence[int] = (),
) -> Any:
    """Slice a tensor between bounds that are extents or numbers.

    Parameters
    ----------
    x : relax.Expr
        The tensor; its shape is known, as expressions.
    starts, ends : sequence of tvm.tirx.Expr
        One for each of ``axes``, beyond the ends and from the back as ONNX allows.
    steps : sequence of int, optional
        One for each of ``axes``, positive; by default all are one.
    """
    first, last = [], []
    steps = steps or [1] * len(axes)
    for start, end, axis in zip(starts, ends, axes, strict=True):
        begin = _within(start, x.ty.shape[axis])
        first.append(begin)
        last.append(normal(tirx.max(begin, _within(end, x.ty.shape[axis]))))
    if not _variables(*first, *last) <= _variables(*x.ty.shape):
        # TVM's fusion may call a kernel where its operand is made, before the extents are known; as tensors they go in
        # as operands too.
        for axis, begin, end, step in zip(axes, first, last, steps, strict=True):
            places = bb.emit(relax.op.arange(0, normal(end - begin), step, "int64"))
            if not is_number(begin) or int(begin) != 0:
                places = bb.emit(relax.op.add(places, as_tensor(bb, begin)))
            x = bb.emit(relax.op.take(x, places, axis, mode="clip"))
        return x
    return relax.op.strided_slice(x, axes, first, last, [number(step) for step in steps], assume_inbound=True)


def _within(place: Any, size: Any) -> Any:
    """Count a bound from the front and keep it on its axis."""
    zero = number(0)
    if is_number(place) and int(place) >= MANY:
        return size
    if is_number(place) and int(place) < -MANY:
        return zero
    if can_prove(place < zero):
        place = place + size
    elif not can_prove(place >= zero):
        place = tirx.Select(place < zero, place + size, place)
    return normal(tirx.min(tirx.max(normal(place), zero), size))


class Range(Converter):
    """Numbers in equal steps; how many there are stays an expression of extents where the ends are."""

    @classmethod
    def convert(cls, node: Node, bb: relax.BlockBuilder, inputs: Any) -> Any:
        """Give the numbers."""
        ends = [listed(node, value) for value in inputs[:3]]
        types = {str(value.ty) if is_extent(value) else str(value.ty.dtype) for value in inputs[:3]}
        numbers = [item[0] for item in ends if item is not None]
        open_ends = any(map(is_extent, inputs[:3])) and types == {"int64"}
        if not open_ends or len(numbers) < 3 or not is_number(numbers[2]):
            return cls._by_tvm(node, bb, [as_tensor(bb, value) for value in inputs])
        start, limit, delta = numbers
        step = int(delta)
        if step == 0:
            node.damaged("its delta is 0")
        apart = limit - start if step > 0 else start - limit
        count = normal(tirx.max(tirx.floordiv(apart + number(abs(step) - 1), number(abs(step))), number(0)))
        steps: Any = bb.emit(relax.op.arange(0, count, 1, "int64"))
        if step != 1:
            steps = bb.emit(relax.op.multiply(steps, constant(step, "int64")))
        if is_number(start) and int(start) == 0:
            return steps
        return relax.op.add(steps, constant(int(start), "int64") if is_number(start) else as_tensor(bb, start))

    @staticmethod
    def _by_tvm(node: Node, bb: relax.BlockBuilder, inputs: list[Any]) -> Any:
        return onnx_frontend.Range.get_converter(12)(bb, inputs, dict(node.attributes), node.parameters)


def reshape_to_extents(node: Node, bb: relax.BlockBuilder, x: Any, target: Sequence[Any]) -> Any:
    """Reshape to a shape that holds open extents, each of which may turn out to be zero.

    A zero in a shape means the extent of the input at its place, unless attribute ``allowzero`` is set.
    """
    x = emit(bb, x)
    if x.ty.shape is None:
        return relax.op.reshape(x, relax.ShapeExpr(list(target)))
    dims, shape, zero = list(x.ty.shape), list(target), number(0)
    inferred = [axis for axis, extent in enumerate(shape) if is_number(extent) and int(extent) == -1]
    for axis, extent in enumerate(shape[: len(dims)]):
        if node.integer("allowzero", 0) or can_prove(extent != zero) or _vanishes_with(extent, dims[axis]):
            continue
        if is_positive(extent):
            continue
        copies = extent == zero
        if not inferred:  # an empty tensor stays empty
            copies = tirx.And(copies, _product(dims) != zero)
        shape[axis] = normal(tirx.Select(copies, dims[axis], extent))
    if len(inferred) > 1:
        node.damaged("its shape leaves two extents to be inferred")
    if inferred:
        shape[inferred[0]] = _inferred(dims, [extent for axis, extent in enumerate(shape) if axis != inferred[0]])
    if sum(map(_terms, shape)) > MOST_TERMS:
        # Each choice holds the ones before it; the analyzer would not come to an end after a few reshapes.
        shape = list(extents_in(bb, as_tensor(bb, relax.ShapeExpr(shape))).values)
    return reshaped(bb, x, shape)


def _terms(extent: Any) -> int:
    """Count the variables in an expression, each time that they occur."""
    found: list[Any] = []
    tvm_ffi.structural_walk(extent, (tvm.ir.Var, found.append))
    return len(found)


def reshaped(bb: relax.BlockBuilder, x: Any, shape: Sequence[Any]) -> Any:
    """Reshape a tensor; where it may have another number of elements than the shape, each run compares them."""
    count, wanted = _product(x.ty.shape), _product(shape)
    if not can_prove(count == wanted):
        flat = bb.emit(relax.op.reshape(x, relax.ShapeExpr([normal(count)])))
        x = bb.match_cast(flat, relax.TensorType([normal(wanted)], str(x.ty.dtype)))
    return relax.op.reshape(x, relax.ShapeExpr(list(shape)))


def taken_as(bb: relax.BlockBuilder, x: Any, target: Sequence[Any]) -> Any:
    """Give a tensor of known shape another one that is the same at run time; each run compares the two.

    TVM's ``CanonicalizeBindings`` does not end where ``match_cast`` gives an extent that is a variable by itself a new
    expression, so that the numbers of elements are compared there.
    """
    x, dims = emit(bb, x), list(x.ty.shape)
    changed = [new for new, old in zip(target, dims, strict=True) if not can_prove(new == old)]
    if not any(isinstance(new, tirx.Var) for new in changed):
        return bb.match_cast(x, relax.TensorType(list(target), str(x.ty.dtype)))
    flat = bb.emit(relax.op.reshape(x, relax.ShapeExpr([normal(_product(dims))])))
    count = normal(_product(target))
    count = tirx.max(count, number(0)) if isinstance(count, tirx.Var) else count
    flat = bb.match_cast(flat, relax.TensorType([count], str(x.ty.dtype)))
    return bb.emit(relax.op.reshape(flat, relax.ShapeExpr(list(target))))


def _vanishes_with(extent: Any, dim: Any) -> bool:
    """Whether an extent can be zero only where another one is, and then stands for it anyway."""
    return can_prove(extent == dim) or can_prove(tirx.Or(extent != number(0), dim == number(0)))


def _inferred(dims: list[Any], others: list[Any]) -> Any:
    """Extent that is left over; what is in both shapes cancels, also where it is zero."""
    left, rest = list(dims), []
    for extent in others:
        same = next((place for place, dim in enumerate(left) if can_prove(dim == extent)), None)
        if same is None:
            rest.append(extent)
        else:
            left.pop(same)
    divisor = _product(rest)
    if not can_prove(divisor >= number(1)):
        divisor = tirx.max(divisor, number(1))
    return normal(tirx.floordiv(_product(left), divisor))


def _product(extents: Sequence[Any]) -> Any:
    total: Any = number(1)
    for extent in extents:
        total = total * extent
    return total


def reshape_to_computed(bb: relax.BlockBuilder, x: Any, target: Any, allowzero: bool) -> Any:
    """Reshape to a shape that a tensor of known length holds; -1 and 0 in it are looked for at run time."""
    x, target = emit(bb, x), astype(bb, emit(bb, target), "int64")
    length = int(target.ty.shape[0])
    dims = as_tensor(bb, bb.emit(relax.op.shape_of(x)))
    zero, one, rest = constant(0, "int64"), constant(1, "int64"), constant(-1, "int64")
    if not allowzero:
        kept = min(length, x.ty.ndim)
        copied = bb.emit(relax.op.strided_slice(dims, [0], [0], [kept]))
        if length > kept:
            copied = bb.emit(relax.op.concat([copied, constant(np.zeros(length - kept), "int64")], 0))
        target = bb.emit(relax.op.where(bb.emit(relax.op.equal(target, zero)), copied, target))
    is_rest = bb.emit(relax.op.equal(target, rest))
    others = bb.emit(relax.op.prod(bb.emit(relax.op.where(is_rest, one, target))))
    others = bb.emit(relax.op.maximum(others, one))
    left = bb.emit(relax.op.floor_divide(bb.emit(relax.op.prod(dims)), others))
    return reshaped(bb, x, extents_in(bb, bb.emit(relax.op.where(is_rest, left, target))).values)


def extents_in(bb: relax.BlockBuilder, value: Any) -> Any:
    """Shape that a vector of integers, of known length, holds."""
    value = astype(bb, emit(bb, value), "int64")
    extents = [tirx.Var(f"extent_{axis}", "int64") for axis in range(int(value.ty.shape[0]))]
    bb.match_cast(bb.emit(relax.op.tensor_to_shape(value)), relax.ShapeType(extents))
    return relax.ShapeExpr(extents)


def allocated_extents(bb: relax.BlockBuilder, value: Any) -> Any:
    """Shape of a new tensor that a vector of integers holds; -1 everywhere where it has too many elements to be one.

    A run cannot allocate that. Bytes are counted in 64 bits, which two numbers suffice to exceed: the tensor would be
    small, and its kernel would write beyond it.
    """
    value = astype(bb, emit(bb, value), "int64")
    count = bb.emit(relax.op.prod(astype(bb, value, "float64")))
    is_shape = bb.emit(relax.op.less(count, constant(float(MANY), "float64")))
    return extents_in(bb, bb.emit(relax.op.where(is_shape, value, constant(-1, "int64"))))


def is_computed_shape(value: Any) -> bool:
    """Whether a value is a computed vector, and its length is known."""
    if is_extent(value) or not isinstance(value, relax.Var) or not isinstance(value.ty, relax.TensorType):
        return False
    return value.ty.ndim == 1 and value.ty.shape is not None and isinstance(value.ty.shape[0], tirx.IntImm)


class ConstantOfShape(Converter):
    """One value everywhere, in a shape that may be computed."""

    @classmethod
    def convert(cls, node: Node, bb: relax.BlockBuilder, inputs: Any) -> Any:
        """Give the tensor."""
        shape = allocated_extents(bb, inputs[0]) if is_computed_shape(inputs[0]) else inputs[0]
        stock = onnx_frontend.ConstantOfShape.get_converter(9)
        return stock(bb, [shape], dict(node.attributes), node.parameters)


def counted(node: Node, bb: relax.BlockBuilder, value: Any) -> Any:
    """Extent that a computed tensor of one element holds."""
    if is_extent(value):
        return value
    if isinstance(value, relax.ShapeExpr):
        return value.values[0]
    return extents_in(bb, bb.emit(relax.op.reshape(emit(bb, value), [1]))).values[0]


CONVERTERS: dict[tuple[str, str], type] = {("", operator.__name__): operator for operator in (ConstantOfShape, Range)}
