"""Matrix products: register tiles of rows x column vectors over a packed right operand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import hypot

import tvm
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.tirx import PrimFunc

from tvm_ext.schedules.annotations import KERNEL_ATTRIBUTE, TILE_ATTRIBUTE
from tvm_ext.schedules.compute.bfloat16 import BITS
from tvm_ext.schedules.cpu.elementwise import vectorize_and_divide
from tvm_ext.schedules.cpu.intrinsics import bfloat16_intrinsic
from tvm_ext.schedules.cpu.machine import Machine, machine_of
from tvm_ext.schedules.cpu.product import ProductExtents, inline_neighbours, product_blocks, product_extents
from tvm_ext.schedules.cpu.transpose import transposed_axes
from tvm_ext.schedules.cpu.weights import fetch_next_weights
from tvm_ext.schedules.divisors import divisors
from tvm_ext.schedules.kernel.access import axes_of
from tvm_ext.schedules.kernel.blocks import annotated_block, loop_extents
from tvm_ext.schedules.knobs import divide
from tvm_ext.schedules.rule import Cost, is_prepared, new_schedule, prepared_schedule
from tvm_ext.schedules.simd.loops import mark_simd
from tvm_ext.schedules.simd.prefetch import mark_steps
from tvm_ext.schedules.simd.tile_marks import mark_tile

DIRECT_ROWS = 4
"""With so few rows a computed right operand is read where it lies: packing would cost more than the product."""

MOST_VECTORS = 8
"""Chunks of columns that are read side by side: as many streams as hardware prefetchers follow."""

TILE_CYCLES = 20
"""What starting and storing a register tile costs."""

COPIED_ROWS = 1.03
"""What it costs, relatively, to read the rows from a copy."""

NOT_HIDDEN = 0.5
"""Part of the time that columns take from a farther cache that hardware prefetching does not hide."""

TASK_CYCLES = 200
"""What beginning a task costs."""

WRITTEN_STEPS = (4, 3, 2)
"""Steps of a reduction that LLVM may write out: counters and pointers are then advanced once for all of them."""

CACHE_WAYS, PAGE = 8, 4096
"""Lines that an L1 cache holds of addresses a multiple of ``PAGE`` bytes apart."""

KEPT_OF_L2 = 0.9
"""Share of the L2 cache in which a tile of columns stays, beside the rows that it meets, in vectors of up to 256 bits.

