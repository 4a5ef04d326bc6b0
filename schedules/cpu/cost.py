"""A rough time for kernels that move data and compute little: enough to tell whether threads pay."""

from __future__ import annotations

from math import prod
from typing import Any

import tvm
import tvm_ffi
from tvm.ir.prim import expr as prim
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import SBlockRV
from tvm.tirx import BufferStore, IntImm

from tvm_ext.schedules.cpu.blocks import is_spatial, static_extents, top_blocks
from tvm_ext.schedules.cpu.machine import Machine

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
    return _count(schedule, block)[0]


def block_seconds(schedule: Schedule, block: SBlockRV, machine: Machine) -> float:
    """Estimate how long one core needs for a block of static extents; 0 when an extent is not known."""
    arithmetic, moved = block_work(schedule, block, machine)
    return arithmetic + moved / machine.stream_bandwidth


def block_work(schedule: Schedule, block: SBlockRV, machine: Machine) -> tuple[float, float]:
    """Estimate the seconds of one core for the arithmetic of a block, and count the bytes it reads and writes.

    Both are 0 when an extent is not known.
    """
    body = schedule.get(block)
    extents = [iter_var.dom.extent for iter_var in body.iter_vars]
    if not all(isinstance(extent, IntImm) for extent in extents):
        return 0.0, 0.0
    elements = prod(int(extent) for extent in extents)
    functions, operations = _count(schedule, block)
    arithmetic = elements * (functions * machine.function_seconds + operations * machine.operation_seconds)
    return arithmetic, sum(min(elements, _elements(region)) * _bytes(region) for region in (*body.reads, *body.writes))


def _count(schedule: Schedule, block: SBlockRV) -> tuple[int, int]:
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


def _elements(region: Any) -> int:
    shape = region.source.shape
    return prod(int(extent) for extent in shape) if all(isinstance(extent, IntImm) for extent in shape) else 1 << 62


def _bytes(region: Any) -> float:
    return tvm.DataType(region.source.dtype).bits / 8
