"""Embeddings as sketches of MetaSchedule: a schedule rule beside others, or a space that has it.

``ms.tune_tir(mod, target, ..., space=embedding_space("my.intrinsic"))`` tunes with a tensor intrinsic of the user's:
how it fits an operator is found, operands are laid out for it, and how the loops around it are divided is sampled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import tvm
from tvm.ir.utils import derived_object
from tvm.s_tir import Schedule, ScheduleError, TensorIntrin
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvm_ext.embedding.check_apart import check_apart
from tvm_ext.embedding.dataflow import Access
from tvm_ext.embedding.embedding import Embedding
from tvm_ext.embedding.program import STRICT, relaxed
from tvm_ext.embedding.ranking import naive_waste
from tvm_ext.embedding.read import instruction_dataflow, read_dataflow
from tvm_ext.embedding.solver import solve
from tvm_ext.embedding.stored_sketch import Around, copy_in_parallel, lay_out_anew
from tvm_ext.errors import EmbeddingError
from tvm_ext.schedules.instructions.instruction import Instruction
from tvm_ext.schedules.instructions.mirrored import mirrored_intrinsic
from tvm_ext.schedules.instructions.registered import tensor_intrinsic

MOST_SKETCHES = 4
"""Embeddings of one instruction that become sketches: those that run it least often."""

LARGEST_TILE = 16
"""Turns of one loop that may share registers."""


def embedding_space(*instructions: Instruction | str) -> ms.space_generator.PostOrderApply:
    """Make a space of schedules around instructions, for ``space=`` of MetaSchedule's functions that tune on a CPU.

    Parameters
    ----------
    *instructions : Instruction or str
        Rows, or names of registered tensor intrinsics.

    Returns
    -------
    PostOrderApply
        Blocks that no instruction fits are tiled as TVM does.

    Raises
    ------
    EmbeddingError
        If there is none, a name is not registered, no code is made of a row, or what an intrinsic means cannot be
        read. When tuning
        begins, if meaning and implementation disagree on random data, or the target lacks what a row requires.
    """
    stock = ms.schedule_rule.ScheduleRule.create("llvm")
    first = next(at for at, rule in enumerate(stock) if isinstance(rule, ms.schedule_rule.MultiLevelTiling))
    return ms.space_generator.PostOrderApply(
        sch_rules=[*stock[:first], embedding_rule(*instructions), *map(_unless_embedded, stock[first:])],
        postprocs="llvm",
        mutator_probs="llvm",
    )


def embedding_rule(*instructions: Instruction | str) -> ms.schedule_rule.ScheduleRule:
    """Make the schedule rule alone; parameters and errors are those of :func:`embedding_space`."""
    if not instructions:
        raise EmbeddingError("there is no instruction to embed; give rows, or names of registered tensor intrinsics")
    rows = tuple(_row(instruction) for instruction in instructions)
    for row in rows:
        instruction_dataflow(row)
    return _EmbeddingRule(rows)


def _unless_embedded(rule: ms.schedule_rule.ScheduleRule) -> ms.schedule_rule.ScheduleRule:
    """Keep the rule that has TVM parallelise and vectorise a whole kernel from sketches that say themselves how."""
    return _Elsewhere(rule) if isinstance(rule, ms.schedule_rule.ParallelizeVectorizeUnroll) else rule


def _row(instruction: Instruction | str) -> Instruction:
    """Give the row of an instruction; of a tensor intrinsic its description is its meaning."""
    if isinstance(instruction, Instruction):
        tensor_intrinsic(instruction)  # says so if no code is made of it
        return instruction
    if not isinstance(instruction, str):
        raise EmbeddingError(
            f"{type(instruction).__name__} is no instruction; give rows, or names of registered tensor intrinsics, one "
            "by one"
        )
    intrinsic = TensorIntrin.get(instruction, allow_missing=True)
    if intrinsic is None:
        raise EmbeddingError(
            f"there is no tensor intrinsic {instruction!r}; register it with tvm.s_tir.TensorIntrin.register first"
        )
    description = intrinsic.desc
    scopes = [str(param.scope()) for param in description.params]
    return Instruction(
        instruction, lambda _scopes: description, instruction, None, (), (scopes[0], scopes[1], scopes[2]), 1.0
    )


def _compare(row: Instruction, target: tvm.target.Target) -> None:
    """Refuse an instruction whose implementation does something else than its meaning says."""
    intrinsic = TensorIntrin.get(row.name if row.emit is None else tensor_intrinsic(row))
    check_apart(row.name, row.implementation, intrinsic.desc, intrinsic.impl, target, row.requires, row.tiles)


@derived_object
class _EmbeddingRule(ms.schedule_rule.PyScheduleRule):
    """Offers a sketch for each way in which an instruction fits a block; others stay as they are."""

    def __init__(self, rows: Sequence[Instruction]) -> None:
        super().__init__()
        self.rows = rows

    def _initialize_with_tune_context(self, context: ms.TuneContext) -> None:
        for row in self.rows if context.target is not None else ():
            _compare(row, context.target)

    def apply(self, sch: Schedule, block: SBlockRV) -> list[Schedule]:
        found = [
            sketch
            for row in self.rows
            for embedding in _embeddings(sch, block, row)
            if (sketch := _sketch(sch.copy(), block, embedding, row)) is not None
        ]
        return found or [sch]

    def clone(self) -> ms.schedule_rule.ScheduleRule:
        return _EmbeddingRule(self.rows)


@derived_object
class _Elsewhere(ms.schedule_rule.PyScheduleRule):
    """Applies a rule to schedules without an instruction inside."""

    def __init__(self, rule: ms.schedule_rule.ScheduleRule) -> None:
        super().__init__()
        self.rule = rule

    def _initialize_with_tune_context(self, context: ms.TuneContext) -> None:
        self.rule._initialize_with_tune_context(context)

    def apply(self, sch: Schedule, block: SBlockRV) -> list[Schedule]:
        if any(str(instruction.kind.name) == "Tensorize" for instruction in sch.trace.insts):
            return [sch]
        return list(self.rule.apply(sch, block))

    def clone(self) -> ms.schedule_rule.ScheduleRule:
        return _Elsewhere(self.rule.clone())


def _embeddings(sch: Schedule, block: SBlockRV, row: Instruction) -> list[Embedding]:
    """Search embeddings: strict ones and, where these would pad or there are none, relaxed ones."""
    try:
        operator = read_dataflow(sch.mod["main"], str(sch.get(block).name_hint))
    except EmbeddingError:
        return []
    if len(operator.axes) != len(sch.get_loops(block)):  # an axis that an index divides is two
        return []
    instruction = instruction_dataflow(row)
    try:
        found = solve(operator, instruction, [STRICT, replace(STRICT, swap=True)])
    except EmbeddingError:
        try:
            found = solve(operator, instruction, relaxed(waste=naive_waste(operator, instruction), swap=True))
        except EmbeddingError:
            return []
    return sorted(found, key=_effort)[:MOST_SKETCHES]


def _effort(embedding: Embedding) -> tuple[int, int, int]:
    """Order embeddings: by what they compute, padding included, then plain ones first."""
    parts = [digit for digits in embedding.digits for digit in digits]
    return embedding.macs, len(parts), sum(digit.stride > 1 for digit in parts)


def _is_plain(embedding: Embedding) -> bool:
    """Whether each axis of the instruction is neighbours of one axis of the block, and nothing is padded."""
    extents = tuple(axis.extent for axis in embedding.operator.axes)
    alone = all(len(digits) == 1 and digits[0].stride == 1 for digits in embedding.digits)
    axes = [digit.axis for digits in embedding.digits for digit in digits if digit.size > 1]
    return alone and len(set(axes)) == len(axes) and embedding.padded == extents


def _sketch(sch: Schedule, block: SBlockRV, embedding: Embedding, row: Instruction) -> Schedule | None:
    """Lay operands out, divide the loops, and put the instruction inside; None where that cannot be scheduled."""
    plain = sch.copy() if _is_plain(embedding) else None
    for attempt, place in ((plain, _plain_layout), (sch, lay_out_anew)):
        if attempt is None:
            continue
        try:
            intrinsic = row.name if row.emit is None else tensor_intrinsic(row)
            if embedding.swapped:
                intrinsic = mirrored_intrinsic(intrinsic)
            _divide(attempt, block, place(attempt, block, embedding, row), intrinsic)
        except (EmbeddingError, ScheduleError):
            continue
        return attempt
    return None


def _plain_layout(sch: Schedule, block: SBlockRV, embedding: Embedding, row: Instruction) -> Around:
    """Copy factors in the layout that has the lanes together, unless they lie so, and split the loops."""
    copies = [copy for number in range(2) if (copy := _lay_out(sch, block, embedding, number, row)) is not None]
    result = sch.cache_write(block, 0, row.homes[2])
    _transform(sch, block, ("write", 0), embedding, 2)
    for copy in copies:
        copy_in_parallel(sch, copy)
    operator, lanes = embedding.operator, {}
    spatial: list[tuple[LoopRV, tuple[bool, bool]]] = []
    sums: list[LoopRV] = []
    for at, (axis, loop) in enumerate(zip(operator.axes, sch.get_loops(block), strict=True)):
        outer = loop
        for number, digit in embedding.on_axis(at):
            outer, lanes[number] = sch.split(loop, [None, digit.size])
        if axis.reduces:
            sums.append(outer)
        else:
            left, right = (access.uses(at) for access in operator.inputs)
            spatial.append((outer, (left, right)))
    return Around(result, spatial, sums, [lanes[number] for number in range(len(embedding.digits))])


def _lay_out(sch: Schedule, block: SBlockRV, embedding: Embedding, number: int, row: Instruction) -> SBlockRV | None:
    """Copy a factor of the instruction to where and as the instruction reads it, unless it lies there."""
    access = embedding.operator.operands[embedding.operand(number)]
    if access.dtype != embedding.instruction.operands[number].dtype:
        raise EmbeddingError(f"{access.tensor} is of another type than {row.name} takes")
    reads = [str(region.source.name) for region in sch.get(block).reads]
    alike = [place for place, name in enumerate(reads) if name == access.tensor]
    place = alike[0] if len(alike) == 1 else embedding.operand(number)
    sizes = _lanes(embedding, number)
    in_place = not sizes or (len(sizes) == 1 and sizes[0][0] == len(access.shape) - 1)
    if in_place and row.homes[number] == "global":
        return None
    copy = sch.cache_read(block, place, row.homes[number])
    _transform(sch, block, ("read", place), embedding, number)
    return copy


def _lanes(embedding: Embedding, number: int) -> list[tuple[int, int]]:
    """List the dimensions of an operand that lie on axes of the instruction, with sizes, in the instruction's order."""
    access: Access = embedding.operator.operands[embedding.operand(number)]
    found = []
    for index in embedding.instruction.operands[number].index:
        for axis in (at for at, step in enumerate(index) if step):
            (digit,) = embedding.digits[axis]
            moves = [at for at, step in enumerate(access.column(digit.axis)) if step]
            others = [step for at in moves for other, step in enumerate(access.index[at]) if other != digit.axis]
            if len(moves) != 1 or any(others) or access.index[moves[0]][digit.axis] != 1:
                raise EmbeddingError(f"{access.tensor} is read along a window")
            found.append((moves[0], digit.size))
    return found


