"""Scatters get a kernel of this package, in which every update has a thread.

before: ``y = scatter_elements(x, broadcast_to(i, (1200, 64)), u, 0, "add")``
after:  ``y, _ = call_tir(scatter, (x, i, u))``; what the kernel needs beside its result is a second one

In TVM's kernels a thread goes through all updates along the axis, one after the other: of a graph's edges, all of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_ext.passes.bindings import calls
from tvm_ext.relax_utils import constant, open_shape, rewriting_pass, same_extents
from tvm_ext.schedules.cuda.scatter import Scatter, scatter_kernel

_OF_NUMBERS = ("relax.add", "relax.astype", "relax.less", "relax.maximum", "relax.minimum", "relax.where")
"""What is done to indices one by one before they are used."""


def scatters() -> tvm.transform.Pass:
    """Make the pass; tensors without elements, and reductions that no atomic operation makes, are left to TVM."""
    return rewriting_pass("tvm_ext.Scatters", _Rewriter)


@mutator
class _Rewriter(PyExprMutator):
    def visit_call_(self, call: Any) -> Any:
        """Rewrite a call of one of the operators."""
        call = self.builder_.normalize(self.visit_expr_post_order(call))
        along_axis = calls(call, "relax.scatter_elements")
        if not along_axis and not calls(call, "relax.scatter_nd"):
            return call
        index = self._shared(call.args[1]) if along_axis else call.args[1]
        operands = [call.args[0], index, call.args[2]]
        shapes = [open_shape(operand) for operand in operands]
        if any(shape is None or not shape or 0 in shape for shape in shapes):
            return call
        table, places, updates = (tuple(shape) for shape in shapes if shape is not None)
        axis = int(call.attrs.axis) % len(table) if along_axis else None
        if not (len(table) == len(places) == len(updates) if along_axis else _fits(table, places, updates)):
            return call
        names: dict[Any, Any] = {}
        named = [tuple(_named(extent, names) for extent in shape) for shape in (table, places, updates)]
        kinds = str(index.ty.dtype), str(call.ty.dtype), str(call.attrs.reduction)
        scatter = Scatter(named[0], named[1], named[2], *kinds, axis)
        if not scatter.is_supported():
            return call
        types = [relax.TensorType(table, scatter.dtype)]
        if scatter.scratch is not None:
            shape, dtype = scatter.scratch
            types.append(relax.TensorType(table[: len(shape)], dtype))
        kernel = self.builder_.add_func(scatter_kernel(scatter), "scatter")
        made = relax.call_tir(kernel, operands, types if len(types) > 1 else types[0])
        return relax.TupleGetItem(self.builder_.emit(made), 0) if len(types) > 1 else made

    def _shared(self, index: Any) -> Any:
        """Give an index before it is broadcast, with 1 along the axes whose elements share it."""
        found = self._narrow(index, open_shape(index) or ())
        return index if found is None else found

    def _narrow(self, expr: Any, shape: tuple[Any, ...]) -> Any:
        value = self.builder_.lookup_binding(expr) if isinstance(expr, relax.Var) else expr
        if calls(value, "relax.broadcast_to"):
            before = open_shape(value.args[0])
            if before is None or len(before) > len(shape):
                return None
            if len(before) == len(shape):
                return value.args[0]
            return self.builder_.emit(relax.op.reshape(value.args[0], (1,) * (len(shape) - len(before)) + before))
        if getattr(getattr(value, "op", None), "name", "") not in _OF_NUMBERS:
            return None
        arguments = []
        for argument in value.args:
            number = constant(argument)
            made = argument if number is not None and number.size == 1 else self._narrow(argument, shape)
            if made is None or len(open_shape(made) or ()) not in (0, len(shape)):
                return None
            arguments.append(made)
        return self.builder_.emit(relax.Call(value.op, arguments, value.attrs, value.ty_args))


def _fits(table: tuple[Any, ...], places: tuple[Any, ...], updates: tuple[Any, ...]) -> bool:
    """Whether the operands of ``scatter_nd`` have the shapes that they should have."""
    depth = places[-1]
    return isinstance(depth, int) and depth <= len(table) and same_extents(updates, (*places[:-1], *table[depth:]))


def _named(extent: Any, names: dict[Any, Any]) -> Any:
    """Give an open extent a name in the kernel, which is the same wherever the extent is."""
    if isinstance(extent, int):
        return tirx.const(extent, "int64") if extent > np.iinfo(np.int32).max else extent
    for known, name in names.items():
        if same_extents((known,), (extent,)):
            return name
    names[extent] = name = tirx.Var(f"n{len(names)}", "int64")
    return name
