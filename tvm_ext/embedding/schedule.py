"""Schedules the operator on stored operands for a processor: a tile of results in registers around the instruction."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod

from tvm.s_tir import Schedule

from tvm_ext.embedding.function import BLOCK, stored_function
from tvm_ext.embedding.strategy import Strategy
from tvm_ext.errors import EmbeddingError
from tvm_ext.schedules.divisors import divisors
from tvm_ext.schedules.instructions.instruction import Instruction
from tvm_ext.schedules.instructions.registered import tensor_intrinsic
from tvm_ext.schedules.rule import new_schedule


def schedule_strategy(found: Strategy, instruction: Instruction, accumulators: int) -> Schedule:
    """Schedule :func:`stored_function` of a strategy.

    Parameters
    ----------
    found : Strategy
    instruction : Instruction
        Whose meaning the strategy embeds.
    accumulators : int
        Results of the instruction that are kept in registers.

    Returns
    -------
    Schedule
        Of one function, ``main``. Turns of a tile in registers are unrolled, those of all tiles are parallel.

    Raises
    ------
    EmbeddingError
        If no code can be made of the instruction, or nothing is summed up around it.
    """
    intrinsic = tensor_intrinsic(instruction)
    schedule = new_schedule(stored_function(found))
    block = schedule.get_sblock(BLOCK)
    output = found.operands[2]
    outer = [dimension.loops[0][0] for dimension in output.dimensions if dimension.lane is None]
    lanes_out = len(found.embedding.instruction.output.shape)
    every = list(schedule.get_loops(block))
    spatial, lanes = every[: len(outer)], every[len(outer) : len(outer) + lanes_out]
    summed = sum(loop.reduces for loop in found.loops)
    rest = every[len(outer) + lanes_out :]
    sums, inner = rest[:summed], rest[summed:]
    if not sums:
        raise EmbeddingError(f"nothing is summed up around {instruction.name}")
    tile = register_tile(found, outer, accumulators)
    outside, inside = [], []
    for place, loop in enumerate(spatial):
        if tile[place] > 1:
            turns, part = schedule.split(loop, [None, tile[place]])
            outside.append(turns)
            inside.append(part)
        else:
            outside.append(loop)
    schedule.reorder(*outside, *sums, *inside, *lanes, *inner)
    if not outside:
        outside = [schedule.add_unit_loop(sums[0])]
    together = schedule.fuse(*outside)
    written = schedule.cache_write(block, 0, instruction.homes[2])
    schedule.reverse_compute_at(written, together, preserve_unit_loops=True)
    schedule.parallel(together)
    schedule.vectorize(schedule.get_loops(written)[-1])
    for loop in inside:
        schedule.unroll(loop)
    initial = schedule.decompose_reduction(block, sums[0])
    *_, last = schedule.get_loops(initial)
    for loop in schedule.get_loops(initial)[1:-1]:
        schedule.unroll(loop)
    schedule.vectorize(last)
    schedule.tensorize(lanes[0], intrinsic)
    return schedule


def register_tile(found: Strategy, outer: Sequence[int], accumulators: int) -> list[int]:
    """Choose how many turns of each loop over outputs share registers.

    An element of a factor is used by all results of a tile along loops that it does not move in: of the tiles with so
    many results at most, the one that reads least for each multiplication.
    """
    embedding = found.embedding
    moves = [
        [
            any(loop == other for dimension in found.operands[embedding.operand(number)].dimensions
                for other, _ in dimension.loops)
            for number in range(2)
        ]
        for loop in outer
    ]  # fmt: skip
    # The innermost loop of those that only one factor moves in.
    chosen = [
        max((place for place, uses in enumerate(moves) if uses == pattern), default=None)
        for pattern in ([True, False], [False, True])
    ]
    best, least = [1] * len(outer), float("inf")
    options = [
        [1] if place is None else [size for size in divisors(found.loops[outer[place]].extent) if size <= accumulators]
        for place in chosen
    ]
    for rows, columns in product(*options):
        if rows * columns <= accumulators and (rows + columns) / (rows * columns) < least:
            least = (rows + columns) / (rows * columns)
            best = [1] * len(outer)
            for place, size in zip(chosen, (rows, columns), strict=True):
                if place is not None:
                    best[place] = size
    assert prod(best) <= accumulators
    return best
