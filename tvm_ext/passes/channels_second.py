"""What is computed with channels last between operators that have them second is computed with channels second.

before: ``y = conv2d(transpose(relu(transpose(conv2d(x, v), (0, 2, 3, 1)) + b), (0, 3, 1, 2)), w)``
after:  ``y = conv2d(relu(conv2d(x, v) + transpose(b)), w)``

Exporters of TensorFlow write so: convolutions between transposes, everything else on images of ``(N, H, W, C)``. A
transpose is not made where it stands, but noted: operators that can take their operands in another order do, and what
they give is noted in its turn. It is made before the first operator that cannot. Where that moves no fewer elements,
the function stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_ext.graph.origins import OriginBuilder
from tvm_ext.passes.bindings import permutation
from tvm_ext.passes.crop_rules import ALONG_ONE, POINTWISE, REDUCTIONS
from tvm_ext.relax_utils import constant, open_shape, scalar

_QUANTIZING = ("relax.quantize", "relax.dequantize")

_OPEN = 16
"""What an open extent counts as."""


def channels_second() -> tvm.transform.Pass:
    """Make the pass."""

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.ChannelsSecond")
    def _channels_second(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        for global_var, function in mod.functions_items():
            if not isinstance(function, relax.Function) or not moved_elements(function):
                continue
            rewriter = _Rewriter(mod)
            rewriter.builder_.update_func(global_var, rewriter.visit_expr(function))
            changed = rewriter.builder_.finalize()
            if moved_elements(changed[global_var]) < moved_elements(function):
                mod = changed
        return mod

    return _channels_second


def moved_elements(function: relax.Function) -> int:
    """Count the elements that transposes of a function move."""
    counts: list[int] = []

    def visit(node: Any) -> None:
        axes = permutation(node)
        shape = open_shape(node) if axes is not None else None
        if axes is not None and shape is not None:
            order = [axis for place, axis in enumerate(axes) if not _is_one(shape[place])]
            if order != sorted(order):
                counts.append(prod(extent if isinstance(extent, int) else _OPEN for extent in shape))

    relax.analysis.post_order_visit(function, visit)
    return sum(counts)


def _is_one(extent: Any) -> bool:
    return isinstance(extent, int) and extent == 1


@dataclass(frozen=True)
class _Transposed:
    """A tensor of the old function: axis ``i`` of it is axis ``axes[i]`` of one of the new function."""

    source: relax.Expr
    axes: tuple[int, ...]


@mutator
class _Rewriter(PyExprMutator):
    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self.builder_ = OriginBuilder(mod)
        self._noted: dict[relax.Var, _Transposed] = {}
        self._parts: dict[relax.Var, tuple[relax.Var, tuple[int, ...]]] = {}
        self._made: dict[relax.Var, relax.Var] = {}
        self._inside = False

    def visit_var_(self, op: relax.Var) -> relax.Expr:
        """Make the transpose that an operator needs."""
        return self._transpose(op) if op in self._noted else super().visit_var_(op)

    def visit_dataflow_var_(self, op: relax.DataflowVar) -> relax.Expr:
        """Make the transpose that an operator needs."""
        return self._transpose(op) if op in self._noted else super().visit_dataflow_var_(op)

    def _transpose(self, var: relax.Var) -> relax.Var:
        if var not in self._made:
            noted = self._noted[var]
            self._made[var] = self.builder_.emit(relax.op.permute_dims(noted.source, noted.axes))
        return self._made[var]

    def visit_dataflow_block_(self, block: relax.DataflowBlock) -> relax.DataflowBlock:
        """Note transposes inside of the block alone: elsewhere a transpose that was made may not be seen."""
        self._inside = True
        changed = super().visit_dataflow_block_(block)
        self._inside = False
        return changed

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        """Compute a value in the order of its operands, if they are noted."""
        var, value = binding.var, binding.value
        # What leaves the block is known by another variable, whose value it then gets.
        known = var if isinstance(var, relax.DataflowVar) else relax.DataflowVar(var.name, var.ty)
        with self.builder_.coming_from(var.span):
            noted = self._computed(known, value) if self._inside else None
        if noted is not None:
            if noted.axes != tuple(range(len(noted.axes))):
                self._noted[known] = noted
            else:
                self.set_var_remap(known, noted.source)
        elif known not in self._parts:
            super().visit_var_binding_(binding)
            return
        if known is not var:
            super().visit_var_binding_(relax.VarBinding(var, known))

    def _computed(self, var: relax.Var, value: relax.Expr) -> _Transposed | None:
        """Compute a value if it reads what is noted; None if it does not, or cannot."""
        if isinstance(value, relax.TupleGetItem) and value.tuple_value in self._parts:
            parts, axes = self._parts[value.tuple_value]
            return self._emit(relax.TupleGetItem(parts, value.index), axes)
        return self._called(var, value) if isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.Op) else None

    def _called(self, var: relax.Var, call: relax.Call) -> _Transposed | None:
        name, shape = call.op.name, open_shape(call)
        transpose = permutation(call)
        if transpose is not None:
            return self._transposed(call.args[0], transpose)
        if name == "relax.concat" and isinstance(call.args[0], relax.Tuple):
            operands = self._operands(call.args[0].fields, shape)
            if operands is None or call.attrs.axis is None:
                return None
            fields, axes = operands
            return self._emit(relax.op.concat(fields, axes[int(call.attrs.axis) % len(axes)]), axes)
        if name in POINTWISE and shape is not None:
            operands = self._operands([item for item in call.args if _is_tensor(item)], shape)
            if operands is None:
                return None
            tensors, axes = iter(operands[0]), operands[1]
            arguments = [next(tensors) if _is_tensor(item) else item for item in call.args]
            return self._emit(relax.Call(call.op, arguments, call.attrs), axes)
        first = self._noted.get(call.args[0]) if call.args and isinstance(call.args[0], relax.Var) else None
        return None if first is None else self._of_one(var, name, call, first)

    def _of_one(self, var: relax.Var, name: str, call: relax.Call, first: _Transposed) -> _Transposed | None:
        """Compute what reads one tensor, along some of its axes."""
        source, axes = first.source, first.axes
        rank = len(axes)
        if name in _QUANTIZING and all(scalar(item) is not None for item in call.args[1:]):
            return self._emit(relax.Call(call.op, [source, *call.args[1:]], call.attrs), axes)
        if name in ALONG_ONE:
            return self._emit(
                getattr(relax.op.nn, name.split(".")[-1])(source, axes[int(call.attrs.axis) % rank]), axes
            )
        if name in REDUCTIONS:
            return self._reduced(name, call, first)
        if name == "relax.nn.pad" and len(call.attrs.pad_width) == 2 * rank:
            widths = [int(width) for width in call.attrs.pad_width]
            moved = [widths[2 * axes.index(axis) + side] for axis in range(rank) for side in (0, 1)]
            padded = relax.op.nn.pad(source, moved, call.attrs.pad_mode, float(call.attrs.pad_value))
            return self._emit(padded, axes)
        if name == "relax.split" and isinstance(var.ty, relax.TupleType):
            parts = relax.op.split(source, call.attrs.indices_or_sections, axes[int(call.attrs.axis) % rank])
            self._parts[var] = self.builder_.emit(parts), axes
        return None

    def _reduced(self, name: str, call: relax.Call, first: _Transposed) -> _Transposed | None:
        rank = len(first.axes)
        gone = list(range(rank)) if call.attrs.axis is None else [int(axis) % rank for axis in call.attrs.axis]
        keepdims = bool(call.attrs.keepdims)
        along = sorted(first.axes[axis] for axis in gone)
        reduced = getattr(relax.op, name.removeprefix("relax."))(first.source, along, keepdims)
        if keepdims:
            return self._emit(reduced, first.axes)
        left = [first.axes[axis] for axis in range(rank) if axis not in gone]
        return self._emit(reduced, tuple(sorted(left).index(axis) for axis in left))

    def _transposed(self, operand: relax.Expr, transpose: tuple[int, ...]) -> _Transposed | None:
        """Note a transpose of what is noted already, or the first one: of channels to the last place."""
        known = self._noted.get(operand) if isinstance(operand, relax.Var) else None
        if known is not None:
            return _Transposed(known.source, tuple(known.axes[axis] for axis in transpose))
        rank = len(transpose)
        if rank < 3 or transpose != (0, *range(2, rank), 1):
            return None
        source = self.visit_expr(operand)
        return _Transposed(source, transpose) if isinstance(source, relax.Var) else None

    def _operands(
        self, operands: Sequence[relax.Expr], shape: Sequence[Any] | None
    ) -> tuple[list[relax.Expr], tuple[int, ...]] | None:
        """Give operands in the order of those that are noted, if all can be had so."""
        noted = [self._noted[item] for item in operands if isinstance(item, relax.Var) and item in self._noted]
        if shape is None or any(item.axes != noted[0].axes for item in noted) or not noted:
            return None
        axes = noted[0].axes
        if len(axes) != len(shape):
            return None
        found = [self._in_order(item, axes) for item in operands]
        return (found, axes) if all(item is not None for item in found) else None

    def _in_order(self, operand: relax.Expr, axes: tuple[int, ...]) -> relax.Expr | None:
        """Give one operand so that ``axes`` of it are those of the old function; None where elements would move."""
        if isinstance(operand, relax.Var) and operand in self._noted:
            return self._noted[operand].source
        inverse = tuple(int(axis) for axis in np.argsort(axes))
        array, shape = constant(operand), open_shape(operand)
        if array is not None:
            whole = array.reshape((1,) * (len(axes) - array.ndim) + array.shape)
            return (
                operand if array.ndim == 0 else relax.const(np.ascontiguousarray(whole.transpose(inverse)), array.dtype)
            )
        if shape is None or not isinstance(operand, relax.Var):
            return None
        if len(shape) == 0:
            return self.visit_expr(operand)
        extents = [1] * (len(axes) - len(shape)) + list(shape)
        order = [axis for axis in inverse if not _is_one(extents[axis])]
        if order != sorted(order):
            return None
        return self.builder_.emit(relax.op.reshape(self.visit_expr(operand), [extents[axis] for axis in inverse]))

    def _emit(self, value: relax.Expr, axes: tuple[int, ...]) -> _Transposed:
        return _Transposed(self.builder_.emit(value), axes)


def _is_tensor(argument: Any) -> bool:
    return isinstance(getattr(argument, "ty", None), relax.TensorType)
