"""Evaluate operators whose operands are all constants, with numpy.

TVM's ``FoldConstant`` compiles a kernel for each such call: up to half a minute for a network whose weights are only
reshaped and transposed. What has no row here takes a kernel here, too, but one that computes what a compiled model does
(:mod:`tvm_ext.passes.fold_by_kernel`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_ext.passes.fold_by_kernel import kernel_call_value, kernel_value, result_bytes
from tvm_ext.relax_utils import constant, rewriting_pass, static_shape

LARGEST_GROWTH = 1 << 20
"""Bytes by which a folded result may exceed its operands: a broadcast is cheaper to repeat than to store."""


def _reshape(call: relax.Call, data: np.ndarray) -> np.ndarray | None:
    shape = static_shape(call)
    return None if shape is None else data.reshape(shape)


def _permute(call: relax.Call, data: np.ndarray) -> np.ndarray:
    axes = call.attrs.axes
    return np.ascontiguousarray(data.transpose(None if axes is None else [int(axis) for axis in axes]))


def _take(call: relax.Call, data: np.ndarray, indices: np.ndarray) -> np.ndarray | None:
    axis, mode = call.attrs.axis, str(call.attrs.mode)
    extent = data.size if axis is None else data.shape[int(axis)]
    inside = indices.size == 0 or (extent and 0 <= indices.min() and indices.max() < extent)
    if mode != "clip" and not inside:
        return None  # what TVM reads then is its own affair
    if extent == 0:
        return None
    return np.take(data, np.clip(indices, 0, extent - 1), None if axis is None else int(axis))


def _strided_slice(call: relax.Call, data: np.ndarray, *numbers: tuple[int, ...]) -> np.ndarray | None:
    axes, begin, end = numbers[:3]
    strides = numbers[3] if len(numbers) > 3 else (1,) * len(axes)
    if any(stride <= 0 for stride in strides):
        return None
    where = [slice(None)] * data.ndim
    for axis, first, last, stride in zip(axes, begin, end, strides, strict=True):
        where[axis] = slice(first, last, stride)
    return np.ascontiguousarray(data[tuple(where)])


def _where(call: relax.Call, condition: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.asarray(np.where(condition, a, b))


def _concat(call: relax.Call, *parts: np.ndarray) -> np.ndarray:
    return np.concatenate(parts, int(call.attrs.axis) if call.attrs.axis is not None else None)


def _broadcast(call: relax.Call, data: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(np.broadcast_to(data, [int(extent) for extent in call.ty.shape]))


def _fill(call: relax.Call, *operands: np.ndarray) -> np.ndarray:
    """Fill with the last operand, where the first of two is the tensor to be like; without any, 0 or 1 by name."""
    value = operands[-1] if "full" in call.op.name else np.asarray("ones" in call.op.name)
    return np.full([int(extent) for extent in call.ty.shape], value.astype(str(call.ty.dtype)))


def _arange(call: relax.Call) -> np.ndarray:
    """Count, as TVM's legalisation does, which makes a constant of known numbers."""
    return np.arange(*(number.value for number in call.args), dtype=str(call.ty.dtype))


def _cumsum(call: relax.Call, data: np.ndarray) -> np.ndarray | None:
    if data.dtype.kind not in "iu" or call.attrs.exclusive:
        return None  # sums of floats depend on their order
    return np.cumsum(data, None if call.attrs.axis is None else int(call.attrs.axis), str(call.ty.dtype))


FILLS = tuple(f"relax.{kind}{like}" for kind in ("full", "zeros", "ones") for like in ("", "_like"))
"""Operators whose results are of one value throughout: large ones stay, as they are cheaper to compute than to read."""

LARGEST_FILL = 1 << 10
"""Elements."""

CREATIONS = (*FILLS, "relax.arange", "relax.broadcast_to")
"""Operators that make much of little: their results are looked at before they are made."""