def _transform(sch: Schedule, block: SBlockRV, buffer: tuple[str, int], embedding: Embedding, number: int) -> None:
    lanes = _lanes(embedding, number)
    sizes = dict(lanes)
    if len(sizes) < len(lanes):
        raise EmbeddingError("two axes of the instruction lie on one dimension")

    def index_map(*place: Any) -> list[Any]:
        outer = [part // sizes[at] if at in sizes else part for at, part in enumerate(place)]
        return [*outer, *(place[at] % size for at, size in lanes)]

    sch.transform_layout(block, buffer, index_map)


def _divide(sch: Schedule, block: SBlockRV, around: Around, intrinsic: str) -> None:
    """Divide the loops around the instruction, as a tuner samples it: tasks, turns, sums, a tile in registers."""
    tiled = [
        max((at for at, (_, uses) in enumerate(around.spatial) if uses == wanted), default=-1)
        for wanted in ((True, False), (False, True))
    ]
    tasks, turns, tile = [], [], []
    for at, (loop, _) in enumerate(around.spatial):
        levels = 3 if at in tiled else 2
        parts = sch.split(loop, sch.sample_perfect_tile(loop, n=levels, max_innermost_factor=LARGEST_TILE))
        tasks.append(parts[0])
        turns.append(parts[1])
        tile += parts[2:]
    summed = [sch.split(loop, sch.sample_perfect_tile(loop, n=2, max_innermost_factor=64)) for loop in around.sums]
    outer_sums, inner_sums = [part[0] for part in summed], [part[1] for part in summed]
    sch.reorder(*tasks, *turns, *outer_sums, *inner_sums, *tile, *around.lanes)
    task = sch.fuse(*tasks)
    sch.parallel(task)
    sch.reverse_compute_at(around.result, turns[-1], preserve_unit_loops=True)
    for loop in tile:
        sch.unroll(loop)
    if outer_sums:
        initial = sch.decompose_reduction(block, outer_sums[0])
        *_, last = sch.get_loops(initial)
        sch.vectorize(last)
    sch.tensorize(around.lanes[0], intrinsic)
