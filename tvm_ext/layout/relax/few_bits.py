"""Keep the integers that constant weights stand as: products read few bits, tables are read before they are scaled.

before: ``y = matmul(x, permute_dims(multiply(subtract(astype(w, "float32"), z), s)))`` with int8 or smaller ``w``
after:  ``y = word_product(x, words, scales)``; the words are unpacked in registers

before: ``y = take(multiply(astype(w, "float32"), s), ids)``
after:  ``y = multiply(astype(take(w, ids), "float32"), take(s, ids))``

The pass belongs behind integer arithmetic, which has quantised data too, and before constants are folded, which would
make floats of the weights. Integer products that are left there, of extents that are open, are computed in floats.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_ext.graph.decisions import Decision, deciding_pass
from tvm_ext.graph.origins import OriginBuilder, span_of, words_of
from tvm_ext.layout.few_bits import FewBits, plan_words, stored_words, verify_words
from tvm_ext.passes.bindings import Bindings, calls
from tvm_ext.quantized.relax.values import QuantizedConstant
from tvm_ext.relax_utils import constant, static_shape
from tvm_ext.schedules.compute.weight_words import WeightShape
from tvm_ext.schedules.cpu.machine import Machine, machine_of
from tvm_ext.schedules.cpu.word_product import word_product

_FLOATS = ("float32", "float16", "bfloat16")
_BYTES = ("int8", "uint8")
_SMALLEST_TABLE = 1 << 14
"""Weights that a table has at least to be kept in bytes."""


def few_bit_weights() -> tvm.transform.Pass:
    """Make the pass; functions without constants of 8 bits are left alone."""
    return deciding_pass("tvm_ext.FewBitWeights", lambda mod: _Rewriter(mod, machine_of()))


class _Weights(Bindings):
    """What constant expressions of a function are worth."""

    def few_bits(self, expr: Any) -> FewBits | None:
        """Read a float32 value, or one of few bits, off a constant of 8 bits; None if it is something else."""
        value = self.values.get(expr) if isinstance(expr, relax.Var) else expr
        if isinstance(value, relax.Var):
            return self.few_bits(value)
        array = constant(value) if isinstance(value, tvm.ir.GenericConst) else None
        if array is not None:
            return _of_constant(array)
        if not isinstance(value, relax.Call) or not isinstance(value.op, tvm.ir.Op):
            return None
        reader = _READERS.get(value.op.name)
        return None if reader is None else reader(self, value)

    def small(self, expr: Any) -> np.ndarray | None:
        """Evaluate a scale or a zero point: a constant, or what is little done to one."""
        value = self.values.get(expr) if isinstance(expr, relax.Var) else expr
        if isinstance(value, relax.Var):
            return self.small(value)
        if isinstance(value, tvm.ir.GenericConst):
            array = constant(value)
            narrow = array is not None and str(array.dtype) == "bfloat16"  # which NumPy computes nothing with
            return array.astype("float32") if narrow and array is not None else array
        if not isinstance(value, relax.Call) or not isinstance(value.op, tvm.ir.Op):
            return None
        name, shape = value.op.name, static_shape(value)
        if name not in (*_SHAPES, "relax.astype", "relax.permute_dims") or shape is None:
            return None
        array = self.small(value.args[0])
        if array is None:
            return None
        if name == "relax.astype":
            # A cast that rounds is left to whoever folds constants.
            return array if str(value.ty.dtype) in ("float32", "int32") or array.dtype.kind in "iu" else None
        if name == "relax.permute_dims":
            return array.transpose(_axes(value, array.ndim))
        return array.reshape(shape)


def _of_constant(array: np.ndarray) -> FewBits | None:
    """Take a matrix or more of 8-bit integers, which integer products have as 32 bits."""
    if array.ndim < 2 or not array.size or str(array.dtype) not in (*_BYTES, "int32"):
        return None
    if str(array.dtype) in _BYTES:
        return FewBits.of(array)
    low, high = int(array.min()), int(array.max())
    held = next((kind for kind in _BYTES if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max), None)
    return None if held is None else FewBits.of(array.astype(held))


def _axes(call: relax.Call, rank: int) -> list[int]:
    axes = call.attrs.axes
    return list(reversed(range(rank))) if axes is None else [int(axis) % rank for axis in axes]


def _cast(weights: _Weights, call: relax.Call) -> FewBits | None:
    known = weights.few_bits(call.args[0])
    if known is None or str(call.ty.dtype) in (*_FLOATS, str(call.args[0].ty.dtype)):
        return known
    widens = str(call.ty.dtype) in ("int16", "int32", "int64") and str(call.args[0].ty.dtype) in _BYTES
    return known if widens else None


def _dequantized(weights: _Weights, call: relax.Call) -> FewBits | None:
    known = QuantizedConstant.from_call(call)
    if known is None or known.values.ndim < 2 or str(call.args[0].ty.dtype) not in _BYTES:
        return None
    values = known.values.astype(str(call.args[0].ty.dtype))
    rank = [array.reshape(array.shape or (1,) * values.ndim) for array in (known.scale, known.zero_point)]
    return FewBits(values, rank[0].astype("float32"), rank[1].astype("float32"))


def _shifted(sign: int) -> Callable[[_Weights, relax.Call], FewBits | None]:
    def read(weights: _Weights, call: relax.Call) -> FewBits | None:
        if not _is_of_floats(call):  # integers may wrap around
            return None
        known, value = weights.few_bits(call.args[0]), weights.small(call.args[1])
        return None if known is None or value is None else known.added(sign * value.astype("float32"))

    return read


def _scaled(weights: _Weights, call: relax.Call) -> FewBits | None:
    if not _is_of_floats(call):
        return None
    for matrix, factor in (call.args, call.args[::-1]):
        value = weights.small(factor)
        if value is not None and value.dtype.kind == "f":
            known = weights.few_bits(matrix)
            return None if known is None else known.multiplied(value)
    return None


def _is_of_floats(call: relax.Call) -> bool:
    return str(call.ty.dtype) in _FLOATS and static_shape(call) == static_shape(call.args[0])


def _moved(weights: _Weights, call: relax.Call) -> FewBits | None:
    known, shape = weights.few_bits(call.args[0]), static_shape(call)
    return None if known is None or shape is None else known.reshaped(shape)


def _permuted(weights: _Weights, call: relax.Call) -> FewBits | None:
    known = weights.few_bits(call.args[0])
    return None if known is None else known.permuted(_axes(call, len(known.shape)))


def _sliced(weights: _Weights, call: relax.Call) -> FewBits | None:
    known = weights.few_bits(call.args[0])
    lists = [[getattr(item, "value", None) for item in _items(part)] for part in call.args[1:]]
    if known is None or len(lists) < 3 or any(item is None for part in lists for item in part):
        return None
    slices = [slice(None)] * len(known.shape)
    steps = lists[3] if len(lists) > 3 and lists[3] else [1] * len(lists[0])
    for axis, begin, end, step in zip(*lists[:3], steps, strict=True):
        if begin < 0 or end < 0 or step != 1:
            return None
        slices[axis] = slice(begin, end)
    return known.cut(slices)


def _items(part: Any) -> list[Any]:
    if isinstance(part, relax.ShapeExpr):
        return list(part.values)
    return [getattr(item, "value", item) for item in getattr(part, "fields", ())]


_SHAPES = ("relax.reshape", "relax.expand_dims", "relax.squeeze", "relax.flatten")

_READERS: dict[str, Callable[[_Weights, relax.Call], FewBits | None]] = {
    "relax.astype": _cast,
    "relax.dequantize": _dequantized,
    "relax.subtract": _shifted(-1),
    "relax.add": _shifted(1),
    "relax.multiply": _scaled,
    "relax.permute_dims": _permuted,
    "relax.strided_slice": _sliced,
    **dict.fromkeys(_SHAPES, _moved),
}


@mutator
class _Rewriter(PyExprMutator):
    """Rewrites one module, function by function."""

    def __init__(self, mod: tvm.IRModule, machine: Machine) -> None:
        super().__init__(mod)
        self.builder_ = OriginBuilder(mod)
        self.machine, self.lanes = machine, machine.lanes("float32")
        self.weights = _Weights()
        self.decisions: list[Decision] = []
        self._words: tuple[str, ...] = ()

    def begin(self, function: relax.Function) -> bool:
        """Look at a function before it is rewritten, and say whether it has constants of integers."""
        self.weights = _Weights()
        self.weights.visit_expr(function)
        found = []

        def visit(node: Any) -> None:
            if isinstance(node, tvm.ir.GenericConst) and str(getattr(node.ty, "dtype", "")) in (*_BYTES, "int32"):
                found.append(node)

        relax.analysis.post_order_visit(function.body, visit)
        return bool(found)

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        """Rewrite a binding; what is emitted comes from where it does."""
        self._words = words_of(binding.var)
        with self.builder_.coming_from(span_of(self._words)):
            super().visit_var_binding_(binding)

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        """Replace a product with a matrix of few bits, or what is read of a table of them."""
        made = None
        if calls(call, "relax.matmul"):
            made = self._product(call)
        elif calls(call, "relax.take"):
            made = self._taken(call)
        return super().visit_call_(call) if made is None else made

    def _product(self, call: relax.Call) -> relax.Expr | None:
        data, weight = call.args
        outer, dtype = _extents(data), str(call.ty.dtype)
        if outer is None or dtype not in (*_FLOATS, "int32") or self.weights.few_bits(data) is not None:
            return None
        if str(data.ty.dtype) != dtype or _extents(weight) is None or len(_extents(weight) or ()) != 2:
            return None
        matrix = self.weights.few_bits(weight)
        plan = None if matrix is None else plan_words(matrix, self.lanes)
        if matrix is None or plan is None or (dtype == "int32" and not self._only_scaled(call)):
            return None
        stored = stored_words(matrix, plan, self.lanes)
        verify_words(matrix, plan, self.lanes, stored)
        self.decisions.append(Decision.of("matmul", "few-bit weights", plan, self._words))
        shape = WeightShape(matrix.shape[0], matrix.shape[1], self.lanes, plan.format)
        rows = _count(outer[:-1])
        emit = self.builder_.emit
        given = self.visit_expr(data)
        if dtype != "float32":
            given = emit(relax.op.astype(given, "float32"))
        if len(outer) != 2:
            given = emit(relax.op.reshape(given, relax.ShapeExpr([rows, shape.reduction])))
        known = int(rows) if isinstance(rows, tirx.IntImm) else None
        kernel = self.builder_.add_func(word_product(shape, known, self.machine, dtype == "int32"), "word_product")
        result = relax.TensorType([rows, shape.columns], "float32")
        product = emit(relax.call_tir(kernel, [given, *(relax.const(array) for array in stored)], result))
        if dtype == "int32":  # beyond 24 bits a sum of floats is no whole number any more
            product = emit(relax.op.round(product))
        if dtype != "float32":
            product = emit(relax.op.astype(product, dtype))
        if len(outer) == 2:
            return product
        return relax.op.reshape(product, relax.ShapeExpr([*outer[:-1], tirx.IntImm("int64", shape.columns)]))

    def _only_scaled(self, call: relax.Call) -> bool:
        """Whether an integer product becomes floats, at most less or more a constant, so that nobody sees its bits."""
        values = self.weights.values
        waiting = [variable for variable, value in values.items() if value.same_as(call)]
        found = False
        while waiting:
            variable = waiting.pop()
            for reader, value in values.items():
                if not isinstance(value, relax.Call) or not any(part.same_as(variable) for part in _read(value)):
                    continue
                if calls(value, "relax.astype") and str(value.ty.dtype) == "float32":
                    found = True
                elif calls(value, "relax.subtract") or calls(value, "relax.add"):
                    waiting.append(reader)
                else:
                    return False
            if variable not in self.weights.blocks or not isinstance(variable, relax.DataflowVar):
                return False
        return found

    def _taken(self, call: relax.Call) -> relax.Expr | None:
        table, ids = call.args
        shape = static_shape(table)
        axis = call.attrs.axis
        if shape is None or len(shape) != 2 or axis is None or int(axis) % 2 or np.prod(shape) < _SMALLEST_TABLE:
            return None
        dtype, places = str(call.ty.dtype), _extents(ids)
        known = self.weights.few_bits(table) if dtype in _FLOATS and places is not None else None
        if known is None or places is None or str(known.integers.dtype) not in _BYTES:
            return None
        parts = [_by_columns(array, shape[1]) for array in (known.scale, known.zero)]
        if any(part is None for part in parts):
            return None
        width = min(shape[1] // part.shape[1] for part in parts if part is not None)
        groups = shape[1] // width
        emit, given = self.builder_.emit, self.visit_expr(ids)

        def read(array: np.ndarray) -> Any:
            held = relax.const(np.ascontiguousarray(array))
            return emit(relax.Call(call.op, [held, given], call.attrs))

        def scaled(array: np.ndarray | None) -> Any:
            assert array is not None
            wide = np.repeat(array, groups // array.shape[1], 1).astype("float32")
            if wide.shape[0] == 1:
                return relax.const(wide.reshape(*[1] * len(places), groups, 1))
            return emit(relax.op.reshape(read(wide), relax.ShapeExpr([*places, _int(groups), _int(1)])))

        levels = emit(relax.op.astype(read(known.integers), "float32"))
        if groups * width != shape[1]:
            return None
        grouped = emit(relax.op.reshape(levels, relax.ShapeExpr([*places, _int(groups), _int(width)])))
        if known.zero.any():
            grouped = emit(relax.op.subtract(grouped, scaled(parts[1])))
        values = emit(relax.op.multiply(grouped, scaled(parts[0])))
        values = emit(relax.op.reshape(values, relax.ShapeExpr([*places, _int(shape[1])])))
        return values if dtype == "float32" else relax.op.astype(values, dtype)


def _read(call: relax.Call) -> list[Any]:
    """List what a call reads, the fields of tuples as well."""
    return [part for item in call.args for part in (item.fields if isinstance(item, relax.Tuple) else [item])]


def _by_columns(values: np.ndarray, columns: int) -> np.ndarray | None:
    """Give one number a group of columns, and one or all rows."""
    if values.shape[1] == 1:
        return values
    for width in range(columns, 1, -1):
        if columns % width == 0 and (np.repeat(values[:, ::width], width, 1) == values).all():
            return values[:, ::width]
    return None


def _extents(expr: Any) -> list[Any] | None:
    shape = getattr(expr.ty, "shape", None)
    return list(shape) if isinstance(shape, relax.ShapeExpr) else None


def _int(extent: int) -> Any:
    return tirx.IntImm("int64", extent)


def _count(extents: list[Any]) -> Any:
    total: Any = _int(1)
    for extent in extents:
        total = total * extent
    return tvm.sym.Analyzer().simplify(total)
