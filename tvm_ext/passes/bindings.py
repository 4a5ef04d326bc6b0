"""What passes over matrix products ask about a function: values, uses and dataflow blocks of its variables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container
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

    def step(self, expr: Any) -> Any:
        """Give what an inner variable stands for that nothing else uses; None for anything else."""
        if not isinstance(expr, relax.DataflowVar) or self.uses[expr] != 1:
            return None
        return self.values.get(expr)

    def operand(
        self, user: relax.Var, expr: relax.Expr, shape: tuple[Any, ...], without: Container[relax.Expr] = ()
    ) -> Operand:
        """Look through the transposes before what ``user`` is computed of, up to one of a value in ``without``."""
        axes = tuple(range(len(shape)))
        while isinstance(expr, relax.Var) and expr in self.values:
            value = self.values[expr]
            transpose = permutation(value)
            if transpose is None or value.args[0] in without or not self.is_visible(value.args[0], user):
                break
            axes = tuple(transpose[axis] for axis in axes)
            expr = value.args[0]
        return Operand(expr, axes, shape)


@dataclass(frozen=True)
class Operand:
    """A tensor in memory, read through a transpose.

    Attributes
    ----------
    expr : relax.Expr
        The tensor in memory.
    axes : tuple of int
        For each logical axis, which axis it is in memory.
    shape : tuple of int, or of expressions
        Logical shape.
    """

    expr: relax.Expr
    axes: tuple[int, ...]
    shape: tuple[Any, ...]


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
