"""Sketches whose operands are stored anew for the instruction: padded, fused, windows unrolled.

The block is changed by primitives, so that a tuner can replay it: operands are indexed as the block's axes go, axes are
padded, the axes of the block become what remains around the instruction and the axes of the instruction, and operands
are indexed as those go.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.tirx import IndexMap

from tvm_ext.embedding.embedding import Embedding
from tvm_ext.embedding.solver import element_order
from tvm_ext.embedding.strategy import Loop, strategy
from tvm_ext.errors import EmbeddingError
from tvm_ext.schedules.instructions.instruction import Instruction


@dataclass(frozen=True)
class Around:
    """What is around the instruction in a schedule.

    Attributes
    ----------
    result : SBlockRV
        Stores results of the instruction where the operator has them.
    spatial : sequence of (LoopRV, (bool, bool))
        Loops over results, and whether the block's left and right factor move in them.
    sums : sequence of LoopRV
        Loops that are summed over.
    lanes : sequence of LoopRV
        Loops of the instruction's axes, in their order.
    """

    result: SBlockRV
    spatial: Sequence[tuple[LoopRV, tuple[bool, bool]]]
    sums: Sequence[LoopRV]
    lanes: Sequence[LoopRV]


def lay_out_anew(sch: Schedule, block: SBlockRV, embedding: Embedding, row: Instruction) -> Around:
    """Store the operands of a block as an embedding has them.

    Parameters
    ----------
    sch : Schedule
    block : SBlockRV
        Of the operator; its axes are those of the embedding's operator.
    embedding : Embedding
        Of any kind.
    row : Instruction

    Raises
    ------
    EmbeddingError
        If the types differ, or padding cannot be held off.
    ScheduleError
        If TVM refuses a step.
    """
    operator = embedding.operator
    for number, wanted in enumerate(embedding.instruction.operands):
        have = operator.operands[embedding.operand(number)]
        if have.dtype != wanted.dtype:
            raise EmbeddingError(f"{have.tensor} is {have.dtype}, {row.name} takes {wanted.dtype}")
    loops = strategy(embedding, dense=False).loops
    extents = tuple(axis.extent for axis in operator.axes)
    cut = None
    if embedding.padded != extents:
        _index_by_axes(sch, block)
        sch.pad_einsum(block, list(embedding.padded))
        _inline_producers(sch, block)
        (cut,) = sch.get_consumers(block)
        (original,) = sch.get_consumers(cut)
        sch.reverse_compute_inline(original)
    dtype = str(sch.get(block).iter_vars[0].var.ty.dtype)
    divided = IndexMap.from_func(
        lambda *place: _parts(embedding, loops, place), ndim=len(operator.axes), index_dtype=dtype
    )
    sch.transform_block_layout(block, divided)
    copies = _index_by_axes(sch, block)
    if cut is not None:
        _inline_producers(sch, block)
    for number in range(3):
        _order_lanes(sch, block, embedding, number)
    for number, copy in enumerate(copies):
        sch.set_scope(copy, 0, row.homes[number if not embedding.swapped else 1 - number])
        copy_in_parallel(sch, copy)
    (result,) = sch.get_consumers(block)
    sch.set_scope(block, 0, row.homes[2])
    if cut is not None:
        grows = any(
            padded != axis.extent and not axis.reduces
            for padded, axis in zip(embedding.padded, operator.axes, strict=True)
        )
        if grows:  # put inside of the result's block, it would store beyond the end
            copy_in_parallel(sch, cut)
        else:
            sch.reverse_compute_inline(cut)
    every = list(sch.get_loops(block))
    spatial = [
        (loop, (operator.inputs[0].uses(part.axis), operator.inputs[1].uses(part.axis)))
        for loop, part in zip(every[: len(loops)], loops, strict=True)
        if not part.reduces
    ]
    sums = [loop for loop, part in zip(every, loops, strict=False) if part.reduces]
    if not spatial:
        spatial = [(sch.add_unit_loop(every[0]), (True, True))]
    return Around(result, spatial, sums, every[len(loops) :])


def _index_by_axes(sch: Schedule, block: SBlockRV) -> list[SBlockRV]:
    """Index the operands of a block as its axes go; gives the copies of the factors."""
    copies = [sch.reindex(block, ("read", number)) for number in range(2)]
    sch.reindex(block, ("write", 0))
    return copies


def _order_lanes(sch: Schedule, block: SBlockRV, embedding: Embedding, number: int) -> None:
    """Put the lanes of an operand of the instruction, which lie as its axes go, in the order that it reads them in."""
    order = element_order(embedding.instruction, number)
    if order == sorted(order):
        return
    places = [sorted(order).index(axis) for axis in order]

    def index_map(*place: Any) -> list[Any]:
        outer, lanes = place[: -len(order)], place[-len(order) :]
        return [*outer, *(lanes[at] for at in places)]

    buffer = ("write", 0) if number == 2 else ("read", _read_of(sch, block, embedding.operand(number)))
    sch.transform_layout(block, buffer, index_map)


def _read_of(sch: Schedule, block: SBlockRV, operand: int) -> int:
    """Find which of a block's reads is that of one of its factors: what it adds to is none."""
    return [
        at for at, read in enumerate(sch.get(block).reads)
        if not read.source.same_as(sch.get(block).writes[0].source)
    ][operand]  # fmt: skip


def _inline_producers(sch: Schedule, block: SBlockRV) -> None:
    """Compute what the last copies of a block's factors read where they read it."""
    for copy in sch.get_producers(block):
        waiting = list(sch.get_producers(copy))
        while waiting:
            before = waiting.pop()
            if not str(sch.get(before).name_hint).endswith(("_reindex", "_pad")):
                continue
            waiting += list(sch.get_producers(before))
            sch.compute_inline(before)


def _parts(embedding: Embedding, loops: Sequence[Loop], place: Sequence[Any]) -> list[Any]:
    """Divide a point of the operator's axes into turns of the remaining loops, and lanes of the instruction."""

    def part(axis: int, step: int, extent: int) -> Any:
        value = place[axis] // step if step > 1 else place[axis]
        return value % extent if step * extent < embedding.padded[axis] else value

    turns = [part(loop.axis, loop.step, loop.extent) for loop in loops]
    lanes = []
    for fused in embedding.digits:
        value: Any = 0
        for digit in fused:
            value = value * digit.size + part(digit.axis, digit.stride, digit.size)
        lanes.append(value)
    return [*turns, *lanes]


def copy_in_parallel(sch: Schedule, copy: SBlockRV) -> None:
    """Divide a copy among threads, and make vectors of its last loop."""
    loops = sch.get_loops(copy)
    if not loops:
        return
    *outer, last = loops
    sch.parallel(sch.fuse(*outer) if outer else last)
    if outer and int(sch.get(last).extent) > 1:
        sch.vectorize(last)
