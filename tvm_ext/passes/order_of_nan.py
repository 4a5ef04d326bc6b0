"""Sorts and searches floats by integers of the same order, in which NaN is larger than every number.

before: ``i = argsort(x)``, ``i = argmax(x)``
after:  ``k = order(x)`` (a kernel: the bits of x as an integer), ``i = argsort(k)``, ``i = argmax(k)``;
        on CPUs along rows one kernel: ``m = max(order(x))``, ``i = min(places where order(x) == m)``
before: ``v, i = topk(x)``, ``v, i = median(x)``
after:  the places found in ``k``, the values taken from x

TVM's sort compares floats, and with NaN among them the numbers come out in no order at all. NumPy and PyTorch have NaN
last; the largest and the smallest of values with NaN among them are the first NaN, and their median is it, too. The
median of integers is found by their order as well, as TVM's kernel of a median is for CPUs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from tvm import relax, te, tirx
from tvm.ir.prim import expr as prim
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_ext.relax_utils import OPAQUE, rewriting_pass

INTEGERS = {"float16": ("float32", "int32"), "bfloat16": ("float32", "int32")} | {
    f"float{bits}": (f"float{bits}", f"int{bits}") for bits in (32, 64)
}
"""What a float is widened to, and the integer of that size."""


def order_of_nan(first_places: bool = False) -> tvm.transform.Pass:
    """Make the pass; it runs before sorts are handed to library kernels.

    Parameters
    ----------
    first_places : bool
        The place of the extreme of integers at the end of their type is 0 (TVM's search begins with the place -1, as
        its reductions across the threads of a GPU have to, and bytes of 0 do not beat that).
    """
    return rewriting_pass("tvm_ext.OrderOfNaN", lambda mod: _Orders(mod, first_places))


@mutator
class _Orders(PyExprMutator):
    def __init__(self, mod: tvm.IRModule, first_places: bool) -> None:
        super().__init__(mod)
        self._first_places = first_places

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        """Put integers in the place of the floats that a call orders."""
        call = self.visit_expr_post_order(call)
        rule = RULES.get(call.op.name) if isinstance(call.op, tvm.ir.Op) else None
        if rule is None or not isinstance(call.args[0].ty, relax.TensorType) or call.args[0].ty.shape is None:
            return call
        x = call.args[0].ty
        if self._first_places and str(x.dtype) not in INTEGERS and rule is _extreme:
            return relax.op.maximum(self.builder_.emit(call), relax.const(0, str(call.ty.dtype)))
        if x.ndim == 0 or (str(x.dtype) not in INTEGERS and call.op.name != "relax.median"):
            return call
        if rule is _extreme and not self._first_places and _is_along_rows(call):
            return _place_in_row(self.builder_, call)
        return rule(self.builder_, call)


def _order(builder: relax.BlockBuilder, x: relax.Expr, nan_is_largest: bool = True) -> relax.Expr:
    element = _element(str(x.ty.dtype), nan_is_largest)

    def order(x: te.Tensor) -> te.Tensor:
        return te.compute(x.shape, lambda *at: element(x(*at)), name="order")

    # Kept in memory: what searches and compares loads an element many times, and would compute it anew each time.
    return builder.emit(builder.call_te(order, x, primfunc_name_hint="order", primfunc_attrs={"op_pattern": OPAQUE}))


def _element(dtype: str, nan_is_largest: bool) -> Callable[[Any], Any]:
    """Make what turns a float into an integer of the same order."""
    wide, integer = INTEGERS[dtype]
    bits = int(integer.removeprefix("int"))
    largest = 2 ** (bits - 1) - 1
    infinity = int(np.float64(np.inf).view("int64")) if bits == 64 else int(np.float32(np.inf).view("int32"))
    nan = tirx.const(largest if nan_is_largest else -largest - 1, integer)

    def element(value: Any) -> Any:
        place = tirx.reinterpret(integer, value.astype(wide))
        magnitude = tirx.bitwise_and(place, tirx.const(largest, integer))
        sign = place >> tirx.const(bits - 1, integer)  # -1 of a negative number
        signed = tirx.bitwise_xor(magnitude, sign) - sign  # both zeros are 0
        return prim.Select(magnitude > tirx.const(infinity, integer), nan, signed)

    return element


def _argsort(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    attributes = call.attrs
    key = _order(builder, call.args[0])
    return relax.op.argsort(key, attributes.axis, attributes.descending, str(attributes.dtype))


def _sort(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    axis = int(call.attrs.axis) % call.args[0].ty.ndim
    places = relax.op.argsort(_order(builder, call.args[0]), axis, call.attrs.descending, "int64")
    return relax.op.gather_elements(call.args[0], builder.emit(places), axis)


def _topk(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    attributes, x = call.attrs, call.args[0]
    axis, kind = int(attributes.axis) % x.ty.ndim, str(attributes.ret_type)
    key = _order(builder, x)
    found = relax.op.topk(key, int(attributes.k), axis, "indices", attributes.largest, str(attributes.dtype))
    if kind == "indices":
        return found
    places = builder.emit(found)
    values = relax.op.gather_elements(x, _as_int64(builder, places), axis)
    return values if kind == "values" else relax.Tuple([builder.emit(values), places])


def _extreme(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    is_largest = call.op.name == "relax.argmax"
    operator = relax.op.argmax if is_largest else relax.op.argmin
    axis = None if call.attrs.axis is None else int(call.attrs.axis)
    return operator(_order(builder, call.args[0], is_largest), axis, bool(call.attrs.keepdims))


def _is_along_rows(call: relax.Call) -> bool:
    """Whether an extreme is that of elements that lie side by side, of known number."""
    x = call.args[0].ty
    axis = 0 if call.attrs.axis is None else int(call.attrs.axis) % x.ndim
    return (call.attrs.axis is not None or x.ndim == 1) and axis == x.ndim - 1 and _is_known(x.shape[axis])


def _is_known(extent: Any) -> bool:
    return isinstance(extent, tirx.IntImm) and int(extent) > 0


def _place_in_row(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Find the extreme of each row, then the first place that has it: two searches that vectors can make.

    A search for both at once compares one element after the other, each with what came out of the one before.
    """
    x, is_largest = call.args[0], call.op.name == "relax.argmax"
    element = _element(str(x.ty.dtype), is_largest)
    *outer, length = x.ty.shape
    dtype = "int32" if int(length) < 2**31 else "int64"

    def places(x: te.Tensor) -> te.Tensor:
        first, second = (te.reduce_axis((0, length), name) for name in ("first", "second"))
        best = te.max if is_largest else te.min
        extreme = te.compute(outer, lambda *at: best(element(x(*at, first)), first), name="extreme")

        def place(*at: Any) -> Any:
            here = tirx.EQ(element(x(*at, second)), extreme(*at))
            return te.min(prim.Select(here, second.var.astype(dtype), tirx.const(int(length), dtype)), second)

        found = te.compute(outer, place, name="place")
        shape = [*outer, 1] if bool(call.attrs.keepdims) else outer
        return te.compute(shape, lambda *at: found(*at[: len(outer)]).astype("int64"), name="argument")

    # Not fused with what comes before: that would be computed in both searches.
    name = call.op.name.removeprefix("relax.")
    return builder.call_te(places, x, primfunc_name_hint=name, primfunc_attrs={"op_pattern": OPAQUE})


