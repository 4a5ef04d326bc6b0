"""A rough time for kernels that move data and compute little: enough to tell whether threads pay."""

from __future__ import annotations

from math import prod
from typing import Any

import tvm
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import SBlockRV
from tvm.tirx import IntImm

from tvm_ext.schedules.cpu.machine import Machine
from tvm_ext.schedules.kernel.operations import operations_of


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
    functions, operations = operations_of(schedule, block)
    arithmetic = elements * (functions * machine.function_seconds + operations * machine.operation_seconds)
    return arithmetic, sum(min(elements, _elements(region)) * _bytes(region) for region in (*body.reads, *body.writes))


def _elements(region: Any) -> int:
    shape = region.source.shape
    return prod(int(extent) for extent in shape) if all(isinstance(extent, IntImm) for extent in shape) else 1 << 62


def _bytes(region: Any) -> float:
    return tvm.DataType(region.source.dtype).bits / 8
