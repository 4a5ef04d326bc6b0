"""Rows are written to places from a tensor by one kernel, row after row, in vectors along each row.

before: ``y = scatter_nd(x, i, u, "add")`` with ``x: [1000, 64]``, ``i: [20000, 1]``, ``u: [20000, 64]``
after:  ``y = row_scatter(x, i, u)`` (:mod:`tvm_ext.schedules.cpu.row_scatter`)

TVM's kernel hands each row by itself to the threads.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_ext.relax_utils import open_shape, rewriting_pass, same_extents
from tvm_ext.schedules.cpu.machine import Machine
from tvm_ext.schedules.cpu.row_scatter import row_scatter

JOINS: dict[str, Callable[[Any, Any], Any] | None] = {
    "update": None,
    "add": operator.add,
    "mul": operator.mul,
    "min": tirx.min,
    "max": tirx.max,
}
"""What joins an element with one that is written to its place."""


def row_scatters(machine: Machine) -> tvm.transform.Pass:
    """Make the pass; it runs before operators are lowered to TVM's kernels."""
    return rewriting_pass("tvm_ext.RowScatters", lambda mod: _Rewriter(mod, machine))


@mutator
class _Rewriter(PyExprMutator):
    def __init__(self, mod: tvm.IRModule, machine: Machine) -> None:
        super().__init__(mod)
        self._machine = machine

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        """Call the kernel, if it can tell where rows lie and there is anything to write."""
        call = self.visit_expr_post_order(call)
        if getattr(call.op, "name", "") != "relax.scatter_nd":
            return call
        shape, index, updates = (open_shape(operand) for operand in call.args)
        dtype = str(call.args[0].ty.dtype)
        if shape is None or not index or updates is None or dtype == "bool" or 0 in (*shape, *index):
            return call
        depth = index[-1]
        if not isinstance(depth, int) or not all(isinstance(extent, int) for extent in shape[1:depth]):
            return call
        if not same_extents(updates, (*index[:-1], *shape[depth:])):
            return call
        count, width = prod(index[:-1]), prod(shape[depth:])
        kernel = row_scatter(
            [extent if isinstance(extent, int) else None for extent in shape[:depth]],
            count if isinstance(count, int) else None,
            width if isinstance(width, int) else None,
            str(call.args[1].ty.dtype),
            dtype,
            JOINS[str(call.attrs.reduction)],
            self._machine,
        )
        called = self.builder_.add_func(kernel, "row_scatter")
        two_axes = [(prod(shape[:depth]), width), (count, depth), (count, width)]
        operands = [self._reshaped(operand, to) for operand, to in zip(call.args, two_axes, strict=True)]
        result = relax.call_tir(called, operands, relax.TensorType(two_axes[0], dtype))
        return self._reshaped(self.builder_.emit(result), shape)

    def _reshaped(self, tensor: relax.Expr, shape: Sequence[Any]) -> relax.Expr:
        if same_extents(open_shape(tensor) or (), shape):
            return tensor
        return self.builder_.emit(relax.op.reshape(tensor, shape))
