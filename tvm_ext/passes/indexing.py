"""Operators that index, as kernels that read nothing but what they hand on.

before: ``y = slice_scatter(x, part, begin, end, step, axis)``
after:  ``y[i] = part[(i - begin) / step] if i is in the slice else x[i]``

TVM makes a mask, places and a table look-up of the first, in which a part that is smaller than the tensor is read past
its end, and says in a warning for each look-up of the mode "fast", the default of ``relax.op.take``, that it may crash.
What such a look-up reads is bounded later (:mod:`tvm_ext.passes.bounded_indices`).

before: ``y = scatter_elements(x, index, updates, axis)``, ``index`` with fewer elements than ``x`` along other axes
after:  ``y = reshape(scatter_elements(reshape(x, -1), places in it, reshape(updates, -1)), shape of x)``

TVM counts the rows before the axis, and the elements behind it, by the extents of the index, and writes to others where
these are several axes of which an inner one is shorter than the tensor's.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, te, tirx, topi

OF_TRUTH_VALUES = {"add": "max", "mul": "min", "max": "max", "min": "min"}
"""What ways to combine several updates of one place are of truth values."""


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

    if _is_empty(part):
        return data
    return builder.call_te(slice_scatter, data, part, primfunc_name_hint="slice_scatter")


def _is_empty(tensor: relax.Expr) -> bool:
    return any(isinstance(extent, tirx.IntImm) and int(extent) == 0 for extent in tensor.ty.shape)


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


def legalize_scatter(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Lower ``scatter_elements`` or ``scatter_nd``; a rule for ``relax.transform.LegalizeOps``.

    Truth values are combined as 0 and 1, for which LLVM has neither sums nor products: a sum says whether any is true.
    """
    if _is_empty(call.args[1]):
        return call.args[0]
    legalize = _scatter_elements if call.op.name == "relax.scatter_elements" else _by_tvm
    reduction = OF_TRUTH_VALUES.get(str(call.attrs.reduction))
    if str(call.args[0].ty.dtype) != "bool" or reduction is None:
        return legalize(builder, call)
    data, index, updates = call.args
    data, updates = (builder.emit(relax.op.astype(value, "uint8")) for value in (data, updates))
    operands = (data, index, updates)
    if call.op.name == "relax.scatter_elements":
        call = relax.op.scatter_elements(*operands, call.attrs.axis, reduction)
    else:
        call = relax.op.scatter_nd(*operands, reduction)
    return relax.op.astype(builder.emit(legalize(builder, builder.normalize(call))), "bool")


def legalize_strided_slice(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Lower ``strided_slice``, TVM's kernel of which counts the elements between two bounds in an int32."""
    x, shape, bounds = call.args[0], call.ty.shape, call.args[1:]
    extents = list(x.ty.shape) if isinstance(x.ty.shape, relax.ShapeExpr) else []
    if not all(isinstance(part, relax.Tuple) and _are_numbers(part.fields) for part in bounds):
        return _by_tvm(builder, call)
    axes, begins, _ends, *rest = [[int(number) for number in part.fields] for part in bounds]
    axes = [axis % len(extents) for axis in axes] if extents else []
    steps = rest[0] if rest else [1] * len(axes)
    sizes = [extents[axis] for axis in axes]
    if not axes or not _are_numbers(sizes) or min(steps) < 1 or max(map(int, sizes)) < 2**31:
        return _by_tvm(builder, call)
    firsts = [max(begin + int(size), 0) if begin < 0 else begin for begin, size in zip(begins, sizes, strict=True)]

    def slices(x: te.Tensor) -> te.Tensor:
        def element(*where: Any) -> Any:
            places = list(where)
            for axis, first, step in zip(axes, firsts, steps, strict=True):
                places[axis] = places[axis] * step + first
            return x(*places)

        return te.compute(list(shape), element, "slice")

    return builder.call_te(slices, x, primfunc_name_hint="strided_slice")


def _are_numbers(extents: Iterable[Any]) -> bool:
    return all(isinstance(extent, tirx.IntImm) for extent in extents)


def _by_tvm(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    return tvm.ir.Op.get(call.op.name).get_attr("FLegalize")(builder, call)


def _scatter_elements(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    data, index, updates = call.args
    shape, extents = list(data.ty.shape), list(index.ty.shape)
    axis = int(call.attrs.axis) % max(len(shape), 1)
    inner = (at for at in range(1, len(shape)) if at not in (axis, axis + 1))
    if all(tvm_ffi.structural_equal(shape[at], extents[at]) for at in inner):
        return _by_tvm(builder, call)

    def places(data: te.Tensor, index: te.Tensor) -> te.Tensor:
        def element(*where: Any) -> Any:
            along = tirx.Cast("int64", index(*where))
            along += tirx.if_then_else(along < 0, data.shape[axis], 0)
            found = tirx.const(0, "int64")
            for extent, place in zip(data.shape, (*where[:axis], along, *where[axis + 1 :]), strict=True):
                found = found * extent + place
            return found

        return te.compute(index.shape, element, "places")

    def flat(value: relax.Expr) -> relax.Expr:
        return builder.emit(relax.op.reshape(value, [-1]))

    index = builder.emit(builder.call_te(places, data, index, primfunc_name_hint="places"))
    flat_call = relax.op.scatter_elements(flat(data), flat(index), flat(updates), 0, call.attrs.reduction)
    written = builder.emit(_by_tvm(builder, builder.normalize(flat_call)))
    return relax.op.reshape(written, shape)


INDEXING_LEGALIZATIONS = {
    "relax.scatter_elements": legalize_scatter,
    "relax.scatter_nd": legalize_scatter,
    "relax.slice_scatter": legalize_slice_scatter,
    "relax.strided_slice": legalize_strided_slice,
    "relax.take": legalize_take,
}
