"""Scheduled functions as plain data: loops, allocations, and nests of loops around one statement each.

A nest is one block of the schedule: a load, a store, a product or an element-wise operation.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from math import prod
from typing import Any

import tvm_ffi

from tvm_ext.backends.vta.codegen.expressions import Function
from tvm_ext.backends.vta.isa.instructions import AluOpcode


class Kind(Enum):
    """What a nest does."""

    LOAD = "load"
    STORE = "store"
    RESET = "reset"
    GEMM = "gemm"
    ALU = "alu"


@dataclass(frozen=True, eq=False)
class BufferInfo:
    """A buffer, in DRAM (``memory`` is ``dram``) or on the chip.

    Attributes
    ----------
    shape : tuple of int
        Without the last two axes, which are those of an element.
    lanes : tuple of int
        The last two axes.
    """

    name: str
    memory: str
    shape: tuple[int, ...]
    lanes: tuple[int, int]
    dtype: str

    @property
    def size(self) -> int:
        """Elements."""
        return prod(self.shape)

    @property
    def plane(self) -> tuple[int, int]:
        """Rows and columns that follow each other in memory."""
        return (1, 1, *self.shape)[-2:]  # type: ignore[return-value]


@dataclass(frozen=True, eq=False)
class Access:
    """An element that a nest touches: its buffer, its index, and the loop variables in the last two axes."""

    buffer: BufferInfo
    element: Function
    indices: tuple[Any, ...] = field(repr=False)
    lanes: tuple[int | None, int | None]


@dataclass(frozen=True, eq=False)
class Operation:
    """One ALU operation on the destination: the right operand is a number or accumulators."""

    opcode: AluOpcode
    right: int | Access


@dataclass(eq=False)
class Nest:
    """Loops around one statement.

    Attributes
    ----------
    block : str
        Name of the block, for messages.
    loops : list of (int, Function)
        Numbers of the variables and extents, outermost first, without those that walk over an element.
    target : Access
    sources : tuple of Access
        Of a load and a store the source, of GEMM the inputs and the weights, of ALU the left operand.
    operations : list of Operation
    conditions : list of Function
        Steps for which one of them does not hold are left out.
    inside : Function or None
        Where a load reads; elsewhere it gets zeros.
    outer : set of int
        Variables of loops further out that matter.
    moving : Access or None
        Of a load or store that is the same, but for a distance in DRAM, for all other variables: the access to DRAM.
    """

    block: str
    kind: Kind
    target: Access
    sources: tuple[Access, ...] = ()
    operations: list[Operation] = field(default_factory=list)
    loops: list[tuple[int, Function]] = field(default_factory=list)
    conditions: list[Function] = field(default_factory=list)
    inside: Function | None = None
    outer: set[int] = field(default_factory=set)
    moving: Access | None = None


@dataclass(eq=False)
class Loop:
    """A loop around several nests."""

    variable: int
    extent: Function
    is_virtual: bool
    body: Node


@dataclass(eq=False)
class Scope:
    """Buffers that live while the body runs."""

    buffers: list[BufferInfo]
    body: Node


@dataclass(eq=False)
class Group:
    """Nodes that run one after the other."""

    body: list[Node]


Node = Loop | Scope | Group | Nest


@dataclass(frozen=True)
class Scheduled:
    """A scheduled function.

    Attributes
    ----------
    parameters : list of BufferInfo
    body : Node
    nests : list of Nest
        In the order of the text.
    """

    parameters: list[BufferInfo]
    body: Node
    nests: list[Nest]


def same_elements(left: Access, right: Access) -> bool:
    """Whether two accesses of one nest always touch elements of the same index."""
    if len(left.indices) != len(right.indices) or left.buffer.shape != right.buffer.shape:
        return False
    return all(tvm_ffi.structural_equal(a, b) for a, b in zip(left.indices, right.indices, strict=True))
