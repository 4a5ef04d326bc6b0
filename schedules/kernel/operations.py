"""What the blocks of a kernel compute, as far as rules ask: single elements, functions, conditions."""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm.ir.prim import expr as prim
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import SBlockRV
from tvm.tirx import BufferStore

from tvm_ext.schedules.kernel.blocks import is_spatial, static_extents, top_blocks

_FUNCTIONS = frozenset("exp tanh sigmoid log log1p erf pow sin cos sqrt rsqrt".split())


def is_simple(schedule: Schedule, block: SBlockRV) -> bool:
    """Whether a block computes one element: a single store, after names for values at most."""
    body = schedule.get(block).body
    statements = body.seq if isinstance(body, tvm.tirx.SeqStmt) else [body]
    return all(isinstance(statement, BufferStore | tvm.tirx.Bind) for statement in statements)


def data_parallel_blocks(schedule: Schedule) -> list[SBlockRV]:
    """List the blocks of a kernel all of which compute single elements over known extents; none of any other kernel."""
    blocks = top_blocks(schedule)
    fit = (
        is_spatial(schedule, block) and is_simple(schedule, block) and static_extents(schedule, block)
        for block in blocks
    )
    return blocks if all(fit) else []


def expensive_operations(schedule: Schedule, block: SBlockRV) -> int:
    """Count the transcendental functions and divisions of floats in the body of a block."""
    return operations_of(schedule, block)[0]


def operations_of(schedule: Schedule, block: SBlockRV) -> tuple[int, int]:
    """Count the functions and divisions of floats in the body of a block, and its other operations."""
    functions, operations = [0], [0]

    def call(node: Any) -> None:
        functions[0] += getattr(node.op, "name", "").removeprefix("tirx.") in _FUNCTIONS

    def division(node: Any) -> None:
        functions[0] += "float" in str(node.ty.dtype)

    def operation(_node: Any) -> None:
        operations[0] += 1

    callbacks = [
        (tvm.ir.Call, call),
        (prim.Div, division),
        ((prim.Add, prim.Sub, prim.Mul, prim.Max, prim.Min, prim.Select), operation),
    ]
    tvm_ffi.structural_walk(schedule.get(block).body, callbacks)
    return functions[0], operations[0]


def has_condition(schedule: Schedule, block: SBlockRV) -> bool:
    """Whether the body of a block loads under a condition, as padding does."""

    def find(call: tvm.ir.Call) -> tvm_ffi.VisitInterrupt | None:
        return tvm_ffi.VisitInterrupt(True) if getattr(call.op, "name", "") == "prim.if_then_else" else None

    return tvm_ffi.structural_walk(schedule.get(block).body, (tvm.ir.Call, find)) is not None
