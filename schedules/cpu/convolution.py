"""Direct convolution in blocked layout: register tiles of output columns x output channel vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Generic, TypeVar

import tvm
from tvm.ir import Expr
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import SBlockRV
from tvm.tirx import PrimFunc, Var

from tvm_ext.schedules.cpu.blocks import annotated_block, inline_epilogue, loop_extents
from tvm_ext.schedules.cpu.elementwise import vectorize_and_divide
from tvm_ext.schedules.cpu.machine import Machine, machine_of
from tvm_ext.schedules.cpu.weights import FETCHING_PASSES, MOST_PASSES, fetch_next_weights
from tvm_ext.schedules.divisors import divisors
from tvm_ext.schedules.knobs import divide
from tvm_ext.schedules.rule import is_prepared, new_schedule, prepared_for, prepared_schedule
from tvm_ext.schedules.simd.loops import mark_simd
from tvm_ext.schedules.simd.prefetch import mark_steps

Item = TypeVar("Item")


@dataclass(frozen=True)
class ConvShape:
    """What the choice of a tile depends on.

    Attributes
    ----------
    planes : int
        Output planes: batch times output depth.
    out_chunks, out_h, out_w, block_out : int
        Blocks of output channels, output rows and columns, channels in a block.
    reduction : int
        Products summed for one output.
    kernel_h, stride_h : int
        Taps and stride along the rows.
    input_row_bytes : int
        Bytes of all input channels of one row (times the depth of the kernel).
    """

    planes: int
    out_chunks: int
    out_h: int
    out_w: int
    block_out: int
    reduction: int
    kernel_h: int
    stride_h: int
    input_row_bytes: int

    @property
    def flops(self) -> int:
        """Multiplications and additions."""
        return 2 * self.planes * self.out_chunks * self.out_h * self.out_w * self.block_out * self.reduction


@dataclass(frozen=True)
class ConvTile:
    """How a convolution is cut up.

    Attributes
    ----------
    columns, vectors : int
        Register tile: ``columns`` output columns x ``vectors`` output-channel vectors.
    rows : int
        Output rows of one parallel task.
    channel_parts : int
        Into how many parts the output channels are divided among tasks.
    parallel : bool
        Whether the kernel is worth handing to the thread pool.
    """

    columns: int
    vectors: int
    rows: int
    channel_parts: int
    parallel: bool


def tile_cost(width: int, columns: int, vectors: int) -> float:
    """Cycles that a step of the reduction takes for a row of outputs and one vector of channels."""
    step = max(columns * vectors, 8, (columns + vectors) * 0.9) + 0.5
    return -(-width // columns) * step / vectors


def register_tile(width: int, chunks: int, registers: int, exact: bool = False) -> tuple[int, int]:
    """Choose the register tile (columns, vectors) of an output ``width`` columns x ``chunks`` vectors.

    One step of the reduction issues ``columns * vectors`` multiply-adds, ``columns`` broadcasts and ``vectors`` loads;
    the accumulators, the loaded vectors and one broadcast are live at once. Fewer than 8 accumulators wait for their
    own results. A width that is no multiple of ``columns`` is rounded up, and the columns too many are thrown away:
    a narrower last tile would need code of its own, whose registers LLVM allocates together with the main tile's.

    Parameters
    ----------
    exact : bool
        Only consider divisors of ``width``.
    """
    best, best_cost = (1, 1), float("inf")
    for vectors in (vectors for vectors in (1, 2, 3, 4) if chunks % vectors == 0):
        for columns in range(1, min(width, registers) + 1):
            if columns * vectors + vectors + 1 > registers - 1 or (exact and width % columns):
                continue
            cost = tile_cost(width, columns, vectors)
            cost *= 1 + 0.05 * (columns + vectors) / (columns * vectors)  # loads compete with multiply-adds
            if cost < best_cost:
                best, best_cost = (columns, vectors), cost
    return best


def computed_chunks(width: int, chunks: int, machine: Machine) -> int:
    """Round the number of output-channel blocks up where that makes much better register tiles; see
    :func:`register_tile`.

    Blocks are taken two to four at a time; few columns and an odd number of blocks leave accumulators waiting.
    """

    def cost(count: int) -> float:
        columns, vectors = register_tile(width, count, machine.vector_registers)
        return count * tile_cost(width, columns, vectors)

    return min(range(chunks, chunks + 4), key=lambda count: (cost(count) * (1 if count == chunks else 1.1), count))


def computed_width(width: int, chunks: int, machine: Machine) -> int:
    """Round an output width up to whole register tiles; see :func:`register_tile`."""
    columns, _ = register_tile(width, chunks, machine.vector_registers)
    return -(-width // columns) * columns


def conv_tile(shape: ConvShape, machine: Machine) -> ConvTile:
    """Choose register tile, rows of a task and division of channels, so that the slowest core has the least to do."""
    columns, vectors = register_tile(shape.out_w, shape.out_chunks, machine.vector_registers, exact=True)
    parallel = machine.divides(shape.flops)
    groups = shape.out_chunks // vectors
    best, best_cost = (shape.out_h, 1), float("inf")
    for rows in divisors(shape.out_h):
        row_tasks = shape.out_h // rows
        input_bytes = ((rows - 1) * shape.stride_h + shape.kernel_h) * shape.input_row_bytes
        if rows > 1 and input_bytes > machine.l2 // 2:
            break
        for parts in divisors(groups):
            tasks = shape.planes * row_tasks * parts
            rounds = -(-tasks // machine.cores) if parallel else tasks
            work = rounds * rows * (groups // parts)
            # Every task copies its padded input once and walks over its weights once: few, large tasks are better.
            copies = rounds * (rows + shape.kernel_h) * 0.01 * groups / max(1, parts)
            overhead = rounds * ((rows + shape.kernel_h) * 0.05 + 0.2) + copies
            cost = work + overhead
            if cost < best_cost:
                best, best_cost = (rows, parts), cost
    return ConvTile(columns, vectors, best[0], best[1], parallel)


class Convolution:
    """Schedule a blocked convolution (2-D, 3-D or transposed) with its padding and its element-wise epilogue.

    Parallel tasks take a band of rows and a part of the channels; each copies its padded input once. Inside, a register
    tile is accumulated over the whole reduction, and the epilogue is applied as the tile is stored.
    """

    name = "cpu.convolution"

    def apply(self, func: PrimFunc, target: tvm.target.Target, tunable: bool = False) -> Schedule | None:
        """Schedule ``func`` when it holds a blocked convolution."""
        schedule = prepared_schedule(self, func, target, tunable)
        if schedule is None:
            return None
        transposed = annotated_block(schedule, "conv_transpose")
        conv = transposed or annotated_block(schedule, "conv")
        shape = _shape_of(schedule, conv, _axes_of(loop_extents(schedule, conv), transposed is not None))
        store, rest = inline_epilogue(schedule, conv)
        pad = annotated_block(schedule, "pad")
        machine = machine_of(target)
        _apply_tile(schedule, conv, store, pad, conv_tile(shape, machine), transposed is not None, machine.pairs_loads)
        if rest is not None:
            vectorize_and_divide(schedule, rest, machine)
        return schedule

    def prepare(self, func: PrimFunc, _target: tvm.target.Target) -> PrimFunc | None:
        """Let the store of a transposed convolution run over phases and positions, as its convolution does."""
        if is_prepared(func, self.name):
            return func
        schedule = new_schedule(func)
        transposed = annotated_block(schedule, "conv_transpose")
        if transposed is not None:
            axes = _axes_of(loop_extents(schedule, transposed), True)
            _store_by_phase(schedule, inline_epilogue(schedule, transposed)[0], axes)
            # The new index expressions must be simplified before they are scheduled.
            return prepared_for(tvm.s_tir.transform.StmtSimplify()(schedule.mod)["main"], self.name)
        return prepared_for(func, self.name) if annotated_block(schedule, "conv") is not None else None


@dataclass(frozen=True)
class _Axes(Generic[Item]):
    """The loops of a convolution (or their extents) by what they run over."""

    planes: list[Item]
    out_chunk: Item
    row: Item
    column: Item
    lane: Item
    reduction: list[Item]


def _axes_of(items: Sequence[Item], transposed: bool, reduces: bool = True) -> _Axes[Item]:
    """Sort the loops around the convolution block, or (``reduces`` False) around the block that stores it."""
    reductions = 0
    if reduces:
        reductions = 4 if transposed else len(items) // 2  # input chunk, taps, input lane
    *spatial, row, column, lane = items[: len(items) - reductions]
    if transposed:  # batch, phase row, phase column, chunk
        *planes, out_chunk = spatial
    else:  # batch, chunk, depth
        planes, out_chunk = [spatial[0], *spatial[2:]], spatial[1]
    return _Axes(planes, out_chunk, row, column, lane, list(items[len(items) - reductions :]))


def _shape_of(schedule: Schedule, conv: SBlockRV, axes: _Axes[int]) -> ConvShape:
    source = schedule.get(conv).reads[0].source
    row_chunks, *input_spatial, block = (int(extent) for extent in source.shape[1:])
    _, *taps, _ = axes.reduction
    row_bytes = input_spatial[-1] * row_chunks * block * (tvm.DataType(source.dtype).bits // 8)
    return ConvShape(
        planes=prod(axes.planes),
        out_chunks=axes.out_chunk,
        out_h=axes.row,
        out_w=axes.column,
        block_out=axes.lane,
        reduction=prod(axes.reduction),
        kernel_h=taps[-2],
        stride_h=max(1, (input_spatial[-2] - taps[-2]) // max(1, axes.row - 1)),
        input_row_bytes=row_bytes * prod(taps[:-2]),
    )


def _store_by_phase(schedule: Schedule, store: SBlockRV, axes: _Axes[int]) -> None:
    _, scale_h, scale_w = axes.planes

    def by_phase(n: Var, c: Var, h: Var, w: Var, i: Var) -> list[Expr]:
        return [n, h % scale_h, w % scale_w, c, h // scale_h, w // scale_w, i]

    schedule.transform_block_layout(store, by_phase)


def _apply_tile(
    schedule: Schedule,
    conv: SBlockRV,
    store: SBlockRV,
    pad: SBlockRV | None,
    tile: ConvTile,
    transposed: bool,
    keeps_apart: bool,
) -> None:
    out = _axes_of(schedule.get_loops(store), transposed, reduces=False)
    part, group, vector = divide(schedule, out.out_chunk, [tile.channel_parts, None, tile.vectors], 4)
    band, row = divide(schedule, out.row, [None, tile.rows])
    strip, column = divide(schedule, out.column, [None, tile.columns], 28)
    schedule.reorder(*out.planes, part, band, group, row, strip, vector, column, out.lane)
    task = schedule.fuse(*out.planes, part, band)
    if tile.parallel:
        schedule.parallel(task)
    passes = tile.rows * int(schedule.get(strip).extent)
    is_plain = int(schedule.get(conv).iter_vars[-1].dom.extent) == 1
    fetches = passes > 1 and (passes <= MOST_PASSES or is_plain)
    if fetches:  # a kernel without such a loop is not looked at when vector code is made
        mark_simd(schedule, out.lane, int(schedule.get(out.lane).extent))
    else:
        schedule.vectorize(out.lane)
    schedule.compute_at(conv, strip, preserve_unit_loops=True)
    schedule.set_scope(conv, 0, "local")
    # The loops above the strip come first: task, group, row, strip.
    inner = _axes_of(schedule.get_loops(conv)[4:], transposed)
    schedule.reorder(*inner.planes, inner.row, *inner.reduction, inner.column, inner.out_chunk, inner.lane)
    schedule.vectorize(inner.lane)
    for loop in (inner.column, inner.out_chunk, column, vector):
        schedule.unroll(loop)
    if fetches:
        # Over channels in plain layout LLVM writes out the taps of a row, and keeps what one reads for the next one in
        # registers that it does not have; a fetch between them ends that.
        pays = passes <= FETCHING_PASSES or is_plain
        fetch_next_weights(schedule, conv, [row, strip], inner.reduction[0], pays)
    if keeps_apart:
        mark_steps(schedule, inner.reduction[0])
    initial = schedule.decompose_reduction(conv, inner.reduction[0])
    column_init, vector_init, lane_init = schedule.get_loops(initial)[-3:]
    for loop in (column_init, vector_init):
        schedule.unroll(loop)
    schedule.vectorize(lane_init)
    if pad is not None:
        schedule.compute_at(pad, task, preserve_unit_loops=True)
        innermost = schedule.get_loops(pad)[-1]
        if int(schedule.get(innermost).extent) > 1:
            schedule.vectorize(innermost)