# Operator -> its value, given the call and the values of its tensor operands. Those of a tuple follow one another, and
# a tuple of numbers is a tuple. NotImplemented asks for a kernel, None for the call to stay.
ROWS: dict[str, Callable[..., Any]] = {
    "relax.reshape": _reshape,
    "relax.expand_dims": _reshape,
    "relax.squeeze": _reshape,
    "relax.flatten": _reshape,
    "relax.permute_dims": _permute,
    "relax.astype": lambda call, data: data.astype(str(call.ty.dtype)),
    "relax.add": lambda call, a, b: a + b,
    "relax.subtract": lambda call, a, b: a - b,
    "relax.multiply": lambda call, a, b: a * b,
    "relax.divide": lambda call, a, b: a / b if a.dtype.kind == "f" else NotImplemented,
    "relax.maximum": lambda call, a, b: np.maximum(a, b),
    "relax.minimum": lambda call, a, b: np.minimum(a, b),
    "relax.nn.relu": lambda call, a: np.maximum(a, a.dtype.type(0)),
    "relax.sqrt": lambda call, a: np.sqrt(a) if a.dtype.kind == "f" else NotImplemented,
    "relax.negative": lambda call, a: -a,
    "relax.less": lambda call, a, b: a < b,
    "relax.less_equal": lambda call, a, b: a <= b,
    "relax.greater": lambda call, a, b: a > b,
    "relax.greater_equal": lambda call, a, b: a >= b,
    "relax.equal": lambda call, a, b: a == b,
    "relax.not_equal": lambda call, a, b: a != b,
    "relax.logical_and": lambda call, a, b: a & b if a.dtype == b.dtype == bool else NotImplemented,
    "relax.logical_or": lambda call, a, b: a | b if a.dtype == b.dtype == bool else NotImplemented,
    "relax.logical_not": lambda call, a: ~a if a.dtype == bool else NotImplemented,
    "relax.where": _where,
    "relax.take": _take,
    "relax.strided_slice": _strided_slice,
    "relax.concat": _concat,
    "relax.cumsum": _cumsum,
    "relax.abs": lambda call, a: np.abs(a),
    "relax.broadcast_to": _broadcast,
    "relax.arange": _arange,
    **dict.fromkeys(FILLS, _fill),
}


def fold_constants() -> tvm.transform.Pass:
    """Make the pass."""
    return rewriting_pass("tvm_ext.FoldConstants", _Rewriter)


