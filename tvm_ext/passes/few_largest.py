"""The few largest or smallest elements of a row are found by a kernel that keeps as many, instead of a partial sort.

before: ``i = topk(x, 5, axis=1, ret_type="indices")`` with ``x: [128, 1000]`` of integers, as which floats are ordered
after:  ``i = few_largest(x)`` (:mod:`tvm_ext.schedules.cpu.few_largest`)

Values are gathered by the places. The kernel keeps few elements in order, and up to 2,048 as a heap; TVM's library
copies a row into pairs of elements and places, and sorts those.
"""

from __future__ import annotations

from math import prod

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_ext.relax_utils import open_shape, rewriting_pass
from tvm_ext.schedules.cpu.few_largest import few_largest as kernel_of_few
from tvm_ext.schedules.cpu.machine import Machine

MOST = 2048
"""So many are kept at most: they stand on the stack of a thread."""


def few_largest(machine: Machine) -> tvm.transform.Pass:
    """Make the pass; it runs before sorts are handed to library kernels, when floats have become integers."""
    return rewriting_pass("tvm_ext.FewLargest", lambda mod: _Rewriter(mod, machine))


@mutator
class _Rewriter(PyExprMutator):
    def __init__(self, mod: tvm.IRModule, machine: Machine) -> None:
        super().__init__(mod)
        self._machine = machine

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        """Call the kernel for a few integers of rows whose length is known."""
        call = self.visit_expr_post_order(call)
        shape = open_shape(call.args[0]) if getattr(call.op, "name", "") == "relax.topk" else None
        if not shape or 0 in shape or not isinstance(shape[-1], int):
            return call
        x, dtype, attributes = call.args[0], str(call.args[0].ty.dtype), call.attrs
        count, place_type = int(attributes.k), str(attributes.dtype)
        if int(attributes.axis) % len(shape) != len(shape) - 1 or not 1 <= count <= min(MOST, shape[-1]):
            return call
        if not dtype.startswith(("int", "uint")) or not place_type.startswith("int"):
            return call
        rows = prod(shape[:-1])
        known = rows if isinstance(rows, int) else None
        kernel = kernel_of_few(known, shape[-1], count, bool(attributes.largest), dtype, place_type, self._machine)
        called = self.builder_.add_func(kernel, "few_largest")
        flat = x if len(shape) == 2 else self.builder_.emit(relax.op.reshape(x, [rows, shape[-1]]))
        places = self.builder_.emit(relax.call_tir(called, flat, relax.TensorType([rows, count], place_type)))
        if len(shape) != 2:
            places = self.builder_.emit(relax.op.reshape(places, [*shape[:-1], count]))
        if str(attributes.ret_type) == "indices":
            return places
        index = places if place_type == "int64" else self.builder_.emit(relax.op.astype(places, "int64"))
        values = relax.op.gather_elements(x, index, len(shape) - 1)
        return values if str(attributes.ret_type) == "values" else relax.Tuple([self.builder_.emit(values), places])
