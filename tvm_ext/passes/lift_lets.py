"""Makes statements of the names that expressions give to values.

before: ``y[i] = let v = exp(x[i]) in v / (v + 1)``
after:  ``v = exp(x[i]); y[i] = v / (v + 1)``

TVM's elimination of common subexpressions may use a name inside such an expression before it defines it, where the same
index comes again in a later statement; code generation then fails. Names in what is only computed under a condition
stay: it may not be safe to compute it elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir.prim import expr as prim

from tvm_ext.passes.vector_code import has_blocks
from tvm_ext.schedules.simd.vector import operation


def lift_lets() -> tvm.transform.Pass:
    """Make the pass; it runs after everything that names values, and leaves kernels that are not loops yet."""

    @tirx.transform.prim_func_pass(opt_level=0, name="tvm_ext.LiftLets")
    def _lift(func: tirx.PrimFunc, _mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tirx.PrimFunc:
        if has_blocks(func):
            return func
        lifter = _Lifter()
        rules = [
            ((tirx.BufferStore, tirx.Evaluate, tirx.Bind), lifter.statement),
            (prim.Let, lifter.let),
            (prim.Select, lifter.select),
            (tvm.ir.Call, lifter.call),
            (tvm.ir.Var, lifter.variable),
        ]
        return tvm_ffi.structural_mutate(func, rules)

    return _lift


class _Lifter:
    """Walks through a kernel; knows the names of the statement it is in."""

    def __init__(self) -> None:
        self._bindings: list[Any] | None = None
        self._renamed: dict[Any, Any] = {}

    def statement(self, statement: Any, mutator: Any) -> Any:
        """Put the names of a statement's expressions before it."""
        outer, self._bindings = self._bindings, []
        try:
            changed = mutator.default_mutate(statement)
            return tirx.SeqStmt([*self._bindings, changed]) if self._bindings else changed
        finally:
            self._bindings = outer

    def let(self, expression: Any, mutator: Any) -> Any:
        """Define the name before the statement; a new one, as one expression may be part of several."""
        if self._bindings is None:
            return mutator.default_mutate(expression)
        value = mutator.mutate(expression.value)
        name = tvm.ir.Var(expression.var.name, value.ty)
        self._bindings.append(tirx.Bind(name, value))
        self._renamed[expression.var] = name
        return mutator.mutate(expression.body)

    def select(self, expression: Any, mutator: Any) -> Any:
        """Leave the names of the two values: TVM may make a branch of the choice."""
        condition = mutator.mutate(expression.condition)
        with self._conditional():
            values = mutator.mutate(expression.true_value), mutator.mutate(expression.false_value)
        return prim.Select(condition, *values)

    def call(self, expression: Any, mutator: Any) -> Any:
        """Leave the names of what is computed under a condition."""
        if operation(expression) != "if_then_else":
            return mutator.default_mutate(expression)
        condition = mutator.mutate(expression.args[0])
        with self._conditional():
            values = [mutator.mutate(value) for value in expression.args[1:]]
        return tirx.if_then_else(condition, *values)

    def variable(self, expression: Any, mutator: Any) -> Any:
        """Use the new name."""
        return self._renamed.get(expression, expression)

    @contextmanager
    def _conditional(self) -> Iterator[None]:
        bindings, self._bindings = self._bindings, None
        try:
            yield
        finally:
            self._bindings = bindings
