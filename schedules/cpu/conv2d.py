"""Direct convolution in blocked layout: register tiles of output columns x output channel vectors."""

from __future__ import annotations

from dataclasses import dataclass

import tvm
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.tirx import PrimFunc
from tvm_ext.schedules.cpu.blocks import annotated_block, inline_epilogue, loop_extents
from tvm_ext.schedules.cpu.machine import Machine, machine_of
from tvm_ext.schedules.cpu.parallel import PARALLEL_FLOPS
from tvm_ext.schedules.rule import new_schedule


@dataclass(frozen=True)
class ConvShape:
    """Extents of one blocked convolution, bytes of one element, and how many rows of input one row of output needs."""

    batch: int
    out_chunks: int
    out_h: int
    out_w: int
    block_out: int
    in_channels: int
    kernel_h: int
    kernel_w: int
    input_row_bytes: int
    stride_h: int

    @property
    def flops(self) -> int:
        """Multiplications and additions."""
        outputs = self.batch * self.out_chunks * self.out_h * self.out_w * self.block_out
        return 2 * outputs * self.in_channels * self.kernel_h * self.kernel_w


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


def divisors(number: int) -> list[int]:
    """All divisors of a number, ascending."""
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]


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
            step = max(columns * vectors, 8, (columns + vectors) * 0.9) + 0.5
            cost = -(-width // columns) * step / vectors
            cost += 1e-3 * abs(columns - 4 * vectors)  # between equals the squarer tile needs fewer loads
            if cost < best_cost:
                best, best_cost = (columns, vectors), cost
    return best


def computed_width(width: int, chunks: int, machine: Machine) -> int:
    """Round an output width up to whole register tiles; see :func:`register_tile`."""
    columns, _ = register_tile(width, chunks, machine.vector_registers)
    return -(-width // columns) * columns


def conv_tile(shape: ConvShape, machine: Machine) -> ConvTile:
    """Choose register tile, rows of a task and division of channels, so that the slowest core has the least to do."""
    columns, vectors = register_tile(shape.out_w, shape.out_chunks, machine.vector_registers, exact=True)
    parallel = machine.cores > 1 and shape.flops >= PARALLEL_FLOPS
    groups = shape.out_chunks // vectors
    best, best_cost = (shape.out_h, 1), float("inf")
    for rows in divisors(shape.out_h):
        row_tasks = shape.out_h // rows
        input_bytes = ((rows - 1) * shape.stride_h + shape.kernel_h) * shape.input_row_bytes
        if rows > 1 and input_bytes > machine.l2 // 2:
            break
        for parts in divisors(groups):
            tasks = shape.batch * row_tasks * parts
            rounds = -(-tasks // machine.cores) if parallel else tasks
            work = rounds * rows * (groups // parts)
            # Every task copies its padded input once and walks over its weights once: few, large tasks are better.
            copies = rounds * (rows + shape.kernel_h) * 0.01 * groups / max(1, parts)
            overhead = rounds * ((rows + shape.kernel_h) * 0.05 + 0.2) + copies
            cost = work + overhead
            if cost < best_cost:
                best, best_cost = (rows, parts), cost
    return ConvTile(columns, vectors, best[0], best[1], parallel)


class Conv2D:
    """Schedule a blocked 2-D convolution with its padding and its element-wise epilogue.

    Parallel tasks take a band of rows and a part of the channels; each copies its padded input once. Inside, a register
    tile is accumulated over the whole reduction, and the epilogue is applied as the tile is stored.
    """

    name = "cpu.conv2d"

    def apply(self, func: PrimFunc, target: tvm.target.Target) -> Schedule | None:
        """Schedule ``func`` when it holds a blocked convolution."""
        schedule = new_schedule(func)
        conv = annotated_block(schedule, "conv2d")
        if conv is None:
            return None
        shape = _shape_of(schedule, conv)
        tile = conv_tile(shape, machine_of(target))
        store = inline_epilogue(schedule, conv)
        pad = annotated_block(schedule, "pad")
        _apply_tile(schedule, conv, store, pad, tile)
        return schedule


def _shape_of(schedule: Schedule, conv: SBlockRV) -> ConvShape:
    batch, out_chunks, out_h, out_w, block_out, in_chunks, kernel_h, kernel_w, block_in = loop_extents(schedule, conv)
    source = schedule.get(conv).reads[0].source
    width, row_chunks, block = int(source.shape[3]), int(source.shape[1]), int(source.shape[4])
    bytes_per_element = tvm.DataType(source.dtype).bits // 8
    stride_h = max(1, (int(source.shape[2]) - kernel_h) // max(1, out_h - 1)) if out_h > 1 else 1
    return ConvShape(
        batch, out_chunks, out_h, out_w, block_out, in_chunks * block_in, kernel_h, kernel_w,
        width * row_chunks * block * bytes_per_element, stride_h,
    )  # fmt: skip


def _apply_tile(schedule: Schedule, conv: SBlockRV, store: SBlockRV, pad: SBlockRV | None, tile: ConvTile) -> None:
    n, oc, h, w, lanes = schedule.get_loops(store)
    part, group, vector = schedule.split(oc, [tile.channel_parts, None, tile.vectors])
    band, row = schedule.split(h, [None, tile.rows])
    strip, column = schedule.split(w, [None, tile.columns])
    schedule.reorder(n, part, band, group, row, strip, vector, column, lanes)
    task = schedule.fuse(n, part, band)
    if tile.parallel:
        schedule.parallel(task)
    schedule.vectorize(lanes)
    schedule.compute_at(conv, strip, preserve_unit_loops=True)
    schedule.set_scope(conv, 0, "local")
    n, vector_in, row_in, column_in, lanes_in, ic, kh, kw, ii = schedule.get_loops(conv)[-9:]
    schedule.reorder(n, row_in, ic, kh, kw, ii, column_in, vector_in, lanes_in)
    schedule.vectorize(lanes_in)
    for loop in (column_in, vector_in, column, vector):
        schedule.unroll(loop)
    initial = schedule.decompose_reduction(conv, ic)
    *_, vector_init, column_init, lanes_init = schedule.get_loops(initial)
    for loop in (vector_init, column_init):
        schedule.unroll(loop)
    schedule.vectorize(lanes_init)
    if pad is not None:
        schedule.compute_at(pad, task, preserve_unit_loops=True)
        _vectorize_copy(schedule, schedule.get_loops(pad))


def _vectorize_copy(schedule: Schedule, loops: list[LoopRV]) -> None:
    """Vectorize the padding copy over the channel block, or over columns when the layout is plain."""
    if int(schedule.get(loops[-1]).extent) > 1:
        schedule.vectorize(loops[-1])
