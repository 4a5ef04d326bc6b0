"""Integer quotients of vectors by floats, which x86 divides in vectors; integers it divides one at a time.

A quotient of integers that is no integer is away from the next one by at least one part in its dividend. That is more
than rounding moves it where the float holds twice the bits of the integers: ``float64`` for 32 bits and ``float32`` for
16, so that what is rounded down or towards zero is the quotient of the integers.

before: ``x // y``, ``truncmod(x, y)``, of int32
after:  ``int32(floor(a / b))``, ``int32(a - trunc(a / b) * b)``, where ``a`` and ``b`` are ``x`` and ``y`` as float64
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir.prim import expr as prim

from tvm_ext.schedules.simd.vector import Bindings, constant_like, element_type

DIVIDING_ISAS = frozenset(["avx512", "avx2", "sse4"])
"""Instruction sets that divide floats in vectors, and integers slowly and one by one."""

_FLOATS = {
    **dict.fromkeys(("int8", "uint8", "int16", "uint16"), "float32"),
    **dict.fromkeys(("int32", "uint32"), "float64"),
}
"""Floats that hold every integer of a type, and tell every quotient of two from the integers around it."""


def defined_divisor(dividend: Any, divisor: Any) -> Any:
    """Put 1 in the place of a divisor by which there is no quotient: 0, and -1 of the smallest integer.

    Parameters
    ----------
    dividend, divisor : expression
        Integers of one type and as many lanes, which are named more than once in what is made.
    """
    without = prim.EQ(divisor, constant_like(0, divisor))
    element = element_type(divisor)
    if element.startswith("int"):
        smallest = constant_like(tirx.min_value(element).value, dividend)
        # To TVM's simplifier, no 32-bit integer equals the smallest; it knows nothing of exclusive or.
        is_smallest = prim.EQ(prim.BitwiseXor(dividend, smallest), constant_like(0, dividend))
        overflows = prim.And(prim.EQ(divisor, constant_like(-1, divisor)), is_smallest)
        without = prim.Or(without, overflows)
    return prim.Select(without, constant_like(1, divisor), divisor)


def with_float_quotients(loop: Any) -> Any:
    """Rewrite what a loop divides by elements of tensors; addresses stay as they are.

    Parameters
    ----------
    loop : tvm.tirx.For
        A loop over flat buffers, before it is made of vectors.
    """

    def quotient(expression: Any, mutator: Any) -> Any:
        expression = mutator.default_mutate(expression)
        wide = _FLOATS.get(element_type(expression))
        return expression if wide is None or not _holds_data(expression.b) else _by_floats(expression, wide)

    def load(node: Any, _mutator: Any) -> Any:
        return node

    divisions = (prim.Div, prim.Mod, prim.FloorDiv, prim.FloorMod)
    return tvm_ffi.structural_mutate(loop, [(divisions, quotient), (tvm.ir.TensorLoad, load)])


def _holds_data(expression: Any) -> bool:
    """Whether an expression is computed from elements of tensors."""

    def interrupt(_load: Any) -> Any:
        return tvm_ffi.VisitInterrupt(True)

    return tvm_ffi.structural_walk(expression, [(tvm.ir.TensorLoad, interrupt)]) is not None


def _by_floats(expression: Any, wide: str) -> Any:
    names = Bindings()
    integer = element_type(expression)
    dividend, divisor = names.bind("dividend", expression.a), names.bind("divisor", expression.b)
    a = names.bind("a", prim.Cast(wide, dividend))
    b = names.bind("b", prim.Cast(wide, defined_divisor(dividend, divisor)))
    rounded = a / b
    if isinstance(expression, prim.FloorDiv | prim.FloorMod) and integer.startswith("int"):
        rounded = tirx.floor(rounded)
    elif isinstance(expression, prim.Mod | prim.FloorMod):
        rounded = tirx.trunc(rounded)
    is_rest = isinstance(expression, prim.Mod | prim.FloorMod)
    return names.around(prim.Cast(integer, a - rounded * b if is_rest else rounded))
