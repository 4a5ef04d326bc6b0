"""What a tensor holds at a place in a kernel: elements are the same number until something is written to the tensor.

before: ``if i[0] < 8: i[0] = 90; y[i[0]] = 0``, where the address is taken to be less than 8
after:  ``if i[0] < 8: i[0] = 90; y[i'[0]] = 0``, where nothing is known of the address
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from tvm_ext.relax_utils import substitute
from tvm_ext.schedules.simd.vector import lanes_of

_READING = frozenset(("buffer_data", "masked_load"))
"""Calls that get a tensor by its name and do not write to it; of others it is not known."""


def _called(node: Any) -> str:
    """Give the name of the operator that an expression calls, without its dialect; empty for other expressions."""
    return getattr(node.op, "name", "").rpartition(".")[2] if isinstance(node, tvm.ir.Call) else ""


def _place(indices: Any) -> int | None:
    """Give the one index of an access as a number; None if it is none."""
    return int(indices[0]) if len(indices) == 1 and isinstance(indices[0], tirx.IntImm) else None


def _written_by(node: Any) -> set[Any]:
    """List the tensors that a statement or an expression writes to, by the names it has for them."""
    written: set[Any] = set()

    def call(call: Any) -> None:
        if _called(call) in _READING:
            return
        for argument in call.args:
            if isinstance(argument, tvm.ir.Var) and not isinstance(argument.ty, tvm.ir.PrimType):
                written.add(argument)
            elif _called(argument) == "buffer_data":
                written.add(argument.args[0])
            elif _called(call) == "address_of":
                written.add(argument.source)

    tvm_ffi.structural_walk(node, [(tirx.BufferStore, lambda store: written.add(store.buffer)), (tvm.ir.Call, call)])
    return written


class Contents:
    """Gives tensors other names in expressions, a new one for all that may have been written to.

    Parameters
    ----------
    func : tvm.tirx.PrimFunc
        A kernel without blocks. Its arguments are different memory where it says so.
    """

    def __init__(self, func: tirx.PrimFunc) -> None:
        apart = "tirx.noalias" in (func.attrs or {})
        self._memory: dict[Any, Any] = {param: param if apart else func for param in func.params}
        self._pointed_to: set[Any] = set()  # by variables, so that any call may write to it
        tvm_ffi.structural_walk(
            func.body, [(tirx.AllocBuffer, self._allocate), (tirx.DeclBuffer, self._declare), (tirx.Bind, self._bind)]
        )
        self._elements: dict[Any, Any] = {}
        self._values: dict[Any, dict[int, Any]] = {}  # by present names: whole numbers that were put at known places
        self.names: dict[Any, Any] = {}
        """The present name of each tensor that has been written to; a copy of it can be put back."""

    def __call__(self, expression: Any) -> Any:
        """Rewrite an expression that is evaluated now; what is rewritten already stays as it is."""
        return substitute(expression, self.names) if self.names else expression

    def named(self, expression: Any) -> Any:
        """Put a variable in the place of each whole number of a tensor; the same element is the same variable."""

        def name(load: Any, mutator: Any) -> Any:
            if lanes_of(load) > 1 or not str(load.ty.dtype).startswith("int"):
                return mutator.default_mutate(load)
            return self._elements.setdefault(tvm_ffi.StructuralKey(load), tvm.ir.Var("element", load.ty))

        return tvm_ffi.structural_mutate(self(expression), [(tvm.ir.TensorLoad, name)])

    def valued(self, expression: Any) -> Any:
        """Put what was stored in the place of whole numbers of tensors, in an expression with their present names."""

        def value(load: Any, mutator: Any) -> Any:
            known = self._values.get(load.source)
            place = _place(load.indices) if known else None
            if known is None or place not in known:
                return mutator.default_mutate(load)
            return self.valued(known[place])

        if not self._values:
            return expression
        return tvm_ffi.structural_mutate(expression, [(tvm.ir.TensorLoad, value)])

    def store(self, statement: Any) -> None:
        """Say that a store has run: its element is what was stored, all others of the tensor are what they were."""
        buffer, place, value = statement.buffer, _place(statement.indices), self(statement.value)
        kept = self._values.get(self.names.get(buffer, buffer), {})
        self.forget(statement)
        if place is None or self._memory_of(buffer) is None:
            return
        values = {other: known for other, known in kept.items() if other != place}
        if lanes_of(value) == 1 and str(value.ty.dtype).startswith("int"):
            values[place] = value
        self._values[self.names.get(buffer, buffer)] = values

    def forget(self, node: Any) -> None:
        """Say that a statement or an expression has run, or may have run any number of times."""
        written = set(map(self._memory_of, _written_by(node)))
        if not written:
            return
        if tvm_ffi.structural_walk(node, [(tvm.ir.Call, lambda _call: tvm_ffi.VisitInterrupt(True))]) is not None:
            written |= self._pointed_to
        for name, memory in self._memory.items():
            if memory in written or None in written or memory is None:
                self.names[name] = tvm.ir.Var(name.name, name.ty)

    def _memory_of(self, name: Any) -> Any:
        return self._memory.get(name)

    def _allocate(self, statement: Any) -> None:
        self._memory[statement.buffer] = statement.buffer

    def _bind(self, statement: Any) -> None:
        self._pointed_to |= set(map(self._memory_of, _written_by(statement.value)))

    def _declare(self, statement: Any) -> None:
        arguments = list(getattr(statement.data, "args", []))
        self._memory[statement.buffer] = self._memory_of(arguments[0]) if len(arguments) == 1 else None
