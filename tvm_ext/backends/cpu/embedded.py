"""How kernels for CPUs are made of embeddings: register tiles, where operands lie, and what that takes."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import tvm

from tvm_ext.embedding.choice import Cost
from tvm_ext.embedding.dataflow import Dataflow
from tvm_ext.embedding.embedding import Embedding
from tvm_ext.embedding.kernel import (
    Home,
    KernelPlan,
    Plan,
    is_direct,
    may_round,
    outer_loops,
    outer_numbers,
    result_parts,
)
from tvm_ext.embedding.strategy import Strategy, rounded, strategy
from tvm_ext.errors import EmbeddingError
from tvm_ext.schedules.cpu.embedded_tile import EmbeddedTile, embedded_tile
from tvm_ext.schedules.cpu.machine import Machine
from tvm_ext.schedules.instructions.instruction import Instruction

GATHER_CYCLES, COPY_CYCLES = 1.5, 2.5
"""Cycles of storing an element anew that is not beside the one before, and of storing a vector of such that are."""

CALL_CYCLES = 400.0
"""Cycles of a kernel besides its arithmetic."""

PACKED_ROWS = 4
"""Register tiles along the rows of a product from which on its columns are better stored anew for them."""


def kernel_plan(instruction: Instruction, machine: Machine) -> Plan:
    """Make what plans kernels with an instruction."""

    def plan(embedding: Embedding, constant: tuple[bool, bool]) -> KernelPlan:
        start = strategy(embedding, dense=False)
        if not any(loop.reduces for loop in start.loops):
            raise EmbeddingError(f"nothing is summed up around {instruction.name}")
        plans = [_planned(start, exact, instruction, machine, constant) for exact in (True, False)]
        return min(plans, key=lambda item: item.cycles)

    return plan


def _planned(
    start: Strategy, exact: bool, instruction: Instruction, machine: Machine, constant: tuple[bool, bool]
) -> KernelPlan:
    """Plan a kernel; with ``exact`` loops over what is read in place are not rounded up."""
    embedding = start.embedding
    loops, numbers = outer_loops(start), outer_numbers(start)
    steps = prod(loop.extent for loop in start.loops if loop.reduces)
    fixed = set(range(len(loops))) - may_round(start)
    for factor, kind in ((0, "left"), (1, "right")):
        if exact and not constant[embedding.operand(factor)] and is_direct(start, factor):
            fixed |= {at for at, loop in enumerate(loops) if loop.kind == kind}
    left_lanes = any(dimension.lane is not None and _moves_in_result(embedding, dimension.lane[0])
                     for dimension in start.operands[embedding.operand(0)].dimensions)  # fmt: skip
    tile = embedded_tile(loops, steps, machine, fixed, left_lanes)
    found = rounded(start, {numbers[at]: extent for at, extent in tile.rounded(loops).items()})
    homes: list[Home] = ["direct", "direct"]
    types = [access.dtype for access in embedding.instruction.operands]
    read = sum(
        found.operands[embedding.operand(number)].elements * tvm.DataType(dtype).bits // 8
        for number, dtype in enumerate(types)
    )
    streamed = read / machine.l2_bandwidth * machine.clock
    cycles = CALL_CYCLES + max(tile.slots * instruction.cycles, streamed)
    for factor in range(2):
        at = embedding.operand(factor)
        homes[at] = _home(found, factor, constant[at], tile)
        if homes[at] == "stored":
            cycles += _copy_cycles(found, at, machine)
    if not _stores_vectors(found):
        cycles += prod(embedding.operator.output.shape) * 0.1
    return KernelPlan(found, (homes[0], homes[1]), cycles)


def _moves_in_result(embedding: Embedding, axis: int) -> bool:
    return embedding.instruction.output.uses(axis)


def _home(found: Strategy, factor: int, is_constant: bool, tile: EmbeddedTile) -> Home:
    """Choose where a factor of the instruction lies."""
    direct = is_direct(found, factor)
    if is_constant:
        return "direct" if direct and factor == 0 else "given"
    if not direct:
        return "stored"
    loops = outer_loops(found)
    rows = loops[tile.column].extent // tile.columns if tile.column >= 0 else 1
    return "stored" if factor == 1 and rows >= PACKED_ROWS else "direct"


def _copy_cycles(found: Strategy, at: int, machine: Machine) -> float:
    stored = found.operands[at]
    *_, last = stored.dimensions
    lanes = machine.lanes(stored.access.dtype)
    together = bool(last.steps) and last.steps[-1] == 1 and not any(last.steps[:-1]) and last.extent > 1
    per_element = COPY_CYCLES / min(lanes, last.extent) if together else GATHER_CYCLES
    return stored.elements * per_element


def _stores_vectors(found: Strategy) -> bool:
    """Whether the lanes of a result lie together in the operator's result."""
    parts = result_parts(found)
    lanes = [part for parts_of in parts for part in parts_of if part.lane >= 0]
    return len(lanes) == 1 and bool(parts[-1]) and parts[-1][-1] is lanes[0]


ORDINARY_LANES = 0.4
"""Share of a vector's lanes that multiply and add in each cycle of a kernel that no rule knows, at best."""


def ordinary_cost(machine: Machine) -> Callable[[Dataflow], float]:
    """Make the least cost of an operator that no rule of the layout takes: vector code with two loads for a product."""

    def cost(operator: Dataflow) -> float:
        return CALL_CYCLES + operator.macs / (machine.lanes("float32") * ORDINARY_LANES)

    return cost


def planned_cost(plan: Plan) -> Cost:
    """Make the cost of a strategy: that of the kernel that is made of its embedding, with a constant right factor."""

    def cost(found: Strategy) -> float:
        return plan(found.embedding, (False, True)).cycles

    return cost