def _as_int64(builder: relax.BlockBuilder, places: relax.Expr) -> relax.Expr:
    return places if str(places.ty.dtype) == "int64" else builder.emit(relax.op.astype(places, "int64"))


def _median(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    emit, x, axes = builder.emit, call.args[0], call.attrs.axis
    is_whole = axes is None or len(axes) == 0
    keep = bool(call.attrs.keepdims)
    data = emit(relax.op.reshape(x, (-1,))) if is_whole else x
    axis = 0 if is_whole else int(axes[0]) % x.ty.ndim
    size = data.ty.shape[axis]
    if (isinstance(size, tirx.IntImm) and int(size) == 0) or (is_whole and keep):
        return call
    places = emit(relax.op.argsort(_ordered(builder, data), axis, False, "int64"))
    at = _middle(builder, data, axis)
    places = emit(relax.op.gather_elements(places, at, axis))
    found = [emit(relax.op.gather_elements(data, places, axis)), places]
    if not keep:
        found = [emit(relax.op.squeeze(part, [axis])) for part in found]
    return found[0] if is_whole else relax.Tuple(found)


def _ordered(builder: relax.BlockBuilder, x: relax.Expr) -> relax.Expr:
    return _order(builder, x) if str(x.ty.dtype) in INTEGERS else x


def _middle(builder: relax.BlockBuilder, x: relax.Expr, axis: int) -> relax.Expr:
    """Compute where in order the median of each row is: that of the first NaN where there is one."""
    emit, one, two = builder.emit, relax.const(1, "int64"), relax.const(2, "int64")
    size = x.ty.shape[axis]
    shape = [1 if place == axis else extent for place, extent in enumerate(x.ty.shape)]
    if isinstance(size, tirx.IntImm):
        count: relax.Expr = relax.const(int(size), "int64")
    else:
        count = emit(builder.call_te(_extent, x, axis, primfunc_name_hint="extent"))
    middle = emit(relax.op.floor_divide(emit(relax.op.subtract(count, one)), two))
    if str(x.ty.dtype) in INTEGERS:
        is_nan = emit(relax.op.astype(emit(relax.op.isnan(x)), "int64"))
        numbers = emit(relax.op.subtract(count, emit(relax.op.sum(is_nan, [axis], keepdims=True))))
        middle = emit(relax.op.where(emit(relax.op.less(numbers, count)), numbers, middle))
    return emit(relax.op.broadcast_to(middle, shape))


def _extent(x: te.Tensor, axis: int) -> te.Tensor:
    return te.compute([1] * len(x.shape), lambda *_: x.shape[axis].astype("int64"), name="extent")


RULES = {
    "relax.argsort": _argsort,
    "relax.sort": _sort,
    "relax.topk": _topk,
    "relax.argmax": _extreme,
    "relax.argmin": _extreme,
    "relax.median": _median,
}
"""By the name of an operator: what computes the same of floats, NaN included."""
