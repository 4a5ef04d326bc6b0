"""What passes over matrix products ask about a function: values, uses and dataflow blocks of its variables."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprVisitor, visitor


@visitor
class Bindings(PyExprVisitor):
    """Values, uses and dataflow blocks of the variables of a function that was visited.

    Attributes
    ----------
    values : dict of relax.Var to relax.Expr
        What each variable is bound to.
    uses : Counter of relax.Var
        How often each is used.
    blocks : dict of relax.Var to int
        Number of the dataflow block that binds it, where one does.
    """

    def __init__(self) -> None:
        super().__init__()
        self.values: dict[relax.Var, relax.Expr] = {}
        self.uses: Counter[relax.Var] = Counter()
        self.blocks: dict[relax.Var, int] = {}
        self._dataflow_blocks = 0

    def visit_dataflow_block_(self, block: relax.DataflowBlock) -> None:
        """Give each dataflow block a number: its inner variables are not seen outside."""
        self._dataflow_blocks += 1
        for binding in block.bindings:
            self.blocks[binding.var] = self._dataflow_blocks
            self.visit_binding(binding)

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        """Keep what the variable stands for, and visit it."""
        self.values[binding.var] = binding.value
        self.visit_expr(binding.value)

    def visit_var_(self, op: relax.Var) -> None:
        """Count a use."""
        self.uses[op] += 1

    def visit_dataflow_var_(self, op: relax.DataflowVar) -> None:
        """Count a use."""
        self.uses[op] += 1

    def is_visible(self, expr: relax.Expr, user: relax.Var) -> bool:
        """Whether a value can be used where ``user`` is bound."""
        if isinstance(expr, relax.DataflowVar):
            return self.blocks.get(expr) == self.blocks.get(user)
        return isinstance(expr, relax.Var | tvm.ir.GenericConst)


@dataclass(frozen=True)
class Operand:
    """A tensor in memory, read through a transpose.

    Attributes
    ----------
    expr : relax.Expr
        The tensor in memory.
    axes : tuple of int
        For each logical axis, which axis it is in memory.
    shape : tuple of int
        Logical shape.
    """

    expr: relax.Expr
    axes: tuple[int, ...]
    shape: tuple[int, ...]


def permutation(value: Any) -> tuple[int, ...] | None:
    """Give the axes of a transpose; None for any other value."""
    if not calls(value, "relax.permute_dims"):
        return None
    rank = int(value.ty.ndim)
    if rank < 1:
        return None
    axes = value.attrs.axes
    return tuple(reversed(range(rank))) if axes is None else tuple(int(axis) % rank for axis in axes)


def calls(expr: Any, operator: str) -> bool:
    """Whether an expression calls an operator, named such as ``relax.matmul``."""
    return isinstance(expr, relax.Call) and isinstance(expr.op, tvm.ir.Op) and expr.op.name == operator
