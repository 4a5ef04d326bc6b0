"""Which buffers of a kernel become variables of C, one for each vector or element, and which loops are written out.

LLVM unrolls short loops and then takes small arrays apart. GCC at -O2 does neither in the kernels here, and
accumulators would stay in memory; so the sources say which are variables.

before: ``for i in 0..3 { c[16*i : 16*i+16] += ... }``
after:  ``c_0 += ...; c_16 += ...; c_32 += ...;``
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir.prim import expr as prim

from tvm_ext.backends.c.constants import declared_over, folded
from tvm_ext.backends.c.types import CType, ctype
from tvm_ext.schedules.simd.vector import operation

MOST_BYTES = 8192
"""Of a buffer that is taken apart; 32 registers of 64 bytes are a quarter of it."""

MOST_COPIES = 256
"""Iterations of loops that are written out, in all, for one access."""


@dataclass(frozen=True)
class Registers:
    """What becomes of the buffers of a kernel.

    Attributes
    ----------
    aliases : mapping of buffer to buffer
        Other names of buffers that are taken apart.
    slots : mapping of buffer to mapping of int to CType
        For each buffer that is taken apart: first element -> type of the variable.
    unrolled : tuple of var
        Variables of the loops that are written out.
    masked : frozenset of buffer
        Those of ``slots`` that are written under masks: lanes that these leave out are read with the others, and must
        hold something.
    """

    slots: Mapping[Any, Mapping[int, CType]] = field(default_factory=dict)
    unrolled: tuple[Any, ...] = ()
    aliases: Mapping[Any, Any] = field(default_factory=dict)
    masked: frozenset[Any] = frozenset()


@dataclass
class _Found:
    """What is known of one buffer."""

    size: int = 0
    accesses: list[tuple[Any, CType, tuple[Any, ...]]] = field(default_factory=list)
    spoilt: bool = False
    masked: bool = False


def choose_registers(func: tirx.PrimFunc) -> Registers:
    """Decide, from how the kernel gets at its own buffers."""
    found, aliases = _accesses(func)
    slots: dict[Any, dict[int, CType]] = {}
    unrolled: dict[Any, None] = {}
    for buffer, known in found.items():
        taken = None if known.spoilt else _slots(buffer, known)
        if taken is not None:
            slots[buffer] = taken[0]
            unrolled.update(dict.fromkeys(taken[1]))
    named = {name: buffer for name, buffer in aliases.items() if buffer in slots}
    return Registers(slots, tuple(unrolled), named, frozenset(buffer for buffer in slots if found[buffer].masked))


def _accesses(func: tirx.PrimFunc) -> tuple[dict[Any, _Found], dict[Any, Any]]:
    aliases: dict[Any, Any] = {}
    found: dict[Any, _Found] = {}
    loops: list[Any] = []

    def allocate(node: Any) -> None:
        size = _elements(node.buffer)
        kind = ctype(str(node.buffer.dtype))
        if size is not None and size * kind.bytes <= MOST_BYTES:
            found[node.buffer] = _Found(size)

    tvm_ffi.structural_walk(func.body, (tirx.AllocBuffer, allocate))

    def note(buffer: Any, indices: Any, kind: CType) -> None:
        buffer = aliases.get(buffer, buffer)
        if buffer in found:
            found[buffer].accesses.append((indices[0], kind, tuple(loops)))

    def loop(node: Any, visitor: Any) -> None:
        loops.append(node)
        visitor.default_visit(node)
        loops.pop()

    def load(node: Any, visitor: Any) -> None:
        note(node.source, node.indices, ctype(str(node.ty.dtype)))
        visitor.default_visit(node)

    def store(node: Any, visitor: Any) -> None:
        note(node.buffer, node.indices, ctype(str(node.value.ty.dtype)))
        visitor.default_visit(node)

    def call(node: Any, visitor: Any) -> None:
        name = operation(node)
        if name in ("masked_load", "masked_store"):
            kind = ctype(str(node.ty.dtype if name == "masked_load" else node.args[1].ty.dtype))
            known = found.get(aliases.get(node.args[0], node.args[0]), _Found())
            if ctype(str(node.args[0].dtype)).lanes > 1:
                note(node.args[0], [node.args[-2]], kind)
                known.masked = known.masked or name == "masked_store"
            else:
                known.spoilt = True
        elif name in ("address_of", "tvm_access_ptr"):
            for argument in node.args:
                buffer = argument.source if isinstance(argument, tvm.ir.TensorLoad) else argument
                buffer = aliases.get(buffer, buffer) if isinstance(buffer, tvm.ir.Var) else buffer
                if isinstance(buffer, tvm.ir.Var) and buffer in found:
                    found[buffer].spoilt = True
        visitor.default_visit(node)

    def declare(node: Any, visitor: Any) -> None:
        source = declared_over(node.data)
        source = aliases.get(source, source) if isinstance(source, tvm.ir.Var) else source
        if isinstance(source, tvm.ir.Var) and source in found:
            if str(source.dtype) == str(node.buffer.dtype):
                aliases[node.buffer] = source
            else:
                found[source].spoilt = True
        visitor.default_visit(node)

    rules = [
        (tirx.For, loop), (tvm.ir.TensorLoad, load), (tirx.BufferStore, store), (tvm.ir.Call, call),
        (tirx.DeclBuffer, declare),
    ]  # fmt: skip
    tvm_ffi.structural_visit(func.body, rules)
    return found, aliases


def _elements(buffer: Any) -> int | None:
    shape = buffer.shape
    return int(shape[0]) if len(shape) == 1 and isinstance(shape[0], prim.IntImm) else None


def _slots(buffer: Any, known: _Found) -> tuple[dict[int, CType], list[Any]] | None:
    taken: dict[int, CType] = {}
    unrolled: dict[Any, None] = {}
    for index, kind, loops in known.accesses:
        base = index.base if isinstance(index, prim.Ramp) else index
        if kind.lanes > 1 and not isinstance(index, prim.Ramp) and ctype(str(buffer.dtype)).lanes == 1:
            return None
        if isinstance(index, prim.Ramp) and folded(index.stride, {}) != 1:
            return None
        needed = [
            loop for loop in loops if any(loop.loop_var.same_as(var) for var in tirx.analysis.undefined_vars(base))
        ]
        if any(not isinstance(loop.extent, prim.IntImm) or not isinstance(loop.min, prim.IntImm) for loop in needed):
            return None
        copies = 1
        for loop in needed:
            copies *= int(loop.extent)
        if copies > MOST_COPIES:
            return None
        for values in _iterations(needed):
            place = folded(base, values)
            if place is None or place < 0 or taken.setdefault(place, kind) != kind:
                return None
        unrolled.update({loop.loop_var: None for loop in needed})
    step = 1 if ctype(str(buffer.dtype)).lanes > 1 else None
    ends = 0
    for place in sorted(taken):
        if place < ends:
            return None
        ends = place + (step or taken[place].lanes)
    return (taken, list(unrolled)) if taken else None


def _iterations(loops: list[Any]) -> Iterator[dict[Any, int]]:
    ranges = [range(int(loop.min), int(loop.min) + int(loop.extent)) for loop in loops]
    for point in itertools.product(*ranges):
        yield {loop.loop_var: value for loop, value in zip(loops, point, strict=True)}
