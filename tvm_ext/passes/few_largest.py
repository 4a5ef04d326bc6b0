"""The few largest or smallest elements of a row are found by a kernel that keeps as many, instead of a partial sort.

before: ``i = topk(x, 5, axis=1, ret_type="indices")`` with ``x: [128, 1000]`` of integers, as which floats are ordered
after:  ``i = few_largest(x)`` (:mod:`tvm_ext.schedules.cpu.few_largest`)

Values are gathered by the places. The kernel keeps few elements in order, and up to 2,048 as a heap; TVM's library
copies a row into pairs of elements and places, and sorts those.
"""

from __future__ import annotations

from math import prod
from typing import Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_ext.passes.order_of_nan import order_of_nan
from tvm_ext.relax_utils import open_shape, rewriting_pass
from tvm_ext.schedules.cpu.few_largest import few_largest as kernel_of_few
from tvm_ext.schedules.cpu.machine import Machine

MOST = 2048
"""So many are kept at most: they stand on the stack of a thread."""


def few_largest(machine: Machine) -> tvm.transform.Pass:
    """Make the pass; it runs before sorts are handed to library kernels, when floats have become integers."""
    return rewriting_pass("tvm_ext.FewLargest", lambda mod: _Rewriter(mod, machine, MOST))


def sorts_as_kernels(machine: Machine | None) -> tvm.transform.Pass:
    """Make the pass for where there is no library: any number is found, and rows are sorted, by the same kernel.

    Parameters
    ----------
    machine : Machine or None
        None for one thread without vectors.
    """

    def all_largest(mod: tvm.IRModule) -> _Rewriter:
        return _Rewriter(mod, machine, None)

    return tvm.transform.Sequential([order_of_nan(), rewriting_pass("tvm_ext.SortsAsKernels", all_largest)])


@mutator
class _Rewriter(PyExprMutator):
    def __init__(self, mod: tvm.IRModule, machine: Machine | None, most: int | None) -> None:
        super().__init__(mod)
        self._machine, self._most = machine, most

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        """Call the kernel for a few integers of rows whose length is known."""
        call = self.visit_expr_post_order(call)
        name = str(getattr(call.op, "name", ""))
        if name != "relax.topk" and (self._most is not None or name not in ("relax.argsort", "relax.sort")):
            return call
        x, attributes = call.args[0], call.attrs
        shape = open_shape(x)
        if not shape or 0 in shape:
            return call
        last, axis = len(shape) - 1, int(attributes.axis) % len(shape)
        length = shape[axis]
        if not isinstance(length, int) or not str(x.ty.dtype).startswith(("int", "uint")):
            return call
        count, largest = length, name == "relax.topk" or bool(attributes.descending)
        place_type, kind = "int64", "values"
        if name == "relax.topk":
            count, largest, kind = int(attributes.k), bool(attributes.largest), str(attributes.ret_type)
        if name == "relax.argsort":
            kind = "indices"
        if name != "relax.sort":
            place_type = str(attributes.dtype)
        most = length if self._most is None else min(self._most, length)
        if not 1 <= count <= most or not place_type.startswith("int") or (axis != last and self._most is not None):
            return call
        swapped = [{axis: last, last: axis}.get(place, place) for place in range(len(shape))]
        rows_of_x = x if axis == last else self.builder_.emit(relax.op.permute_dims(x, swapped))
        places = self._places([shape[place] for place in swapped], rows_of_x, count, largest, place_type)
        if axis != last:
            places = self.builder_.emit(relax.op.permute_dims(places, swapped))
        if kind == "indices":
            return places
        index = places if place_type == "int64" else self.builder_.emit(relax.op.astype(places, "int64"))
        values = relax.op.gather_elements(x, index, axis)
        return values if kind == "values" else relax.Tuple([self.builder_.emit(values), places])

    def _places(self, shape: list[Any], x: relax.Expr, count: int, largest: bool, place_type: str) -> relax.Expr:
        """Find the places along the last axis."""
        rows = prod(shape[:-1])
        known = rows if isinstance(rows, int) else None
        dtype = str(x.ty.dtype)
        kernel = kernel_of_few(known, shape[-1], count, largest, dtype, place_type, self._machine)
        called = self.builder_.add_func(kernel, "few_largest")
        flat = x if len(shape) == 2 else self.builder_.emit(relax.op.reshape(x, [rows, shape[-1]]))
        places = self.builder_.emit(relax.call_tir(called, flat, relax.TensorType([rows, count], place_type)))
        return places if len(shape) == 2 else self.builder_.emit(relax.op.reshape(places, [*shape[:-1], count]))
