"""Expands the transcendental functions of a kernel, statement by statement.

An expansion names its intermediate values with ``Let``. TVM's code generator substitutes such names while it looks for
constants, which takes time exponential in the depth of functions inside functions: ``log(1 + exp(x))`` is harmless,
three of them are not. So the argument of an outer function is put in a small buffer where it has grown too large; LLVM
keeps that in a register.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir.prim import expr as prim
from tvm_ext.schedules.simd.transcendental import expand, expands
from tvm_ext.schedules.simd.vector import element_type, lanes_of

LARGEST_ARGUMENT = 1000
"""Nodes of an argument, names substituted, beyond which it gets a buffer."""


def expand_all(func: tvm.tirx.PrimFunc) -> tvm.tirx.PrimFunc:
    """Expand all transcendental functions in a kernel that has no blocks any more."""

    def store(statement: Any, _mutator: Any) -> Any:
        stored = _Expander().statement(statement)
        return statement if stored is None else stored

    return tvm_ffi.structural_mutate(func, ((tirx.BufferStore, tirx.Evaluate), store))


class _Expander:
    """Expands one statement; what has to be computed before it is collected in ``_before``."""

    def __init__(self) -> None:
        self._before: list[Any] = []
        self._conditional = 0
        self._expanded = False

    def statement(self, statement: Any) -> Any:
        """Return the statements to run instead, or None when there is nothing to expand."""
        result = tvm_ffi.structural_mutate(statement, ((tvm.ir.Call, self._call),))
        if not self._expanded:
            return None
        return tirx.SeqStmt([*self._before, result]) if self._before else result

    def _call(self, call: Any, mutator: Any) -> Any:
        if getattr(call.op, "name", "") == "prim.if_then_else":
            # A branch may be guarded against what its condition excludes, so nothing of it may run before.
            self._conditional += 1
            call = mutator.default_mutate(call)
            self._conditional -= 1
            return call
        call = mutator.default_mutate(call)
        if not expands(call):
            return call
        argument = call.args[0]
        if _size(argument) > LARGEST_ARGUMENT:
            if self._conditional:
                return call
            kept = self._keep(argument)
            call = tvm.ir.Call(call.op, [kept, *call.args[1:]], call.attrs, call.ty_args, ret_ty=call.ty)
        self._expanded = True
        return expand(call)

    def _keep(self, value: Any) -> Any:
        lanes = lanes_of(value)
        # A small buffer of global scope becomes a variable on the stack; one of local scope would be allocated.
        buffer = tirx.decl_buffer((lanes,), element_type(value), "argument")
        index = tirx.const(0, "int32")
        if lanes > 1:
            index = prim.Ramp(index, tirx.const(1, "int32"), lanes)
        self._before += [tirx.AllocBuffer(buffer), tirx.BufferStore(buffer, value, [index])]
        return tirx.BufferLoad(buffer, [index])


def _size(expression: Any) -> int:
    """Count the nodes of an expression as if every name bound in it were replaced by its value."""
    values: dict[Any, Any] = {}
    sizes: dict[Any, int] = {}

    def define(let: Any) -> None:
        values[let.var] = let.value

    tvm_ffi.structural_walk(expression, (prim.Let, define))

    def measure(node: Any) -> int:
        total = [0]

        def count(part: Any) -> None:
            total[0] += 1
            if isinstance(part, tvm.ir.Var) and part in values:
                if part not in sizes:
                    sizes[part] = measure(values[part])
                total[0] += sizes[part]

        tvm_ffi.structural_walk(node, (tvm.ir.Expr, count))
        return total[0]

    return measure(expression)
