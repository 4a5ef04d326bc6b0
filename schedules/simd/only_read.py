"""Whole numbers that a kernel reads from tensors and writes nowhere: what is known of one, holds wherever it is read.

before: ``x[32 * (i - begin[0])]`` where ``0 <= i - begin[0] < 5``
after:  ``x[32 * (i - element)]`` where ``0 <= i - element < 5``
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from tvm_ext.schedules.simd.vector import lanes_of

_READING = frozenset(("buffer_data", "masked_load"))
"""Calls that get a tensor by its name and do not write to it; of others it is not known."""


class NamedElements:
    """Puts a variable in the place of each whole number that is only read.

    Parameters
    ----------
    func : tvm.tirx.PrimFunc
        A kernel without blocks, over flat buffers.
    """

    def __init__(self, func: tirx.PrimFunc) -> None:
        self._tensors = _only_read(func)
        self._elements: dict[Any, Any] = {}

    def __call__(self, expression: Any) -> Any:
        """Rewrite an expression; the same element is the same variable in each of them."""
        if not self._tensors:
            return expression

        def name(load: Any, mutator: Any) -> Any:
            if load.source not in self._tensors or lanes_of(load) > 1:
                return mutator.default_mutate(load)
            variable = tvm.ir.Var("element", load.ty)
            return self._elements.setdefault(tvm_ffi.StructuralKey(load), variable)

        return tvm_ffi.structural_mutate(expression, [(tvm.ir.TensorLoad, name)])


def _only_read(func: tirx.PrimFunc) -> set[Any]:
    """List the names of tensors of whole numbers, arguments of a kernel, that it does not write by any name."""
    if "tirx.noalias" not in (func.attrs or {}):
        return set()
    names: dict[Any, set[Any]] = {parameter: {parameter} for parameter in func.params}
    written: set[Any] = set()

    def declare(statement: Any) -> None:
        arguments = list(getattr(statement.data, "args", []))
        if len(arguments) == 1 and arguments[0] in names:
            names[arguments[0]].add(statement.buffer)

    def call(node: Any) -> None:
        if _called(node) in _READING:
            return
        for argument in node.args:
            if isinstance(argument, tvm.ir.Var):
                written.add(argument)
            elif _called(argument) == "buffer_data":
                written.add(argument.args[0])
            elif _called(node) == "address_of":
                written.add(argument.source)

    tvm_ffi.structural_walk(
        func.body,
        [
            (tirx.DeclBuffer, declare),
            (tirx.BufferStore, lambda store: written.add(store.buffer)),
            (tvm.ir.Call, call),
        ],
    )
    return {
        name
        for known in names.values()
        if known.isdisjoint(written)
        for name in known
        if str(getattr(name, "dtype", "")).startswith("int")
    }


def _called(node: Any) -> str:
    return getattr(node.op, "name", "").rpartition(".")[2] if isinstance(node, tvm.ir.Call) else ""
