"""Gather rows where an index is the same for all elements of a row.

before: ``y = gather_elements(x, minimum(broadcast_to(i, (9, 7, 64)), 8), 0)``, ``x: [9, 7, 64]``, ``i: [9, 7, 1]``
after:  ``y = take(reshape(x, (63, 64)), p, 0)``, ``p[t, b] = clip(minimum(i, 8)[t, b, 0], 0, 8) * 7 + b``

So sequences are reversed, and so PyTorch's programs gather what belongs to a token. An index of its own for each
element has to be written and read, and what it finds is loaded element by element.
"""

from __future__ import annotations

import sys
from typing import Any

import tvm
from tvm import relax, te, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_ext.relax_utils import open_shape, rewriting_pass, same_extents

ELEMENTWISE = frozenset(
    f"relax.{name}"
    for name in "add astype clip equal floor_mod greater greater_equal less less_equal maximum minimum multiply "
    "subtract where".split()
)
"""What indices are made of, element by element."""

DEPTH = 8
"""So many of these in a row are looked through: programs need few, and two operands of each may share the rest."""


def row_gathers() -> tvm.transform.Pass:
    """Make the pass. Indices out of range read the nearest element of the axis."""
    return rewriting_pass("tvm_ext.RowGathers", _Rewriter)


@mutator
class _Rewriter(PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        """Replace a ``gather_elements`` whose rows share their indices."""
        call = self.visit_expr_post_order(call)
        if getattr(call.op, "name", "") != "relax.gather_elements":
            return call
        data, index = call.args
        shape, extents = open_shape(data), open_shape(index)
        if not shape or extents is None:
            return call
        axis = int(call.attrs.axis) % len(shape)
        count = min(self._axes_alike(index), len(shape) - 1 - axis)
        while count and not same_extents(shape[-count:], extents[-count:]):
            count -= 1
        if not count or all(extent == 1 for extent in extents[-count:]):
            return call
        places = self._places(data, self._narrow(index, count), extents[:-count], axis)
        rows = 1
        for extent in shape[:-count]:
            rows = rows * extent
        table = self.builder_.emit(relax.op.reshape(data, [rows, *shape[-count:]])) if count < len(shape) - 1 else data
        return relax.op.take(table, places, 0, mode="clip")

    def _axes_alike(self, expr: relax.Expr, depth: int = DEPTH) -> int:
        """Count the last axes along which all elements of a tensor are the same; all axes of a scalar."""
        value = self._value(expr)
        if _name(value) == "relax.broadcast_to":
            return self._axes_alike(value.args[0], depth)
        shape = open_shape(expr)
        if shape is None:
            return 0
        ones = next((count for count, extent in enumerate(reversed(shape)) if extent != 1), None)
        if ones is None:
            return sys.maxsize  # of whatever rank the other operands are
        if _name(value) in ELEMENTWISE and depth:
            return max(ones, min(self._axes_alike(operand, depth - 1) for operand in _tensors(value)))
        return ones

    def _narrow(self, expr: relax.Expr, count: int) -> relax.Expr:
        """Give a tensor with extents of 1 along its last axes, ``count`` of them."""
        shape = open_shape(expr) or ()
        if all(extent == 1 for extent in shape[-count:]):
            return expr
        value = self._value(expr)
        if _name(value) == "relax.broadcast_to":
            return self._narrow(value.args[0], count)
        tensors = _tensors(value)
        operands = [self._narrow(operand, count) if operand in tensors else operand for operand in value.args]
        return self.builder_.emit(relax.Call(value.op, operands, value.attrs))

    def _places(self, data: relax.Expr, index: relax.Expr, extents: tuple[Any, ...], axis: int) -> relax.Expr:
        """Compute which row of all is meant by each index."""

        def places(data: te.Tensor, index: te.Tensor) -> te.Tensor:
            missing = len(data.shape) - len(index.shape)

            def element(*where: Any) -> Any:
                padded = [*where, *(0 for _ in range(len(data.shape) - len(where)))][missing:]
                at = [0 if _is_one(size) else place for size, place in zip(index.shape, padded, strict=True)]
                last = tirx.Cast("int64", data.shape[axis]) - 1
                along = tirx.max(tirx.min(tirx.Cast("int64", index(*at)), last), 0)
                found = tirx.const(0, "int64")
                for number, place in enumerate(where):
                    found = found * data.shape[number] + (along if number == axis else place)
                return found

            return te.compute([tirx.const(e, "int64") if isinstance(e, int) else e for e in extents], element, "places")

        return self.builder_.emit_te(places, data, index, primfunc_name_hint="places")

    def _value(self, expr: relax.Expr) -> relax.Expr:
        bound = self.lookup_binding(expr) if isinstance(expr, relax.Var) else None
        return expr if bound is None else bound


def _name(value: relax.Expr) -> str:
    return str(getattr(value.op, "name", "")) if isinstance(value, relax.Call) else ""


def _tensors(call: relax.Call) -> list[relax.Expr]:
    return [operand for operand in call.args if isinstance(operand.ty, relax.TensorType)]


def _is_one(extent: Any) -> bool:
    return isinstance(extent, tirx.IntImm) and int(extent) == 1
