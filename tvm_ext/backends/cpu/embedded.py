"""How kernels for CPUs are made of embeddings: register tiles, where operands lie, and what that takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import tvm

from tvm_ext.embedding.choice import Cost
from tvm_ext.embedding.dataflow import Access, Dataflow
from tvm_ext.embedding.embedding import Embedding
from tvm_ext.embedding.kernel import (
    Home,
    KernelPlan,
    Plan,
    Source,
    form_of,
    is_direct,
    may_round,
    outer_loops,
    outer_numbers,
)
from tvm_ext.embedding.strategy import Stored, Strategy, rounded, strategy
from tvm_ext.errors import EmbeddingError
from tvm_ext.schedules.cpu.embedded_tile import Copy, EmbeddedTile, copied_cycles, embedded_tasks, embedded_tile
from tvm_ext.schedules.cpu.intrinsics import dot_product
from tvm_ext.schedules.cpu.machine import Machine
from tvm_ext.schedules.cpu.tile_registers import SLOT_CYCLES, tile_block
from tvm_ext.schedules.embedded_form import EmbeddedForm
from tvm_ext.schedules.instructions.instruction import Instruction

MADE_CYCLES = {"padded": 1.5, "spread": 3.0}
"""How many times as long storing anew takes where the kernel makes what it stores; spread elements one by one."""

CALL_CYCLES = 400.0
"""Cycles of a kernel besides its arithmetic."""

PACKED_ROWS = 4
"""Register tiles along the rows of a product from which on its columns are better stored anew for them."""


def kernel_plan(instruction: Instruction, machine: Machine) -> Plan:
    """Make what plans kernels with an instruction."""

    def plan(embedding: Embedding, sources: tuple[Source, Source]) -> KernelPlan:
        start = strategy(embedding, dense=False)
        if not any(loop.reduces for loop in start.loops):
            raise EmbeddingError(f"nothing is summed up around {instruction.name}")
        every = [_fixed_loops(start, exact, sources) for exact in (True, False)]
        plans = [_planned(start, fixed, instruction, machine, sources) for fixed in dict.fromkeys(every)]
        return min(plans, key=lambda item: item.cycles)

    return plan


def _fixed_loops(start: Strategy, exact: bool, sources: tuple[Source, Source]) -> frozenset[int]:
    """List the loops that must be multiples of their tile; with ``exact`` also those over what is read in place."""
    loops = outer_loops(start)
    fixed = set(range(len(loops))) - may_round(start)
    for factor, kind in ((0, "left"), (1, "right")):
        if exact and sources[start.embedding.operand(factor)] != "constant" and is_direct(start, factor):
            fixed |= {at for at, loop in enumerate(loops) if loop.kind == kind}
    return frozenset(fixed)


def _planned(
    start: Strategy, fixed: frozenset[int], instruction: Instruction, machine: Machine, sources: tuple[Source, Source]
) -> KernelPlan:
    """Plan a kernel of which some loops must be multiples of their tile."""
    embedding = start.embedding
    loops, numbers = outer_loops(start), outer_numbers(start)
    steps = prod(loop.extent for loop in start.loops if loop.reduces)
    left_lanes = any(dimension.lane is not None and _moves_in_result(embedding, dimension.lane[0])
                     for dimension in start.operands[embedding.operand(0)].dimensions)  # fmt: skip
    form = form_of(start, instruction.name)
    for parts in form.result:
        lane = next((at for at, part in enumerate(parts) if part.lane >= 0), len(parts))
        if any(part.loop >= 0 and form.loops[part.loop].kind == "right" for part in parts[lane + 1 :]):
            raise EmbeddingError(f"lanes of {instruction.name} would lie between those of other weights in the result")
    if instruction.tiles:
        tile = tile_block(loops, steps, instruction, fixed, form.innermost_lane == 0)
    else:
        tile = embedded_tile(loops, steps, machine, fixed, left_lanes, not form.lanes_lie_together)
        _require_whole_behind_lanes(form, start, tile, instruction)
    found = rounded(start, {numbers[at]: extent for at, extent in tile.rounded(loops).items()})
    homes: list[Home] = ["direct", "direct"]
    copied = [0.0, 0.0]
    for factor in range(2):
        at = embedding.operand(factor)
        homes[at] = _home(found, factor, sources[at], tile, instruction)
        if homes[at] == "stored":
            wanted = embedding.instruction.operands[factor].dtype
            copied[factor] = _copied_cycles(found.operands[at], sources[at], embedding, wanted, machine)
        elif homes[at] == "direct" and sources[at] in MADE_CYCLES:
            copied[factor] = _made_cycles(found.operands[at], sources[at], machine)
    types = [access.dtype for access in embedding.instruction.operands]
    read = sum(
        found.operands[embedding.operand(number)].elements * tvm.DataType(dtype).bits // 8
        for number, dtype in enumerate(types)
    )
    streamed = read / machine.l2_bandwidth * machine.clock
    rounded_loops = outer_loops(found)
    slots = [2.0 * cycles for cycles in copied]
    tasks = embedded_tasks(rounded_loops, tile, steps, slots, embedding.instruction.macs, machine)
    again = tasks.read_again(rounded_loops, tile)
    copying = sum(cycles * times for cycles, times in zip(copied, again, strict=True))
    computing = tile.slots * (SLOT_CYCLES if instruction.tiles else instruction.cycles)
    cycles = CALL_CYCLES + max(computing, streamed) + copying
    return KernelPlan(found, (homes[0], homes[1]), cycles)


def _require_whole_behind_lanes(
    form: EmbeddedForm, start: Strategy, tile: EmbeddedTile, instruction: Instruction
) -> None:
    """Refuse a part of a tile behind lanes of which some are padding: TVM finds no bounds for what a task computes.

    Such as 17 groups of 17 outputs, groups on 16 lanes: results ``[2, 16, 17]`` of 289, outputs one at a time.

    Raises
    ------
    EmbeddingError
        If there is one.
    """
    access = start.embedding.operator.output
    whole = {tile.column: tile.columns, tile.vector: tile.vectors}
    for parts, extent in zip(form.result, access.shape, strict=True):
        lane = next((at for at, part in enumerate(parts) if part.lane >= 0), len(parts))
        behind = [part for part in parts[lane + 1 :] if part.loop >= 0 and part.extent > 1]
        if prod(part.extent for part in parts) > extent and any(
            whole.get(part.loop, 1) < part.extent for part in behind
        ):
            raise EmbeddingError(
                f"results behind the lanes of {instruction.name}, some of which are padding, do not fit one tile"
            )


def _moves_in_result(embedding: Embedding, axis: int) -> bool:
    return embedding.instruction.output.uses(axis)


def _home(found: Strategy, factor: int, source: Source, tile: EmbeddedTile, instruction: Instruction) -> Home:
    """Choose where a factor of the instruction lies."""
    if instruction.tiles:  # rows of a tile are loaded from where they lie together
        return "given" if source == "constant" else "stored"
    direct = is_direct(found, factor)
    if source == "constant":
        return "direct" if direct and factor == 0 else "given"
    if not direct:
        return "stored"
    loops = outer_loops(found)
    rows = loops[tile.column].extent // tile.columns if tile.column >= 0 else 1
    return "stored" if factor == 1 and rows >= PACKED_ROWS else "direct"


def _copied_cycles(stored: Stored, source: Source, embedding: Embedding, dtype: str, machine: Machine) -> float:
    """Cycles of storing a factor anew, once, in the type that the instruction takes."""
    shape = stored.access.shape
    strides = [prod(shape[place + 1 :]) for place in range(len(shape))]
    moves = [
        (sum(one * stride for one, stride in zip(dimension.steps, strides, strict=True)), dimension.extent)
        for dimension in stored.dimensions
        if dimension.extent > 1
    ]
    if _is_filled_up(stored, embedding):
        moves.append((0, 2))
    step, run = moves.pop() if moves else (1, 1)
    while moves and moves[-1][0] == step * run:
        run *= moves.pop()[1]
    kind: Copy = "elements"
    if source != "spread" and step == 1:
        kind = "vectors"
    elif source != "spread" and any(other == 1 for other, _ in moves):
        kind = "interleaved" if run in (2, 4) and moves[-1][0] == 1 else "tiles"
    lanes = machine.lanes(stored.access.dtype)
    if kind == "interleaved" and (machine.lanes(dtype) < lanes or _lacks_rows(stored, embedding)):
        kind = "interleaved by elements"
    return MADE_CYCLES.get(source, 1.0) * copied_cycles(stored.elements, kind, lanes, run)


def _is_filled_up(stored: Stored, embedding: Embedding) -> bool:
    """Whether the last lane of a factor is one element, and zeros."""
    lane = stored.dimensions[-1].lane
    if lane is None:
        return False
    return embedding.operator.axes[embedding.digits[lane[0]][lane[1]].axis].extent == 1


def _lacks_rows(stored: Stored, embedding: Embedding) -> bool:
    """Whether some of what lies on the last lane of a factor is padding."""
    lane = stored.dimensions[-1].lane
    axis = embedding.digits[lane[0]][lane[1]].axis if lane is not None else -1
    return axis >= 0 and embedding.padded[axis] != embedding.operator.axes[axis].extent


def _made_cycles(stored: Stored, source: Source, machine: Machine) -> float:
    """Cycles of padding a factor that the instruction reads where it is."""
    kind: Copy = "elements" if source == "spread" else "vectors"
    elements = prod(stored.access.shape)
    lanes = machine.lanes(stored.access.dtype)
    return MADE_CYCLES[source] * copied_cycles(elements, kind, lanes, stored.access.shape[-1])


ORDINARY_LANES = {"vectors": 1.0, "integers": 0.4, "sums": 0.4, "strided": 0.12}
"""Share of a vector's lanes that multiply and add in each cycle of a kernel that no rule knows, measured on Zen 5:
along results that lie together in a factor, of floats and of integers; along what is summed up; along anything else."""


def ordinary_cost(machine: Machine) -> Callable[[Dataflow], float]:
    """Make the cost of an operator that no rule of the layout takes."""

    def cost(operator: Dataflow) -> float:
        return CALL_CYCLES + operator.macs / (machine.lanes("float32") * ORDINARY_LANES[_vectors_along(operator)])

    return cost


WINDOW_LANES = {"uint8": 0.68, "int8": 0.5}
"""The same share, by the type of data, in kernels of windows of single channels of 8-bit integers, measured on Zen 5:
hand-written ones, and where there are none."""

WINDOW_LANES_LAST = 0.4
"""The same with channels last, measured on Zen 4: along channels, without a copy."""

BEYOND_ALL = 1e15
"""Cycles that every kernel stays below."""


def window_cost(machine: Machine) -> Callable[[Dataflow], float]:
    """Make the cost of windows of single channels of 8-bit integers without an embedding; all else is beyond any."""
    form = dot_product(machine)
    is_measured = form.inputs == "uint8" and form.pack == 4

    def cost(operator: Dataflow) -> float:
        if not is_measured or not _is_window_of_bytes(operator):
            return BEYOND_ALL
        data = operator.inputs[0]
        share = WINDOW_LANES[data.dtype] if data.column(_channel(operator)) == _SECOND else WINDOW_LANES_LAST
        return CALL_CYCLES + operator.macs / (machine.lanes("float32") * share)

    return cost


_SECOND, _LAST = (0, 1, 0, 0), (0, 0, 0, 1)
"""How the data of a picture moves from one channel to the next: channels second, or last."""


def _channel(operator: Dataflow) -> int:
    """Find the only axis that all operands move in; -1 where there is none, or there are several."""
    walked = [at for at, axis in enumerate(operator.axes) if axis.extent > 1]
    channels = [at for at in walked if all(access.uses(at) for access in operator.operands)]
    return channels[0] if len(channels) == 1 else -1


def _is_window_of_bytes(operator: Dataflow) -> bool:
    """Whether an operator is a window over each channel of a picture of bytes."""
    data, weights = operator.inputs
    if data.dtype not in WINDOW_LANES or weights.dtype != "int8" or len(data.shape) != 4 or len(weights.shape) != 4:
        return False
    walked = [at for at, axis in enumerate(operator.axes) if axis.extent > 1]
    channel = _channel(operator)
    return channel >= 0 and data.column(channel) in (_SECOND, _LAST) and all(data.uses(at) for at in walked)


def _vectors_along(operator: Dataflow) -> str:
    """Say what the vectors of an ordinary kernel run along: the innermost axis of the result if factors allow it."""
    walked = [axis for axis, part in enumerate(operator.axes) if part.extent > 1]
    results = [axis for axis in walked if not operator.axes[axis].reduces]
    innermost = min(results, key=lambda axis: _step(operator.output, axis), default=None)
    if innermost is not None and all(_step(access, innermost) in (0, 1) for access in operator.inputs):
        return "vectors" if operator.output.dtype.startswith("float") else "integers"
    sums = [axis for axis in walked if operator.axes[axis].reduces]
    return "sums" if any(all(_step(access, axis) == 1 for access in operator.inputs) for axis in sums) else "strided"


def _step(access: Access, axis: int) -> int:
    """Elements from one point of an axis to the next."""
    shape = access.shape
    return sum(step * prod(shape[place + 1 :]) for place, step in enumerate(access.column(axis)))


def relayout_cost(machine: Machine) -> Callable[[Sequence[int], str], float]:
    """Make the cost of putting the channels of a tensor last, or back: a copy in tiles, by a kernel of its own."""

    def cost(shape: Sequence[int], dtype: str) -> float:
        return CALL_CYCLES + copied_cycles(prod(shape), "tiles", machine.lanes(dtype), shape[1])

    return cost


def planned_cost(plan: Plan) -> Cost:
    """Make the cost of a strategy: that of the kernel that is made of its embedding, with a constant right factor."""

    def cost(found: Strategy) -> float:
        return plan(found.embedding, ("given", "constant")).cycles

    return cost
