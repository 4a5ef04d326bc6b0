"""Gives every operation on integers a value, where LLVM leaves one open or the processor ends the process.

before: ``x // y``, ``x % y``
after:  the same by ``Select(y == 0 or (y == -1 and x == INT_MIN), 1, y)``
before: ``x << n``
after:  ``Select(n < bits, x << Select(n < bits, n, 0), 0)``
before: ``x >> n``
after:  the same where all bits leave: 0, or -1 for a negative number

A processor has no quotient by zero, nor of the smallest integer by -1; an integer divided by zero is left as it is
here, its remainder is 0, and the second wraps around, as in NumPy. Only what is read from tensors is looked after:
extents and loop variables divide by what is known to be positive. What vectors divide as floats has its value already.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir.prim import expr as prim

from tvm_ext.schedules.simd.float_quotients import defined_divisor
from tvm_ext.schedules.simd.vector import constant_like, element_type


def defined_integers() -> tvm.transform.Pass:
    """Make the pass; it runs when loops are vector code, whose unused lanes hold zeros."""

    @tirx.transform.prim_func_pass(opt_level=0, name="tvm_ext.DefinedIntegers")
    def _define(func: tirx.PrimFunc, _mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tirx.PrimFunc:
        named = _named_data(func.body)

        def quotient(expression: Any, mutator: Any) -> Any:
            expression = mutator.default_mutate(expression)
            if not _is_integer(expression) or not _is_data(expression.b, named):
                return expression
            return _divided(expression)

        def shift(expression: Any, mutator: Any) -> Any:
            expression = mutator.default_mutate(expression)
            return _shifted(expression) if _is_data(expression.b, named) and not _is_masked(expression) else expression

        rules = [
            ((prim.Div, prim.Mod, prim.FloorDiv, prim.FloorMod), quotient),
            ((prim.LShift, prim.RShift), shift),
        ]
        return tvm_ffi.structural_mutate(func, rules)

    return _define


def _is_integer(expression: Any) -> bool:
    return element_type(expression).startswith(("int", "uint"))


def _named_data(body: Any) -> list[Any]:
    """List the variables that are names of values, any of which may be read from a tensor."""
    named: list[Any] = []
    tvm_ffi.structural_walk(body, ((tirx.Bind, prim.Let), lambda node: named.append(node.var)))
    return named


def _is_data(expression: Any, named: Sequence[Any]) -> bool:
    """Whether an expression is computed from elements of tensors."""

    def interrupt(node: Any) -> Any:
        is_data = not isinstance(node, tvm.ir.Var) or any(node.same_as(known) for known in named)
        return tvm_ffi.VisitInterrupt(True) if is_data else None

    kinds = (tvm.ir.TensorLoad, tvm.ir.Call, tvm.ir.Var)
    return tvm_ffi.structural_walk(expression, (kinds, interrupt)) is not None


def _is_masked(expression: Any) -> bool:
    """Whether a shift's distance is cut to the bits that a distance has, as in ``x >> (n & 31)``."""
    distance, bits = expression.b, int(tvm.DataType(element_type(expression)).bits)
    if isinstance(distance, prim.BitwiseAnd):
        return any(isinstance(x, prim.IntImm) and 0 <= int(x.value) < bits for x in (distance.a, distance.b))
    return False


def _named(names: list[tuple[Any, Any]], value: Any, hint: str) -> Any:
    """Name a value that is used more than once, unless it costs nothing to repeat."""
    if isinstance(value, tvm.ir.TensorLoad | tvm.ir.Var | prim.IntImm | prim.Broadcast):
        return value
    names.append((tvm.ir.Var(hint, value.ty), value))
    return names[-1][0]


def _around(names: list[tuple[Any, Any]], body: Any) -> Any:
    for variable, value in reversed(names):
        body = prim.Let(variable, value, body)
    return body


def _divided(expression: Any) -> Any:
    names: list[tuple[Any, Any]] = []
    dividend, divisor = _named(names, expression.a, "dividend"), _named(names, expression.b, "divisor")
    return _around(names, type(expression)(dividend, defined_divisor(dividend, divisor)))


def _shifted(expression: Any) -> Any:
    names: list[tuple[Any, Any]] = []
    value, amount = _named(names, expression.a, "value"), _named(names, expression.b, "amount")
    bits = int(tvm.DataType(element_type(value)).bits)
    # Whether it is 0 to bits - 1, in a form that TVM's simplifier takes no difference of: it refuses 0 - 64 in uint64.
    high = prim.RShift(amount, constant_like(bits.bit_length() - 1, amount))
    held = prim.EQ(high, constant_like(0, amount))
    if isinstance(expression, prim.LShift):
        safe = prim.Select(held, amount, constant_like(0, amount))
        return _around(names, prim.Select(held, prim.LShift(value, safe), constant_like(0, value)))
    safe = prim.Select(held, amount, constant_like(bits - 1, amount))
    if element_type(value).startswith("int"):
        return _around(names, prim.RShift(value, safe))
    return _around(names, prim.Select(held, prim.RShift(value, safe), constant_like(0, value)))
