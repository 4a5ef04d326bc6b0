"""Numbers: literals of C, and integer expressions whose value is known."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import tvm
from tvm.ir.prim import expr as prim

from tvm_ext.backends.c.types import CType

_SUFFIX = {"uint32": "u", "uint64": "ull", "int64": "ll"}


def literal(value: Any, kind: CType) -> str:
    """Write a number of one lane as C has it, to the bit."""
    if kind.is_float:
        number = float(value)
        if math.isfinite(number):
            text = f"{number.hex()}{'' if kind.element == 'float64' else 'f'}"
        else:
            text = "NAN" if math.isnan(number) else "INFINITY" if number > 0 else "-INFINITY"
        if kind.element != "float32" and not (kind.element == "float64" and math.isfinite(number)):
            text = f"({kind.scalar}){text}"
        return f"({text})" if text[0] in "(-" else text
    number = int(value)
    if kind.element == "bool":
        return "1" if number else "0"
    if kind.element == "int64" and number == -(2**63):
        return "(-9223372036854775807ll - 1)"
    if kind.element == "int32" and number == -(2**31):
        return "(-2147483647 - 1)"
    text = f"{number}{_SUFFIX.get(kind.element, '')}"
    text = f"({text})" if number < 0 else text
    return f"(({kind.scalar}){text})" if kind.bits < 32 else text


_OPERATIONS: Mapping[type, Callable[[int, int], int | None]] = {
    prim.Add: lambda a, b: a + b, prim.Sub: lambda a, b: a - b, prim.Mul: lambda a, b: a * b,
    prim.FloorDiv: lambda a, b: a // b, prim.FloorMod: lambda a, b: a % b, prim.Min: min, prim.Max: max,
    prim.EQ: lambda a, b: int(a == b), prim.NE: lambda a, b: int(a != b), prim.LT: lambda a, b: int(a < b),
    prim.LE: lambda a, b: int(a <= b), prim.GT: lambda a, b: int(a > b), prim.GE: lambda a, b: int(a >= b),
    prim.And: lambda a, b: int(bool(a and b)), prim.Or: lambda a, b: int(bool(a or b)),
    prim.LShift: lambda a, b: a << b if b >= 0 else None, prim.RShift: lambda a, b: a >> b if b >= 0 else None,
}  # fmt: skip


def folded(e: Any, values: Mapping[Any, int]) -> int | None:
    """Compute an integer expression of known variables; None where something is not known, or does not fit its type."""
    if isinstance(e, prim.IntImm):
        return int(e.value)
    if isinstance(e, tvm.ir.Var):
        return values.get(e)
    operator = _OPERATIONS.get(type(e))
    if operator is None:
        return None
    dtype = str(e.ty.dtype)
    if "float" in dtype or "x" in dtype or "float" in str(e.a.ty.dtype):
        return None
    a = folded(e.a, values)
    b = None if a is None else folded(e.b, values)
    if a is None or b is None or (b == 0 and isinstance(e, prim.FloorDiv | prim.FloorMod)):
        return None
    result = operator(a, b)
    return result if result is not None and -(2**31) <= result < 2**31 else None


def declared_over(data: Any) -> Any:
    """Give the buffer or pointer that another buffer is declared over."""
    while isinstance(data, tvm.ir.Call) and data.args:
        data = data.args[0]
    return data
