"""Expands the transcendental functions of a kernel, statement by statement.

An expansion names its intermediate values with ``Let``. TVM's passes and its code generator go through the value of
such a name each time that they meet it, which takes time exponential in how deep names are nested: an unrolled tile of
24 ``erf`` takes more than a second, one of 32 ``log(1 + exp(x))`` more than half a minute. So each value is put in a
small buffer before the statement, where that can be done; LLVM keeps it in a register.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir.prim import expr as prim

from tvm_ext.schedules.simd.transcendental import c_function, expand, expands, needs_vectors
from tvm_ext.schedules.simd.vector import element_type, lanes_of, operation

LARGEST_ARGUMENT = 300
"""Nodes of an argument, names substituted, beyond which a function that has to stay in its place is not expanded."""


def expand_all(func: tvm.tirx.PrimFunc, isa: str = "") -> tvm.tirx.PrimFunc:
    """Expand all transcendental functions in a kernel that has no blocks any more, with instructions of ``isa``."""

    def loop(statement: Any, mutator: Any) -> Any:
        if statement.kind != tirx.ForKind.VECTORIZED:
            return mutator.default_mutate(statement)
        expander = _Expander(statement, isa)
        body = tvm_ffi.structural_mutate(statement.body, ((tirx.BufferStore, tirx.Evaluate), expander.statement))
        if not expander.expanded:
            return statement
        kind, annotations = statement.kind, statement.annotations
        result = tirx.For(statement.loop_var, statement.min, statement.extent, kind, body, annotations=annotations)
        return _sequence([*map(tirx.AllocBuffer, expander.buffers), result])

    def store(statement: Any, mutator: Any) -> Any:
        expander = _Expander(None, isa)
        result = expander.statement(statement, mutator)
        return _sequence([*map(tirx.AllocBuffer, expander.buffers), result])

    return tvm_ffi.structural_mutate(func, [(tirx.For, loop), ((tirx.BufferStore, tirx.Evaluate), store)])


class _Expander:
    """Expands the functions of one statement, or of the statements of one loop that is to be vectorised.

    Parameters
    ----------
    loop : tvm.tirx.For, optional
        The loop; every iteration has an element of its own in the buffers, which are allocated outside.
    isa : str
        See :func:`tvm_ext.schedules.simd.transcendental.expand`.
    """

    def __init__(self, loop: Any, isa: str) -> None:
        self._isa = isa
        self.buffers: list[Any] = []
        self.expanded = False
        self._loop = loop
        self._before: list[Any] = []
        self._conditional = 0

    def statement(self, statement: Any, _mutator: Any) -> Any:
        """Expand one statement, after the statements that compute the values it is made of."""
        self._before = []
        result = tvm_ffi.structural_mutate(statement, (((tvm.ir.Call, prim.Mod), self._call),))
        return _sequence([*self._before, result])

    def _call(self, call: Any, mutator: Any) -> Any:
        if isinstance(call, tvm.ir.Call) and operation(call) == "if_then_else":
            # A branch may be guarded against what its condition excludes, so nothing of it may run before.
            self._conditional += 1
            call = mutator.default_mutate(call)
            self._conditional -= 1
            return call
        call = mutator.default_mutate(call)
        if not expands(call) or (self._loop is not None and needs_vectors(call)):
            return call
        in_place = self._conditional or not self._has_room()
        # No lane of a vector has the library's function, but LLVM's own functions are called for each of its lanes.
        if in_place and _size(call) > LARGEST_ARGUMENT and not (c_function(call) and lanes_of(call) > 1):
            return call
        self.expanded = True
        return expand(call, self._isa) if in_place else self._in_steps(expand(call, self._isa))

    def _has_room(self) -> bool:
        return self._loop is None or isinstance(self._loop.extent, prim.IntImm)

    def _in_steps(self, expression: Any) -> Any:
        """Compute the values that an expression names before the statement, one after the other."""
        values: dict[Any, Any] = {}

        def define(let: Any, _mutator: Any) -> Any:
            values[let.var] = self._keep(without_names(let.value))
            return without_names(let.body)

        def without_names(part: Any) -> Any:
            return tvm_ffi.structural_mutate(
                part, ((prim.Let, define), (tvm.ir.Var, lambda var, _mutator: values.get(var, var)))
            )

        return without_names(expression)

    def _keep(self, value: Any) -> Any:
        # A small buffer of global scope becomes a variable on the stack; one of local scope would be allocated.
        lanes = lanes_of(value)
        size, index = lanes, tirx.const(0, "int32")
        if self._loop is not None:
            size, index = int(self._loop.extent) * lanes, (self._loop.loop_var - self._loop.min) * lanes
        if lanes > 1:
            index = prim.Ramp(index, tirx.const(1, element_type(index)), lanes)
        buffer = tirx.decl_buffer((size,), element_type(value), "step")
        self.buffers.append(buffer)
        self._before.append(tirx.BufferStore(buffer, value, [index]))
        return tirx.BufferLoad(buffer, [index])


def _sequence(parts: list[Any]) -> Any:
    return parts[0] if len(parts) == 1 else tirx.SeqStmt(parts)


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