On Zen 3 with 512 KiB, 4 x 3 that take 0.67 of it (128 x 3,072 x 768) were measured at 0.94 of the peak, 6 x 2
at 0.85, and 4 x 3 that take 0.87 (64 x 4,096 x 1,024) at 0.89 instead of 0.83. Vectors of 512 bits ask twice as much of
the cache: on Zen 5 8 x 3 for sums of 3,072 reach 0.95 of the rate of 8 x 2.
"""


@dataclass(frozen=True)
class MatmulTask:
    """How a product is divided.

    Attributes
    ----------
    row_parts, column_parts : int
        Into how many parts the row tiles and the column tiles are divided; a task computes one part of each.
    parallel : bool
        Whether the kernel is worth handing to the thread pool.
    block_tiles : int
        Row tiles that meet a tile of columns before the next one is begun.
    """

    row_parts: int
    column_parts: int
    parallel: bool
    block_tiles: int


def register_tile(rows: int, chunks: int, reduction: int, row_bytes: int, machine: Machine) -> tuple[int, int]:
    """Choose the register tile (rows, vectors) of a product of ``rows`` rows and ``chunks`` column vectors.

    One step of the reduction issues ``rows * vectors`` multiply-adds, ``rows`` broadcasts and ``vectors`` loads; the
    accumulators, the loaded vectors and one broadcast are live at once. Fewer than 8 accumulators wait for their own
    results, and fewer than 12 now and then. What is no multiple of the tile is rounded up, and what is computed too
    much is thrown away.

    Parameters
    ----------
    row_bytes : int
        Distance of two rows of the left operand in bytes; rows at multiples of 4 KiB share one set of the L1 cache.
    """
    tiles = register_tiles(rows, chunks, reduction, row_bytes, machine)
    # Of equals the one of fewest vectors.
    return min(tiles, key=lambda tile: tile_cost(rows, chunks, reduction, tile, machine), default=(1, 1))


def register_tiles(rows: int, chunks: int, reduction: int, row_bytes: int, machine: Machine) -> list[tuple[int, int]]:
    """List for each number of vectors the best register tile that has so many; see :func:`register_tile`."""
    most_rows = CACHE_WAYS if row_bytes and row_bytes % PAGE == 0 else machine.vector_registers
    found = []
    for vectors in range(1, min(chunks, MOST_VECTORS) + 1):
        costs = {
            (tile_rows, vectors): tile_cost(rows, chunks, reduction, (tile_rows, vectors), machine)
            for tile_rows in range(1, min(rows, most_rows) + 1)
        }
        tile = min(costs, key=lambda tile: costs[tile], default=None)
        if tile is not None and costs[tile] < float("inf"):
            found.append(tile)
    return found


def tile_cost(rows: int, chunks: int, reduction: int, tile: tuple[int, int], machine: Machine) -> float:
    """Estimate the cycles that a product takes for each step of its reduction with a register tile (rows, vectors).

    Infinite for a tile that the registers cannot hold.
    """
    tile_rows, vectors = tile
    products = 0 if machine.fuses else 1  # one of them waits in a register to be added
    if tile_rows * vectors + vectors + 1 + products > machine.vector_registers:
        return float("inf")
    multiply_adds, loads = tile_rows * vectors, tile_rows + vectors
    step: float = max(multiply_adds + machine.broadcasts(tile_rows), loads, 8)
    step_bytes = vectors * machine.vector_bits // 8
    is_far = step_bytes * reduction > machine.l1 // 2
    if is_far:  # columns that come from a farther cache for every row tile
        # Of one tile of rows, columns are met once, and the next ones are fetched meanwhile.
        is_kept = rows > tile_rows and machine.vector_bits < 512
        held, room = (step_bytes + 4 * tile_rows, KEPT_OF_L2) if is_kept else (step_bytes, 1 / 2)
        stays = held * reduction <= machine.l2 * room
        bandwidth = machine.l2_bandwidth if stays else machine.l3_bandwidth
        step = hypot(step, machine.slots(step_bytes / bandwidth) * NOT_HIDDEN)
    step += machine.excess_loads(loads, multiply_adds, vectors if is_far else 0)
    step += 0.25 + 0.15 * max(0, 12 - multiply_adds)
    step += (TILE_CYCLES + multiply_adds) / reduction
    tiles = -(-rows // tile_rows)
    cost = tiles * -(-chunks // vectors) * step
    cost *= 1 + 0.15 * loads / multiply_adds  # loads compete with multiply-adds
    return COPIED_ROWS * cost + tiles * tile_rows if rows % tile_rows else cost


def matmul_task(extents: ProductExtents, tile: tuple[int, int], machine: Machine) -> MatmulTask:
    """Choose the division into tasks and their order, so that the slowest core is done first.

    A task goes through all of its columns for every tile of rows, or through all of its rows for every tile of columns.
    """
    tile_rows, vectors = tile
    row_tiles, column_tiles = extents.rows // tile_rows, extents.chunks // vectors
    parallel = machine.divides(extents.flops)
    best, best_cost = MatmulTask(1, 1, False, 1), float("inf")
    for row_parts in divisors(row_tiles):
        for column_parts in divisors(column_tiles):
            is_shared = parallel and extents.batch * row_parts * column_parts > 1
            for block_tiles in (1, row_tiles // row_parts):
                task = MatmulTask(row_parts, column_parts, is_shared, block_tiles)
                cost = task_slots(extents, tile, task, machine)
                if cost < best_cost:
                    best, best_cost = task, cost
    return best


def task_slots(
    extents: ProductExtents, tile: tuple[int, int], task: MatmulTask, machine: Machine, waste: float = 1.0
) -> float:
    """Estimate what a division costs the slowest core, in multiply-adds of vectors that could be issued meanwhile.

    What a task goes through again and again is read from the L2 cache if it fits there, and from the last cache or from
    memory each time if it does not. Columns and copied rows are packed once a task.

    Parameters
    ----------
    waste : float
        How many times as long as its multiply-adds a register tile takes.
    """
    tile_rows, vectors = tile
    rows = extents.rows // tile_rows // task.row_parts
    columns = extents.chunks // vectors // task.column_parts
    k, size = extents.reduction, extents.bytes_per_element
    row_tile_bytes, column_tile_bytes = tile_rows * k * size, vectors * extents.lanes * k * size

    def byte_slots(operand: int) -> float:
        """Slots in which a byte of an operand of so many bytes arrives from beyond the L2 cache."""
        return machine.slots(1 / (machine.l3_bandwidth if operand <= machine.l3 // 2 else machine.weight_bandwidth))

    tasks = extents.batch * task.row_parts * task.column_parts
    rounds = -(-tasks // machine.cores) if task.parallel else tasks
    row_bytes, column_bytes = rows * row_tile_bytes, columns * column_tile_bytes
    work: float = waste * rows * columns * (k * max(tile_rows * vectors, 8) + TILE_CYCLES + tile_rows * vectors)
    if extents.packs_columns:
        work += columns * vectors * k * 6
    if extents.copies_rows:
        work += rows * tile_rows * k / extents.lanes * 3
    columns_stay = column_bytes + row_tile_bytes <= machine.l2 // 2
    # The rows of a block meet one tile of columns after the other.
    rows_stay = task.block_tiles * row_tile_bytes + 2 * column_tile_bytes <= machine.l2 * 3 // 4
    rows_once = row_bytes * byte_slots(extents.batch * extents.rows * k * size)
    columns_once = column_bytes * byte_slots(extents.batch * extents.chunks * extents.lanes * k * size)
    moved = columns_once * (1 if columns_stay else rows // task.block_tiles)
    moved += rows_once * (1 if rows_stay or task.block_tiles == 1 else columns)
    if extents.packs_columns:  # by this task, so that they are in the L2 cache at best
        again, times = (column_bytes, rows) if task.block_tiles == 1 else (row_bytes, columns)
        moved += times * again * machine.slots(1 / machine.l2_bandwidth) * NOT_HIDDEN if again > machine.l1 // 2 else 0
    return rounds * (hypot(work, moved) + TASK_CYCLES)


def division_cost(extents: ProductExtents, tile: tuple[int, int], task: MatmulTask, machine: Machine) -> float:
    """Estimate any division, also one that the rule does not choose: as :func:`task_slots`, with what a tile wastes.

    Infinite for a tile that the registers cannot hold.
    """
    tile_rows, vectors = tile
    steps = tile_cost(extents.rows, extents.chunks, extents.reduction, tile, machine)
    busy = -(-extents.rows // tile_rows) * -(-extents.chunks // vectors) * max(tile_rows * vectors, 8)
    return task_slots(extents, tile, task, machine, steps / busy)


class Matmul:
    """Schedule a matrix product with the packing of its operands and its element-wise epilogue.

    A task takes some of the columns and some of the rows. Inside, a register tile is accumulated over the whole
    reduction, and the epilogue is applied as the tile is stored.
    """

    name = "cpu.matmul"

    def apply(self, func: PrimFunc, target: tvm.target.Target, tunable: bool = False) -> Schedule | None:
        """Schedule ``func`` when it holds a matrix product over a packed right operand."""
        schedule = prepared_schedule(self, func, target, tunable)
        if schedule is not None:
            _schedule(schedule, machine_of(target))
        return schedule

    def cost(self, func: PrimFunc, target: tvm.target.Target) -> Cost | None:
        """Estimate divisions of rows and columns, the first knobs; of one of them where the other has no knob."""
        schedule = prepared_schedule(self, func, target)
        extents = None if schedule is None else product_extents(schedule)
        if schedule is None or extents is None:
            return None
        machine = machine_of(target)
        product, store, _ = product_blocks(schedule)
        tile = tile_rows, vectors = _annotated_tile(schedule, product)
        own = matmul_task(extents, tile, machine)
        *_, row, column = (int(extent) for extent in loop_extents(schedule, store))
        has_rows = row % (own.row_parts * own.block_tiles * tile_rows) == 0
        has_columns = -(-column // extents.lanes) % (own.column_parts * vectors) == 0

        def estimate(factors: Sequence[Sequence[int]]) -> float:
            rows = factors[0] if has_rows else (own.row_parts, 1, own.block_tiles, tile_rows)
            columns = factors[-1] if has_columns else (own.column_parts, 1, vectors)
            task = MatmulTask(rows[0], columns[0], own.parallel, rows[2])
            return division_cost(extents, (rows[-1], columns[-1]), task, machine)

        return (has_rows + has_columns, estimate) if has_rows or has_columns else None

    def prepare(self, func: PrimFunc, _target: tvm.target.Target) -> PrimFunc | None:
        """Inline what is fused to the product, and let the block that stores it walk over batch, rows and columns."""
        if is_prepared(func, self.name):
            return func
        schedule = new_schedule(func)
        extents = product_extents(schedule)
        if extents is None:
            return None
        pack = annotated_block(schedule, "pack_columns")
        if pack is not None and extents.rows <= DIRECT_ROWS and _reads_in_order(schedule, pack):
            schedule.compute_inline(pack)
        return inline_neighbours(schedule, self.name)


def _schedule(schedule: Schedule, machine: Machine) -> None:
    product, store, rest = product_blocks(schedule)
    row_copy, pack = annotated_block(schedule, "pack_rows"), annotated_block(schedule, "pack_columns")
    extents = product_extents(schedule)
    assert extents is not None
    tile = _annotated_tile(schedule, product)
    task = matmul_task(extents, tile, machine)
    fetches = pack is None and task.block_tiles > 1
    apply_tile(schedule, product, store, row_copy, pack, extents, tile, task, machine.pairs_loads, fetches)
    if rest is not None:
        vectorize_and_divide(schedule, rest, machine)


def _annotated_tile(schedule: Schedule, product: SBlockRV) -> tuple[int, int]:
    """Read the register tile (rows, vectors) that the layout of the operands was made for."""
    rows, vectors = (int(extent) for extent in schedule.get(product).annotations[TILE_ATTRIBUTE])
    return rows, vectors


def _reads_in_order(schedule: Schedule, pack: SBlockRV) -> bool:
    """Whether the lanes of a packed vector lie side by side in the operand, so that it can be read unpacked."""
    if not isinstance(schedule.get(pack).body.value, tvm.ir.TensorLoad):
        return False  # columns are filled up with zeros
    strides = axes_of(schedule, pack).accesses[0].strides
    return strides is not None and strides[-1] == 1


def apply_tile(
    schedule: Schedule,
    product: SBlockRV,
    store: SBlockRV,
    row_copy: SBlockRV | None,
    pack: SBlockRV | None,
    extents: ProductExtents,
    tile: tuple[int, int],
    task: MatmulTask,
    keeps_apart: bool,
    fetches: bool,
    skip: int = 0,
) -> None:
    """Divide a product, whose stored result has a loop over batches, one over rows and one over columns, innermost.

    With ``fetches`` the columns of the next tile are fetched while those of this one are multiplied; ``skip`` elements
    of the columns lie between the last tile of a batch and the first one of the next.
    """
    tile_rows, vectors = tile
    *_, batch, row, column = schedule.get_loops(store)
    whole_vectors = int(schedule.get(column).extent) % extents.lanes == 0
    row_part, row_block, row_tile, row = divide(schedule, row, [task.row_parts, None, task.block_tiles, tile_rows], 28)
    chunk, lane = schedule.split(column, [None, extents.lanes])
    column_part, column_tile, vector = divide(schedule, chunk, [task.column_parts, None, vectors], MOST_VECTORS)
    schedule.reorder(batch, column_part, row_part, row_block, column_tile, row_tile, row, vector, lane)
    part = schedule.fuse(batch, column_part, row_part)
    if task.parallel:
        schedule.parallel(part)
    if whole_vectors and not fetches:
        schedule.vectorize(lane)
    else:
        mark_simd(schedule, lane, extents.lanes)
    for loop in (row, vector):
        schedule.unroll(loop)
    dotted = accumulate_in_registers(schedule, product, row_tile, fetches, keeps_apart, column_tile, skip)
    if row_copy is not None:
        copy_at(schedule, row_copy, row_block, extents.lanes)
    if pack is not None:
        copy_at(schedule, pack, part, extents.lanes)
    if dotted is not None:  # last: what becomes opaque by it must still be seen before
        schedule.tensorize(dotted, bfloat16_intrinsic(extents.lanes))


def accumulate_in_registers(
    schedule: Schedule,
    product: SBlockRV,
    tile: LoopRV,
    fetches: bool = False,
    keeps_apart: bool = False,
    columns: LoopRV | None = None,
    skip: int = 0,
) -> LoopRV | None:
    """Compute a product in each iteration of the loop ``tile`` over its stored tiles, in registers.

    With ``fetches`` all iterations use the same columns, and those of the next ones are fetched meanwhile. With
    ``keeps_apart`` some steps of the reduction are written out, whose loads do not mix. Behind the last iteration of
    ``columns``, the loop over tiles of columns, ``skip`` elements are another task's.

    Returns
    -------
    LoopRV or None
        Of a product of bfloat16 the loop that is still to become :func:`bfloat16_intrinsic`.
    """
    schedule.compute_at(product, tile, preserve_unit_loops=True)
    schedule.set_scope(product, 0, "local")
    pairs = str(schedule.get(product).reads[0].source.dtype) == BITS
    row, vector, lane, k, *place = schedule.get_loops(product)[-5 if pairs else -4 :]
    schedule.reorder(k, row, vector, lane, *place)
    if not pairs:
        schedule.vectorize(lane)
    if keeps_apart:
        steps = next((steps for steps in WRITTEN_STEPS if int(schedule.get(k).extent) % steps == 0), 1)
        k, _ = schedule.split(k, [None, steps])
        mark_steps(schedule, k)
    for loop in (row, vector):
        schedule.unroll(loop)
    if fetches:
        fetch_next_weights(schedule, product, [tile], k, True, tiles=columns, skip=skip)
    initial = schedule.decompose_reduction(product, k)
    *_, row_init, vector_init, lane_init = schedule.get_loops(initial)
    schedule.unroll(row_init)
    schedule.unroll(vector_init)
    schedule.vectorize(lane_init)
    return lane if pairs else None


def copy_at(schedule: Schedule, copy: SBlockRV, loop: LoopRV, lanes: int) -> None:
    """Copy what an iteration of ``loop`` needs, in vectors; through registers if the operand lies the other way."""
    pair = transposed_axes(axes_of(schedule, copy))
    # Rows that fill up the last tile are zero: vectors along the rows would be loaded in part, which tiles cannot do.
    filled_along_loads = schedule.get(copy).annotations[KERNEL_ATTRIBUTE] == "pack_rows" and not isinstance(
        schedule.get(copy).body.value, tvm.ir.TensorLoad
    )
    schedule.compute_at(copy, loop, preserve_unit_loops=True)
    *_, outer, inner = schedule.get_loops(copy)
    mark_simd(schedule, inner, lanes)
    rounds = schedule.get(copy).writes[0].source.dtype != schedule.get(copy).reads[0].source.dtype
    if pair is not None and not filled_along_loads and not rounds:
        mark_tile(schedule, outer, lanes)
