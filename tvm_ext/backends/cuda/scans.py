"""Cumulative sums and products get a kernel of this package.

before: ``y = cumsum(x, axis)``, of any axis
after:  ``y = call_tir(scan, x)``, of the last axis; transposed before and behind where it is another
"""

from __future__ import annotations

from math import prod
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_ext.passes.bindings import calls
from tvm_ext.relax_utils import open_shape
from tvm_ext.schedules.cuda.machine import MOST_GRID
from tvm_ext.schedules.cuda.scan import scan_kernel

OPERATORS = {"relax.cumsum": False, "relax.cumprod": True}
"""Whether they multiply."""


def scans() -> tvm.transform.Pass:
    """Make the pass; tensors without elements are left to TVM, and so are more rows than a launch has blocks."""

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.Scans")
    def _scans(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        rewriter = _Rewriter(mod)
        for variable, func in mod.functions_items():
            if isinstance(func, relax.Function):
                rewriter.builder_.update_func(variable, rewriter.visit_expr(func))
        return rewriter.builder_.get()

    return _scans


@mutator
class _Rewriter(PyExprMutator):
    def visit_call_(self, call: Any) -> Any:
        """Rewrite a call of one of the operators."""
        call = self.builder_.normalize(super().visit_call_(call))
        operator = next((name for name in OPERATORS if calls(call, name)), None)
        shape = None if operator is None else open_shape(call.args[0])
        if operator is None or shape is None:
            return call
        builder, x = self.builder_, call.args[0]
        axis = call.attrs.axis
        if axis is None:
            x, shape, axis = builder.emit(relax.op.flatten(x)), (prod(shape),), -1
        axis = int(axis) % len(shape)
        order = [place for place in range(len(shape)) if place != axis] + [axis]
        moved = [shape[place] for place in order]
        rows, length = prod(moved[:-1]), moved[-1]
        if any(isinstance(extent, int) and extent == 0 for extent in shape):
            return call
        if isinstance(rows, int) and rows > MOST_GRID[0]:
            return call
        if axis != len(shape) - 1:
            x = builder.emit(relax.op.permute_dims(x, order))
        x = builder.emit(relax.op.reshape(x, (rows, length)))
        out_dtype = str(call.ty.dtype)
        count, size = (
            extent if isinstance(extent, int) else tirx.Var(f"n{place}", "int64")
            for place, extent in enumerate((rows, length))
        )
        kernel = scan_kernel(count, size, str(x.ty.dtype), out_dtype, OPERATORS[operator], bool(call.attrs.exclusive))
        result = builder.emit(
            relax.call_tir(builder.add_func(kernel, "scan"), [x], relax.TensorType((rows, length), out_dtype))
        )
        result = builder.emit(relax.op.reshape(result, moved))
        if axis != len(shape) - 1:
            result = builder.emit(relax.op.permute_dims(result, [order.index(place) for place in range(len(shape))]))
        return result
