"""Index expressions of TIR as Python functions of the loop variables, which may be numbers or numpy arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from tvm import tirx
from tvm.ir.prim import expr as prim

from tvm_ext.errors import VTAProgramError

Environment = Mapping[int, Any]
"""Values of loop variables by their numbers; see :class:`Variables`."""

Function = Callable[[Environment], Any]

_BINARY: dict[type, Callable[[Any, Any], Any]] = {
    prim.Add: lambda a, b: a + b,
    prim.Sub: lambda a, b: a - b,
    prim.Mul: lambda a, b: a * b,
    prim.FloorDiv: lambda a, b: a // b,
    prim.Div: lambda a, b: a // b,  # of indices, which are not negative
    prim.FloorMod: lambda a, b: a % b,
    prim.Mod: lambda a, b: a % b,
    prim.Min: np.minimum,
    prim.Max: np.maximum,
    prim.EQ: lambda a, b: a == b,
    prim.NE: lambda a, b: a != b,
    prim.LT: lambda a, b: a < b,
    prim.LE: lambda a, b: a <= b,
    prim.GT: lambda a, b: a > b,
    prim.GE: lambda a, b: a >= b,
    prim.And: np.logical_and,
    prim.Or: np.logical_or,
}


class Variables:
    """Numbers for loop variables, in the order in which they are met."""

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}
        self._zero: set[Any] = set()

    def set_zero(self, variable: Any) -> None:
        """Note that a variable is always zero: that of a loop of one turn."""
        self._zero.add(variable)

    def is_zero(self, variable: Any) -> bool:
        """Whether a variable is always zero."""
        return variable in self._zero

    def number(self, variable: Any) -> int:
        """Return the number of a variable, a new one if it is not known."""
        return self._numbers.setdefault(variable, len(self._numbers))


def compile_expression(expression: Any, variables: Variables, used: set[int]) -> Function:
    """Turn an expression of integers into a function.

    Parameters
    ----------
    expression : Expr
    variables : Variables
    used : set of int
        The numbers of its variables are added to it.

    Raises
    ------
    VTAProgramError
        If it holds anything but arithmetic on loop variables and constants.
    """
    if isinstance(expression, prim.IntImm):
        value = int(expression)
        return lambda environment: value
    if isinstance(expression, tirx.Var):
        if variables.is_zero(expression):
            return lambda environment: 0
        number = variables.number(expression)
        used.add(number)
        return lambda environment: environment[number]
    if isinstance(expression, prim.Cast):
        return compile_expression(getattr(expression, "value", None), variables, used)
    if isinstance(expression, prim.Not):
        inner = compile_expression(expression.a, variables, used)
        return lambda environment: np.logical_not(inner(environment))
    operation = _BINARY.get(type(expression))
    if operation is not None:
        left = compile_expression(expression.a, variables, used)
        right = compile_expression(expression.b, variables, used)
        return lambda environment: operation(left(environment), right(environment))
    if is_call(expression, "likely"):
        return compile_expression(expression.args[0], variables, used)
    raise VTAProgramError(
        f"the index {expression} is not arithmetic on loop variables; VTA needs addresses that are known beforehand"
    )


def is_linear(expression: Any) -> bool:
    """Whether an expression is a sum of loop variables times constants."""
    if isinstance(expression, prim.IntImm | tirx.Var):
        return True
    if isinstance(expression, prim.Add | prim.Sub):
        return is_linear(expression.a) and is_linear(expression.b)
    if isinstance(expression, prim.Mul):
        factors = (expression.a, expression.b)
        return any(isinstance(factor, prim.IntImm) for factor in factors) and all(map(is_linear, factors))
    return False


def is_call(expression: Any, name: str) -> bool:
    """Whether an expression calls a builtin of this name."""
    return getattr(getattr(expression, "op", None), "name", "").rpartition(".")[2] == name


def constant(expression: Any) -> int | None:
    """Return the value of an integer constant, None for anything else."""
    return int(expression) if isinstance(expression, prim.IntImm) else None
