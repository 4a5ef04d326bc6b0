"""Keeps indices that are computed or fed from reading and writing outside their table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

BY_AXIS = ("relax.gather_elements", "relax.scatter_elements")
BY_COLUMN = ("relax.gather_nd", "relax.scatter_nd")
"""Operators whose second argument holds indices: along one axis, or one for each axis in its last dimension."""


def clip_indices(mod: tvm.IRModule) -> tvm.IRModule:
    """Let every operator that goes by indices clip them to its table.

    By default TVM's kernels do not look at them: a token number out of range, which any user of a model can feed, then
    reads or writes foreign memory, or ends the process. Clipping costs two comparisons per index. Negative indices of
    the scattering operators count from the end; to the gathering ones converters have added the extent already.

    Before: ``R.take(table, indices, axis=0, mode="fast")``; after: ``R.take(table, indices, axis=0, mode="clip")``.
    Before: ``R.gather_elements(table, indices, axis=0)`` of a table of 3 rows; after:
    ``R.gather_elements(table, R.maximum(R.minimum(indices, 2), 0), axis=0)``.
    """
    clipper = _Clipper(mod)
    for variable, function in mod.functions.items():
        if isinstance(function, relax.Function):
            clipper.builder_.update_func(variable, clipper.visit_expr(function))
    return clipper.builder_.get()


@mutator
class _Clipper(PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(call)
        if call.op == tvm.ir.Op.get("relax.take") and call.attrs.mode == "fast":
            return relax.op.take(call.args[0], call.args[1], call.attrs.axis, mode="clip")
        limits = _limits(call)
        if limits is None:
            return call
        indices, dtype = call.args[1], str(call.args[1].ty.dtype.dtype)
        high = np.asarray(limits, dtype) - np.asarray(1, dtype)
        low = -np.asarray(limits, dtype) if "scatter" in call.op.name else np.zeros_like(high)
        if isinstance(indices, tvm.ir.GenericConst):
            clipped: Any = relax.const(np.clip(indices.value.numpy(), low, high), dtype)
        else:
            upper = self.builder_.emit(relax.op.minimum(indices, relax.const(high, dtype)))
            clipped = self.builder_.emit(relax.op.maximum(upper, relax.const(low, dtype)))
        return relax.Call(call.op, [call.args[0], clipped, *call.args[2:]], call.attrs, call.ty_args, call.span)


def _limits(call: relax.Call) -> int | Sequence[int] | None:
    """Extents that the indices of a call go along; None for a call without indices, or with unknown extents."""
    name = getattr(call.op, "name", "")
    if name not in (*BY_AXIS, *BY_COLUMN):
        return None
    table, indices = call.args[0].ty, call.args[1].ty
    if table.shape is None or not len(table.shape):
        return None
    if name in BY_AXIS:
        extent = table.shape[int(call.attrs.axis)]
        return int(extent) if isinstance(extent, tvm.tirx.IntImm) else None
    if any(not isinstance(dim, tvm.tirx.IntImm) for dim in table.shape):
        return None
    extents = [int(dim) for dim in table.shape]
    if indices.shape is None or not isinstance(indices.shape[-1], tvm.tirx.IntImm):
        return None
    first = int(getattr(call.attrs, "batch_dims", 0) or 0)
    return extents[first : first + int(indices.shape[-1])]