def fold_the_rest() -> tvm.transform.Pass:
    """Make TVM's ``FoldConstant`` a pass that runs where there is something to fold.

    It makes a kernel of every operator before it looks at the operands, which takes seconds for hundreds of operators.
    """

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.FoldTheRest")
    def _fold_the_rest(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        functions = [func for func in mod.functions.values() if isinstance(func, relax.Function)]
        return relax.transform.FoldConstant()(mod) if any(map(_has_constant_calls, functions)) else mod

    return _fold_the_rest


def _has_constant_calls(function: relax.Function) -> bool:
    """Whether there is a call of an operator or kernel that takes nothing but constants."""
    calls: list[relax.Call] = []
    constants: set[relax.Var] = set()

    def visit(node: Any) -> None:
        if isinstance(node, relax.Call) and isinstance(node.op, tvm.ir.Op) and _may_fold(node):
            calls.append(node)
        elif isinstance(node, relax.SeqExpr):
            bindings = (binding for block in node.blocks for binding in block.bindings)
            constants.update(
                binding.var for binding in bindings if constant(getattr(binding, "value", None)) is not None
            )

    def is_computed(argument: Any) -> bool:
        if isinstance(argument, relax.Tuple):
            return any(map(is_computed, argument.fields))
        return isinstance(argument, relax.Call | relax.TupleGetItem) or (
            isinstance(argument, relax.Var) and argument not in constants
        )

    relax.analysis.post_order_visit(function, visit)
    return not all(any(map(is_computed, call.args)) for call in calls)


def _may_fold(call: relax.Call) -> bool:
    """Whether TVM folds the call where its operands are constants: to a tensor, if all extents are known."""
    if call.op.name in _SHAPES or (isinstance(call.ty, relax.TensorType) and result_bytes(call.ty) < 0):
        return False
    if call.op.name.startswith("relax.call_"):
        return str(call.op.name) == "relax.call_tir"
    return call.op.has_attr("FLegalize") and call.op.name not in CREATIONS


def _allowed(operands: list[Any]) -> int:
    """Bytes that a result may take."""
    return LARGEST_GROWTH + sum(array.nbytes for array in operands if isinstance(array, np.ndarray))


def _is_large_fill(call: relax.Expr) -> bool:
    return (
        isinstance(call, relax.Call)
        and call.op.name in FILLS
        and math.prod(int(extent) for extent in call.ty.shape) > LARGEST_FILL
    )


def _is_constant(binding: relax.Binding) -> bool:
    return isinstance(binding, relax.VarBinding) and constant(binding.value) is not None


@mutator
class _Rewriter(PyExprMutator):
    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self.known: dict[relax.Var, Any] = {}
        self.fills: dict[relax.Var, relax.Expr] = {}
        # An unrolled loop has the same call in every step.
        self.folded: dict[tvm_ffi.StructuralKey, relax.Expr | None] = {}

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        """Note variables that are bound to constants, by other names too; their uses become the constants."""
        folded = self._constant(binding.value)
        if folded is not None and _is_large_fill(binding.value):
            self.fills[binding.var] = folded
            folded = None
        if folded is None:
            super().visit_var_binding_(binding)
        elif isinstance(binding.var, relax.DataflowVar):
            self.known[binding.var] = folded
        else:
            super().visit_var_binding_(relax.VarBinding(binding.var, folded))

    def visit_dataflow_var_(self, op: relax.DataflowVar) -> relax.Expr:
        """Replace a variable by the constant it is bound to."""
        value = self.known.get(op)
        return super().visit_dataflow_var_(op) if value is None else value

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        """Give what a known condition, the same everywhere, chooses of two tensors: a mask that masks nothing."""
        call = super().visit_call_(call)
        condition = constant(call.args[0]) if getattr(call.op, "name", "") == "relax.where" else None
        if condition is None or not condition.size or condition.any() != condition.all():
            return call
        chosen, made = call.args[1 if condition.any() else 2], self.builder_.normalize(call)
        same = static_shape(chosen) is not None and static_shape(chosen) == static_shape(made)
        return chosen if same and chosen.ty.dtype == made.ty.dtype else made

    def _constant(self, value: relax.Expr) -> relax.Expr | None:
        if isinstance(value, tvm.ir.GenericConst):
            return value
        return self.known.get(value) if isinstance(value, relax.DataflowVar) else self._fold(value)

    def _fold(self, value: relax.Expr) -> relax.Expr | None:
        if not isinstance(value, relax.Call) or not isinstance(value.op, tvm.ir.Op):
            return None
        if value.op.name in _SHAPES:
            return self._fold_shape(value)
        if value.op.name == "relax.call_tir":
            return self._fold_kernel(value)
        operands = self._operands(value)
        if operands is None or any(_dtype(array) not in _TYPES for array in operands):
            return None
        if not operands and value.op.name not in CREATIONS:
            return None
        if _allowed(operands) > 2 * LARGEST_GROWTH:  # to compare these takes longer than to evaluate
            return self._value(value, operands)
        key = tvm_ffi.StructuralKey(self.visit_expr(value))
        if key not in self.folded:
            self.folded[key] = self._value(value, operands)
        return self.folded[key]

    def _value(self, value: relax.Call, operands: list[Any]) -> relax.Expr | None:
        """Evaluate a call of an operator on operands."""
        most = _allowed(operands)
        if value.op.name in CREATIONS and not 0 <= result_bytes(value.ty) <= most:
            return None
        result: Any = NotImplemented
        if value.op.name in ROWS:
            with np.errstate(all="ignore"):
                result = ROWS[value.op.name](value, *operands)
        if result is NotImplemented:
            result = kernel_value(self.visit_expr(value), most)
        if result is None or not 0 < result.nbytes <= most or not _has_type(result, value.ty):
            return None
        return relax.const(np.asarray(result), str(value.ty.dtype))

    def _fold_kernel(self, call: relax.Call) -> relax.Expr | None:
        """Fold a call of a kernel on constants."""
        operands = self._operands(relax.Call(call.op, call.args[1:2]))
        if not operands or any(_dtype(array) not in _TYPES for array in operands):
            return None
        result = kernel_call_value(self.builder_.get(), self.visit_expr(call), _allowed(operands))
        return None if result is None else relax.const(result, str(call.ty.dtype))

    def _operands(self, call: relax.Call) -> list[Any] | None:
        """Values of the operands, tuples of tensors taken apart; None unless all are known."""
        found: list[Any] = []
        for argument in call.args:
            if isinstance(argument, relax.ShapeExpr | tvm.tirx.IntImm | tvm.tirx.FloatImm):
                continue
            if isinstance(argument, relax.Tuple) and all(isinstance(f, tvm.tirx.IntImm) for f in argument.fields):
                found.append(tuple(int(field) for field in argument.fields))
                continue
            fields = argument.fields if isinstance(argument, relax.Tuple) else [argument]
            arrays = [constant(self.known.get(field, self.fills.get(field, field))) for field in fields]
            if any(array is None for array in arrays):
                return None
            found += arrays
        return found

    def _fold_shape(self, call: relax.Call) -> relax.Expr | None:
        """Fold ``shape_of`` of a fixed shape, and ``shape_to_tensor`` of one."""
        (argument,) = call.args
        argument = self.known.get(argument, argument)
        shape = argument.ty.shape if call.op.name == "relax.shape_of" else argument
        if not isinstance(shape, relax.ShapeExpr) or not all(isinstance(dim, tvm.tirx.IntImm) for dim in shape):
            return None
        if call.op.name == "relax.shape_of":
            return shape
        return relax.const(np.asarray([int(dim) for dim in shape], "int64"), "int64")


_SHAPES = ("relax.shape_of", "relax.shape_to_tensor")
_INTEGERS = [f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)]
_TYPES = frozenset(["bool", "float16", "float32", "float64", *_INTEGERS, "tuple"])


def _dtype(operand: Any) -> str:
    return operand.dtype.name if isinstance(operand, np.ndarray) else type(operand).__name__


def _has_type(array: np.ndarray, ty: Any) -> bool:
    """Whether a result is of the shape that the call says; a kernel of TVM's would be."""
    if array.dtype.name != str(ty.dtype):
        return False
    shape = ty.shape if isinstance(ty, relax.TensorType) else None
    if not isinstance(shape, relax.ShapeExpr) or not all(isinstance(dim, tvm.tirx.IntImm) for dim in shape):
        return True
    return tuple(int(dim) for dim in shape) == array.shape
