"""Operators that index, as kernels that read nothing but what they hand on.

before: ``y = slice_scatter(x, part, begin, end, step, axis)``
after:  ``y[i] = part[(i - begin) / step] if i is in the slice else x[i]``

TVM makes a mask, places and a table look-up of the first, in which a part that is smaller than the tensor is read past
its end, and says in a warning for each look-up of the mode "fast", the default of ``relax.op.take``, that it may crash.
What such a look-up reads is bounded later (:mod:`tvm_ext.passes.bounded_indices`).
"""

from __future__ import annotations

from typing import Any

from tvm import relax, te, tirx, topi


def legalize_slice_scatter(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Lower ``slice_scatter`` to a call of a kernel; a rule for ``relax.transform.LegalizeOps``."""
    data, part, *bounds = call.args
    if not all(isinstance(bound, tirx.IntImm) for bound in bounds):
        return call
    begin, end, step = map(int, bounds)
    axis = int(call.attrs.axis) % len(data.ty.shape)

    def slice_scatter(data: te.Tensor, part: te.Tensor) -> te.Tensor:
        def element(*place: Any) -> Any:
            offset = place[axis] - begin
            inside = tirx.all(offset >= 0, place[axis] < end, tirx.floormod(offset, step) == 0)
            source = tirx.floordiv(offset, step)
            return tirx.if_then_else(inside, part(*place[:axis], source, *place[axis + 1 :]), data(*place))

        return te.compute(data.shape, element, "slice_scatter")

    if any(isinstance(extent, tirx.IntImm) and int(extent) == 0 for extent in part.ty.shape):
        return data
    return builder.call_te(slice_scatter, data, part, primfunc_name_hint="slice_scatter")


def legalize_take(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Lower ``take`` to a call of a kernel; a rule for ``relax.transform.LegalizeOps``."""
    data, places = call.args
    mode, axis = str(call.attrs.mode), call.attrs.axis
    if mode != "fast" or axis is None or not isinstance(places.ty, relax.TensorType):
        return builder.call_te(topi.take, data, places, axis, mode=mode)
    axis = int(axis) % len(data.ty.shape)

    def take(data: te.Tensor, places: te.Tensor) -> te.Tensor:
        behind = axis + len(places.shape)
        shape = [*data.shape[:axis], *places.shape, *data.shape[axis + 1 :]]

        def element(*place: Any) -> Any:
            return data(*place[:axis], places(*place[axis:behind]), *place[behind:])

        return te.compute(shape, element, "T_take")

    return builder.call_te(take, data, places, primfunc_name_hint="take")


INDEXING_LEGALIZATIONS = {"relax.slice_scatter": legalize_slice_scatter, "relax.take": legalize_take}
