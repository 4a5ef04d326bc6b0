"""Small vocabulary for vector expressions: constants as wide as another value, named intermediate values."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx
from tvm.ir.prim import expr as prim


def operation(call: Any) -> str:
    """Name of the operator of a call, without its dialect."""
    return getattr(call.op, "name", "").removeprefix("tirx.").removeprefix("prim.")


def llvm_function(call: Any) -> str:
    """Name the intrinsic function of LLVM that a call without effects calls, such as ``llvm.lrint``; or nothing."""
    if operation(call) != "call_llvm_pure_intrin":
        return ""
    return str(tvm.target.codegen.llvm_get_intrinsic_name(int(call.args[0].value)))


def lanes_of(value: Any) -> int:
    """Count the lanes of an expression; a scalar has one."""
    return int(value.ty.dtype.lanes)


def element_type(value: Any) -> str:
    """Name the data type of one lane, such as ``"float32"``."""
    return str(value.ty.dtype).partition("x")[0]


def wide_type(element: str, lanes: int) -> str:
    """Name the data type of ``lanes`` elements."""
    return element if lanes == 1 else f"{element}x{lanes}"


def broadcast(value: Any, lanes: int) -> Any:
    """Repeat a scalar over ``lanes`` lanes; a vector stays as it is."""
    return value if lanes == 1 or lanes_of(value) > 1 else prim.Broadcast(value, lanes)


def constant_like(number: float, value: Any, element: str | None = None) -> Any:
    """Make a constant with as many lanes as ``value``, of its element type unless ``element`` says otherwise."""
    return broadcast(tirx.const(number, element or element_type(value)), lanes_of(value))


def choose(mask: Any, chosen: Any, other: Any) -> Any:
    """Choose lane by lane between two vectors that may hold masked loads.

    TVM simplifies what it chooses by what it chooses it for: to it ``Select(mask, masked_load(x, mask), 0)`` is the
    same as ``Select(mask, masked_load(x, True), 0)``, which reads what the mask excludes. So the mask to choose by is
    made to look like another one: its own bits, read as what they are.
    """
    # Made by hand: `tirx.reinterpret` gives back what already has the type.
    operator = tvm.ir.Op.get("tirx.reinterpret")
    return prim.Select(tvm.ir.Call(operator, [mask], ret_ty=mask.ty), chosen, other)


def is_false(mask: Any) -> bool:
    """Whether a condition, or a mask in every lane, is the constant False."""
    value = mask.value if isinstance(mask, prim.Broadcast) else mask
    return isinstance(value, prim.IntImm) and str(value.ty.dtype) == "bool" and not value.value


def every_lane(mask: Any) -> Any:
    """Whether a mask holds for all of its lanes.

    So it can be asked whether values are ordinary. Whether one is not, TVM turns about to where NaN is ordinary.
    """
    return mask if lanes_of(mask) == 1 else tirx.call_llvm_pure_intrin("bool", "llvm.vector.reduce.and", mask)


def with_sign(size: Any, value: Any) -> Any:
    """Give float32 numbers that are not negative the signs of others, also of zeros and of NaN."""
    integer = wide_type("int32", lanes_of(value))
    bits, signed = tirx.reinterpret(integer, size), tirx.reinterpret(integer, value)
    sign = signed & constant_like(-(2**31), signed)
    return tirx.reinterpret(wide_type("float32", lanes_of(value)), bits | sign)


def first_lanes(mask: Any) -> Any:
    """How many lanes a mask has, which are the first ones; None where it is no such mask.

    A number beyond those of the vector or below zero stands for all of them or none.
    """
    if not isinstance(mask, prim.LT) or not isinstance(mask.b, prim.Broadcast):
        return None
    places, active = mask.a, mask.b.value
    if isinstance(places, prim.Add) and isinstance(places.a, prim.Broadcast):
        places, active = places.b, active - places.a.value
    if not isinstance(places, prim.Ramp) or not isinstance(places.stride, prim.IntImm) or int(places.stride) != 1:
        return None
    return active if isinstance(places.base, prim.IntImm) and int(places.base) == 0 else active - places.base


class Bindings:
    """Values that an expression names once and uses several times; they become nested ``Let`` around it."""

    def __init__(self) -> None:
        self._bound: list[tuple[Any, Any]] = []

    def bind(self, name: str, value: Any) -> Any:
        """Name a value; the returned variable stands for it."""
        variable = tvm.ir.Var(name, value.ty)
        self._bound.append((variable, value))
        return variable

    def around(self, body: Any) -> Any:
        """Wrap ``body`` so that the names are known inside it."""
        for variable, value in reversed(self._bound):
            body = prim.Let(variable, value, body)
        return body


def cast(element: str, value: Any) -> Any:
    """Convert a value; a vector of truth values by choosing between one and zero.

    TVM names what comes twice in a kernel, and then asks for the bounds of what it names. It fails on a conversion of
    truth values, whose bounds it takes for scalars.
    """
    lanes = lanes_of(value)
    if lanes == 1 or element_type(value) != "bool" or element == "bool":
        return prim.Cast(wide_type(element, lanes), value)
    one, zero = (broadcast(tirx.const(number, element), lanes) for number in (1, 0))
    return prim.Select(value, one, zero)
