"""Statements between the steps of a reduction: fetches of weights, and what keeps the steps apart.

The weights of the next tiles are fetched into the L2 cache while those of this one are used again and again.

A product or convolution of few positions meets each weight a few times only. In a network the weights come from memory
or from the last cache, slower than they are used on the first pass over a group of chunks, while on the other passes
nothing is fetched at all. So each pass fetches a part of what the next group begins with.

A kernel that goes over a row several times reads the next one meanwhile: hardware that fetches ahead stops at the end
of a page, and is idle while a row that it has fetched is computed with.

before: ``for r in range(4):  # pass    for k in range(512):  # prefetch B    c[r, 0:4] += a[r, k] * B[4*p + 0:4, k]``
after:  ``for r in range(4):  for k in range(512):  prefetch(B[4*p + 4 + r, k]);  c[r, 0:4] += ...``
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir.prim import expr as prim
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import ExprRV, LoopRV

from tvm_ext.relax_utils import substitute
from tvm_ext.schedules.simd.imported import OPAQUE, PREFETCH, PREFETCH_NEAR, STEP
from tvm_ext.schedules.simd.vector import element_type
from tvm_ext.schedules.simd.widen import Widener, uses

PREFETCH_ATTRIBUTE = "tvm_ext.prefetch"
"""Annotation of the outermost loop of a reduction: 1 to fetch the next weights in it, 0 not to."""

OPERAND_ATTRIBUTE = "tvm_ext.prefetch_operand"
"""Annotation of the same loop: name of the tensor of weights, in which those of one reduction are contiguous."""

AHEAD_ATTRIBUTE = "tvm_ext.prefetch_part"
"""Annotation of the same loop: 1 if it is a part of a sum, whose next part has its weights right behind these."""

PASS_ATTRIBUTE = "tvm_ext.prefetch_pass"
"""Annotation of the loops in which the same weights are used again."""

SKIP_ATTRIBUTE = "tvm_ext.prefetch_skip"
"""Annotation of the same loop: elements of the tensor of weights between the last tile of a task and its next one."""

TILES_ATTRIBUTE = "tvm_ext.prefetch_tiles"
"""Annotation of the loop over the tiles of weights of a task that lie side by side."""

STEP_ATTRIBUTE = "tvm_ext.step"
"""Annotation of the same loop: 1 to keep the loads of one step of the reduction behind the step before."""

FORGET_ATTRIBUTE = "tvm_ext.forget"
"""Annotation of the same loop: 1 to load anew in every step what the step before has loaded; 2: and row by row."""

ROW_ATTRIBUTE = "tvm_ext.next_row"
"""Annotation of a loop made of vectors: a :class:`NextRow`, as text."""

NEAR_ATTRIBUTE = "tvm_ext.next_row_near"
"""Annotation of the same loop: 1 to fetch that row into the L1 cache."""

LINE = 64
"""Bytes of a cache line."""


@dataclass(frozen=True)
class NextRow:
    """What a loop over a row fetches of the next one.

    Attributes
    ----------
    operands : tuple of str
        Names of the tensors.
    distance : int
        Elements from a row to that, the next or one of the next few.
    size : int
        Bytes of an element.
    near : bool
        Whether it is fetched into the L1 cache, where that holds it beside the row that is computed with.
    """

    operands: tuple[str, ...]
    distance: int
    size: int
    near: bool = False

    def vectors(self, lanes: int) -> int:
        """Count the vectors of a line, of which one fetch is enough."""
        return max(1, LINE // (lanes * self.size))

    def fetches(self, statements: Sequence[Any], widener: Widener) -> list[Any]:
        """Make the statements that fetch what statements will load of the next row; ``widener`` says of which lanes."""
        found: dict[str, Any] = {}
        function = PREFETCH_NEAR if self.near else PREFETCH

        def note(load: Any) -> None:
            name = str(load.source.name)
            place = widener.linear(load.indices[0]) if name in self.operands and len(load.indices) == 1 else None
            if place is not None and place[1] == 1:
                found.setdefault(name, fetch(load.source, place[0] + self.distance, function))

        for statement in statements:
            tvm_ffi.structural_walk(statement, [(tvm.ir.TensorLoad, note)])
        return list(found.values())


def mark_next_row(schedule: Schedule, loop: LoopRV, row: NextRow) -> None:
    """Ask for a loop made of vectors to fetch what it will read in the next row."""
    schedule.annotate(loop, ROW_ATTRIBUTE, ",".join(map(str, (row.distance, row.size, *row.operands))))
    schedule.annotate(loop, NEAR_ATTRIBUTE, int(row.near))


def next_row(loop: Any) -> NextRow | None:
    """Return what :func:`mark_next_row` asked for."""
    annotations = loop.annotations or {}
    if ROW_ATTRIBUTE not in annotations:
        return None
    distance, size, *operands = str(annotations[ROW_ATTRIBUTE]).split(",")
    return NextRow(tuple(operands), int(distance), int(size), bool(int(annotations.get(NEAR_ATTRIBUTE, 0))))


def mark_steps(schedule: Schedule, reduction: LoopRV) -> None:
    """Ask for the steps of a reduction, whose outermost loop is given, to be kept apart.

    Where LLVM writes steps out, it brings loads of neighbouring addresses together (AArch64 has instructions for two of
    them), and keeps in registers that it does not have what one step reads for the next.
    """
    schedule.annotate(reduction, STEP_ATTRIBUTE, 1)


def mark_forgetful(schedule: Schedule, reduction: LoopRV, rows_apart: bool = False) -> None:
    """Ask for every step of a reduction, whose outermost loop is given, to load anew what it reads.

    Where windows overlap, LLVM writes out the taps of a row, and keeps what one reads for the next in registers that it
    does not have: accumulators are written to memory instead. It does the same where it loads a few lanes for each row
    of a tile before the first row is multiplied; with ``rows_apart`` those of a row are loaded behind the row before.
    """
    schedule.annotate(reduction, FORGET_ATTRIBUTE, 2 if rows_apart else 1)


def mark_prefetch(
    schedule: Schedule,
    passes: Sequence[LoopRV],
    reduction: LoopRV,
    operand: str,
    fetches: int | ExprRV,
    is_part: bool = False,
    tiles: LoopRV | None = None,
    skip: int = 0,
) -> None:
    """Ask for the next weights to be fetched in a reduction.

    Parameters
    ----------
    passes : sequence of LoopRV
        Loops around the reduction, outermost first, in all iterations of which it reads the same weights.
    reduction : LoopRV
        The outermost loop of the reduction.
    operand : str
        Name of the tensor of weights.
    fetches : int or ExprRV
        1 to do it, 0 not to.
    is_part : bool
        Whether the reduction is a part of a sum, after which its next part is computed and not the next tile.
    tiles : LoopRV, optional
        Loop over the tiles of weights that lie side by side.
    skip : int
        Elements that lie between the last of these and what the task needs next; they are another task's.
    """
    for loop in passes:
        schedule.annotate(loop, PASS_ATTRIBUTE, 1)
    if tiles is not None and skip:
        schedule.annotate(tiles, TILES_ATTRIBUTE, 1)
        schedule.annotate(reduction, SKIP_ATTRIBUTE, skip)
    schedule.annotate(reduction, OPERAND_ATTRIBUTE, operand)
    schedule.annotate(reduction, AHEAD_ATTRIBUTE, int(is_part))
    schedule.annotate(reduction, PREFETCH_ATTRIBUTE, fetches)


def insert_prefetches(func: tvm.tirx.PrimFunc) -> tvm.tirx.PrimFunc:
    """Put the fetches into the marked reductions of a kernel that has no blocks any more and flat buffers."""
    passes: list[Any] = []
    tiles: list[Any] = []

    def visit(loop: Any, mutator: Any) -> Any:
        annotations = loop.annotations or {}
        if int(annotations.get(PREFETCH_ATTRIBUTE, 0)):
            is_part = bool(int(annotations.get(AHEAD_ATTRIBUTE, 0)))  # schedules of old databases know of no parts
            behind = _behind_last(tiles, int(annotations.get(SKIP_ATTRIBUTE, 0)))
            return _fetch_in(loop, str(annotations[OPERAND_ATTRIBUTE]), passes, is_part, behind)
        if STEP_ATTRIBUTE in annotations:
            return _keep_apart(loop)
        if FORGET_ATTRIBUTE in annotations:
            return _forget(loop, rows_apart=int(annotations[FORGET_ATTRIBUTE]) == 2)
        around = passes if PASS_ATTRIBUTE in annotations else tiles if TILES_ATTRIBUTE in annotations else None
        if around is None:
            return mutator.default_mutate(loop)
        around.append(loop)
        loop = mutator.default_mutate(loop)
        around.pop()
        return loop

    return tvm_ffi.structural_mutate(func, [(tirx.For, visit)])


def _behind_last(tiles: Sequence[Any], skip: int) -> Any:
    """Give the elements to skip from this tile to the next: none but behind the last; a loop of one tile is no loop."""
    if not skip or not tiles:
        return skip
    loop = tiles[-1]
    return tirx.Select(loop.loop_var == loop.min + loop.extent - 1, tirx.const(skip, "int32"), tirx.const(0, "int32"))


def _fetch_in(reduction: Any, operand: str, passes: Sequence[Any], is_part: bool, behind: Any) -> Any:
    """Fetch in iteration ``i`` of the passes what the next reduction reads of its chunk ``i``.

    Of more passes than chunks each fetches a part of one: a core waits for few lines at a time, and more than memory
    brings meanwhile would keep it from its own loads. On two cores of Ice Lake products of 128 rows with 9 MiB of
    weights take 0.90 to 0.97 of the time so.

    Chunks of a whole reduction are contiguous, and so are the chunks of a group; those of a part lie a stride apart.
    Behind the last tile of a task, ``behind`` elements are another's.
    """
    loops, load = _weights(reduction, operand)
    steps = _steps(loops)
    if load is None or not steps:
        return reduction
    (position,) = load.indices
    end = position
    if isinstance(position, prim.Ramp):  # the operand of an instruction
        position, end = position.base, position.base + position.stride * (position.lanes - 1)
    first = {loop.loop_var: loop.min for loop in loops}
    last = {loop.loop_var: loop.min + loop.extent - 1 for loop in loops if loop.kind != tirx.ForKind.UNROLLED}
    analyzer = tvm.sym.Analyzer()
    chunk = analyzer.simplify(substitute(end, first | last) - substitute(position, first) + 1)
    chunks = [loop for loop in loops if loop.kind == tirx.ForKind.UNROLLED and uses(position, loop.loop_var)]
    vectors = prod(int(loop.extent) for loop in chunks)
    ahead = chunk
    if not is_part:
        stride = chunk
        ahead = chunk * vectors + behind
    elif len(chunks) == 1:
        step = substitute(position, {chunks[0].loop_var: chunks[0].min + 1})
        stride = analyzer.simplify(step - substitute(position, {chunks[0].loop_var: chunks[0].min}))
    else:
        return reduction
    index = substitute(position, {loop.loop_var: loop.min for loop in loops if loop not in steps})
    iteration: Any = tirx.const(0, "int32")
    for loop in passes:
        iteration = iteration * loop.extent + loop.loop_var
    count = prod(int(loop.extent) for loop in passes)
    share = 1 << (max(1, count // vectors).bit_length() - 1)
    if share > 1:  # a pass fetches a part of a chunk, each of its lines in several steps
        first_index = substitute(index, {loop.loop_var: loop.min for loop in steps})
        part = iteration % share * -(-chunk // share) + (index - first_index) // share
        index, iteration = first_index + part, iteration // share
    fetches = [
        fetch(load.source, analyzer.simplify(index + tirx.min(iteration + done, vectors - 1) * stride + ahead))
        for done in range(0, vectors, count)
    ]

    return _before_each(steps[-1], fetches, reduction)


def _keep_apart(reduction: Any) -> Any:
    steps = _steps(_weights(reduction, "")[0])
    return _before_each(steps[-1], [_apart()], reduction) if steps else reduction


def _forget(reduction: Any, rows_apart: bool) -> Any:
    """Hide from LLVM how the addresses of one step follow from those of another."""
    steps = _steps(_weights(reduction, "")[0])
    if not steps:
        return reduction

    def hide(loop: Any, mutator: Any) -> Any:
        if not loop.loop_var.same_as(steps[-1].loop_var):
            return mutator.default_mutate(loop)
        dtype = element_type(loop.loop_var)
        hidden = tirx.Var(f"{loop.loop_var.name}_hidden", dtype)
        body = substitute(loop.body, {loop.loop_var: hidden})
        value = tirx.call_extern(dtype, OPAQUE[dtype], loop.loop_var)
        return tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, tirx.SeqStmt([tirx.Bind(hidden, value), body]))

    hidden = tvm_ffi.structural_mutate(reduction, [(tirx.For, hide)])
    tile = [loop for loop in _weights(reduction, "")[0] if loop.kind == tirx.ForKind.UNROLLED]
    return _before_each(tile[0], [_apart()], hidden) if rows_apart and len(tile) > 1 else hidden


def _apart() -> Any:
    return tirx.Evaluate(tirx.call_extern("void", STEP))


def _steps(loops: Sequence[Any]) -> list[Any]:
    return [loop for loop in loops if loop.kind == tirx.ForKind.SERIAL]


def _before_each(step: Any, statements: Sequence[Any], reduction: Any) -> Any:
    """Put statements in front of the body of one of the loops of a reduction."""

    def insert(loop: Any, mutator: Any) -> Any:
        if loop.loop_var.same_as(step.loop_var):
            body = tirx.SeqStmt([*statements, loop.body])
            return tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, body)
        return mutator.default_mutate(loop)

    return tvm_ffi.structural_mutate(reduction, [(tirx.For, insert)])


def fetch(buffer: Any, index: Any, function: str = PREFETCH) -> Any:
    """Make the statement that fetches the line of an element; the element need not exist.

    ``function`` is one of :data:`tvm_ext.schedules.simd.imported.LOCALITIES`: into the L2 cache, if not given.
    """
    return tirx.Evaluate(tirx.call_extern("void", function, tirx.address_of(tirx.BufferLoad(buffer, [index]))))


def _weights(reduction: Any, operand: str) -> tuple[list[Any], Any]:
    """Find the loops of a reduction, outermost first, and where it loads from the operand."""
    loops: list[Any] = []
    node = reduction
    while isinstance(node, tirx.For) or (isinstance(node, tirx.IfThenElse) and node.else_case is None):
        if isinstance(node, tirx.For):
            loops.append(node)
        node = node.body if isinstance(node, tirx.For) else node.then_case
    loads: list[Any] = []

    def note(load: Any) -> None:
        if load.source.name == operand:
            loads.append(load)

    tvm_ffi.structural_walk(node, [(tvm.ir.TensorLoad, note)])
    return loops, loads[0] if loads else None
