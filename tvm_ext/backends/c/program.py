"""Reads what a lowered model calls, and with which tensors; branches, open extents and library calls are refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax, s_tir, tirx

from tvm_ext.backends.c.constants import declared_over
from tvm_ext.backends.c.plan import Argument, Place, Region, Step
from tvm_ext.errors import UnsupportedOperatorError
from tvm_ext.relax_utils import constant, static_shape
from tvm_ext.schedules.simd.stream import PREFIX as STREAM
from tvm_ext.schedules.simd.vector import operation

_SAME_BYTES = frozenset({"relax.reshape", "relax.memory.ensure_zero_offset", "relax.memory.view"})


@dataclass(frozen=True)
class Calls:
    """What ``main`` does.

    Attributes
    ----------
    steps : tuple of Step
    constants : tuple of np.ndarray
    arena : int
        Bytes.
    copies : tuple of (Argument, int)
        Outputs that no kernel writes to their place: where they are, and which output it is.
    """

    steps: tuple[Step, ...]
    constants: tuple[np.ndarray, ...]
    arena: int
    copies: tuple[tuple[Argument, int], ...]


def read_calls(mod: tvm.IRModule) -> Calls:
    """Read a module as the phase ``vectorize`` leaves it.

    Raises
    ------
    UnsupportedOperatorError
        If it needs a virtual machine; the message names what for.
    """
    return _Reader(mod).read()


@dataclass
class _Tensor:
    """An allocation, an input or a constant."""

    name: str
    bytes: int
    place: Place | None = None  # None until it is known whether it is an output


@dataclass
class _Reader:
    mod: tvm.IRModule
    values: dict[Any, Any] = field(default_factory=dict)  # variable -> (tensor, offset), or a list of a tuple's
    calls: list[tuple[str, list[tuple[_Tensor, int, int]]]] = field(default_factory=list)
    tensors: list[_Tensor] = field(default_factory=list)
    constants: list[np.ndarray] = field(default_factory=list)
    unknown: dict[str, list[str]] = field(default_factory=dict)
    storages: dict[Any, int] = field(default_factory=dict)  # variable -> first byte in the arena
    arena: int = 0
    touched: dict[str, list[tuple[bool, bool, bool]]] = field(default_factory=dict)
    open: list[str] = field(default_factory=list)  # functions that are being read
    _known: dict[Any, _Tensor] = field(default_factory=dict)

    def read(self) -> Calls:
        main = self.mod["main"]
        for number, param in enumerate(main.params):
            size = self._bytes(param, str(param.name))
            self.values[param] = _Tensor(f"input {number}", size, Place(Region.INPUT, number)), 0
        outputs = self._body(main, "main")
        if self.unknown:
            needs = "; ".join(f"{name} (at {', '.join(places[:3])})" for name, places in sorted(self.unknown.items()))
            raise UnsupportedOperatorError(
                f"C sources are a list of kernels on one arena, and the model needs more: {needs}; give open extents a "
                "value with --input-shape, or compile a library",
                faults={name: ", ".join(places) for name, places in self.unknown.items()},
            )
        return self._planned(list(_flat(outputs)))

    def _body(self, function: relax.Function, name: str) -> Any:
        """Read what a function does, whose parameters have values, and return what it gives."""
        if not isinstance(function.body, relax.SeqExpr):
            self.unknown.setdefault("a body that is no sequence", []).append(name)
            return None
        self.open.append(name)
        for block in function.body.blocks:
            for binding in block.bindings:
                self._bind(binding.var, binding.value)
        self.open.pop()
        return self._value(function.body.body)

    def _planned(self, outputs: list[Any]) -> Calls:
        copies = []
        for number, (tensor, offset) in enumerate(outputs):
            size = tensor.bytes - offset
            if tensor.place is None and offset == 0:
                tensor.place = Place(Region.OUTPUT, number)
            else:
                copies.append((tensor, offset, size, number))
        for tensor in self.tensors:
            if tensor.place is None:  # returned in parts, or looked at by something that may keep it
                tensor.place = Place(Region.ARENA, 0, self.arena)
                self.arena += -(-tensor.bytes // 64) * 64
        steps = tuple(
            Step(
                kernel,
                tuple(
                    self._argument(*argument, *touched)
                    for argument, touched in zip(arguments, self._touched(kernel), strict=True)
                ),
            )
            for kernel, arguments in self.calls
        )
        spec = [(self._argument(tensor, offset, size), number) for tensor, offset, size, number in copies]
        return Calls(steps, tuple(self.constants), self.arena, tuple(spec))

    def _touched(self, kernel: str) -> list[tuple[bool, bool, bool]]:
        if kernel not in self.touched:
            self.touched[kernel] = reads_and_writes(self.mod[kernel])
        return self.touched[kernel]

    def _argument(
        self, tensor: _Tensor, offset: int, size: int, read: bool = True, written: bool = False, first: bool = False
    ) -> Argument:
        place = tensor.place
        if place is None:
            raise AssertionError(tensor)
        name = tensor.name if not offset and size == tensor.bytes else f"{tensor.name}/{offset}+{size}"
        return Argument(name, Place(place.region, place.number, place.offset + offset), size, read, written, first)

    def _bytes(self, var: Any, label: str) -> int:
        shape = static_shape(var)
        if shape is None:
            self.unknown.setdefault("extents that are only known at run time", []).append(label)
            return 0
        return prod(shape) * ((tvm.DataType(str(var.ty.dtype)).bits + 7) // 8)

    def _bind(self, var: Any, value: Any) -> None:
        if isinstance(value, relax.If):
            self.unknown.setdefault("branches", []).append(str(var.name))
        elif isinstance(value, relax.Call):
            self._call(var, value)
        else:
            self.values[var] = self._value(value)

    def _call(self, var: Any, call: Any) -> None:
        name = str(getattr(call.op, "name", ""))
        if isinstance(call.op, tvm.ir.GlobalVar) and isinstance(self.mod[call.op], tirx.PrimFunc):
            given = [self._value(argument) for argument in call.args]
            if all(isinstance(item, tuple) for item in given):
                sizes = [self._bytes(argument, str(var.name)) for argument in call.args]
                arguments = [(*item, size) for item, size in zip(given, sizes, strict=True)]
                self.calls.append((str(call.op.name_hint), arguments))
                return
            name = f"numbers given to {call.op.name_hint}"
        elif isinstance(call.op, tvm.ir.GlobalVar) and isinstance(self.mod[call.op], relax.Function):
            name = str(call.op.name_hint)
            if name not in self.open:
                # Its kernels are called here, each time on tensors of their own.
                given = [self._value(argument) for argument in call.args]
                self.values.update(zip(self.mod[call.op].params, given, strict=True))
                self.values[var] = self._body(self.mod[call.op], name)
                return
            name = f"a call of {name} by itself"
        elif name == "relax.memory.alloc_storage":
            # One arena, or several storages where TVM plans the memory: these lie one behind the other.
            self.storages[var] = self.arena
            self.arena += -(-int(call.args[0][0]) // 64) * 64
            return
        elif name == "relax.memory.alloc_tensor":
            size = self._bytes(var, str(var.name))
            offset = self.storages[call.args[0]] + _number(call.args[1])
            tensor = _Tensor(f"{len(self.tensors)}.{var.name}", size, Place(Region.ARENA, 0, offset))
            self.tensors.append(tensor)
            self.values[var] = tensor, 0
            return
        elif name == "relax.builtin.alloc_tensor":
            tensor = _Tensor(f"{len(self.tensors)}.{var.name}", self._bytes(var, str(var.name)))
            self.tensors.append(tensor)
            self.values[var] = tensor, 0
            return
        elif name in _SAME_BYTES:
            source = self._value(call.args[0])
            if isinstance(source, tuple):
                offset = _number(call.args[3]) if name == "relax.memory.view" and len(call.args) > 3 else 0
                self.values[var] = source[0], source[1] + offset
                return
        name = name.removeprefix("relax.") or f"a call of {getattr(call.op, 'global_symbol', 'a function')}"
        self.unknown.setdefault(name, []).append(str(var.name))

    def _value(self, expr: Any) -> Any:
        if isinstance(expr, relax.Tuple):
            return [self._value(item) for item in expr.fields]
        if isinstance(expr, relax.TupleGetItem):
            found = self._value(expr.tuple_value)
            return found[int(expr.index)] if isinstance(found, list) else None
        array = constant(expr)
        if array is not None:
            if expr.value not in self._known:
                tensor = _Tensor(
                    f"constant {len(self.constants)}", array.nbytes, Place(Region.CONSTANT, len(self.constants))
                )
                self.constants.append(array)
                self._known[expr.value] = tensor
            return self._known[expr.value], 0
        return self.values.get(expr)


def reads_and_writes(func: tirx.PrimFunc) -> list[tuple[bool, bool, bool]]:
    """Tell of each parameter of a kernel whether it is read, whether it is written, and whether it is written first."""
    aliases: dict[Any, Any] = {param: param for param in func.params}
    read: set[Any] = set()
    written: set[Any] = set()
    first: set[Any] = set()

    def note(buffer: Any, found: set[Any]) -> None:
        if buffer in aliases:
            if found is written and aliases[buffer] not in read:
                first.add(aliases[buffer])
            found.add(aliases[buffer])

    def declare(node: Any) -> None:
        source = declared_over(node.data)
        if source in aliases:
            aliases[node.buffer] = aliases[source]

    def match(node: Any) -> None:
        if node.source.buffer in aliases:
            aliases[node.buffer] = aliases[node.source.buffer]

    def load(node: Any, visitor: Any) -> None:
        note(node.source, read)
        visitor.default_visit(node)

    def call(node: Any, visitor: Any) -> None:
        name = operation(node)
        if name == "address_of":  # to be fetched, or written by the call that it is given to
            return
        visitor.default_visit(node)
        if name == "masked_load":
            note(node.args[0], read)
        elif name == "masked_store":
            note(node.args[0], written)
        elif name == "call_extern" and str(node.args[0].value).startswith(STREAM):
            note(node.args[1].args[0].source, written)

    def store(node: Any, visitor: Any) -> None:
        visitor.default_visit(node)
        note(node.buffer, written)

    # Names for parts of tensors come before their uses.
    tvm_ffi.structural_walk(func.body, [(tirx.DeclBuffer, declare), (s_tir.MatchBufferRegion, match)])
    tvm_ffi.structural_visit(func.body, [(tvm.ir.TensorLoad, load), (tirx.BufferStore, store), (tvm.ir.Call, call)])
    # What is not understood may be either.
    untouched = {param for param in func.params if param not in read and param not in written}
    return [
        (param in read or param in untouched, param in written or param in untouched, param in first)
        for param in func.params
    ]


def _number(expr: Any) -> int:
    value = getattr(expr, "value", 0)
    return int(value)


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, list):
        for item in value:
            yield from _flat(item)
    else:
        yield value
