"""Products on ordinary arithmetic: tiles in shared memory, a part of the tile in the registers of each thread."""

from __future__ import annotations

import tvm
from tvm.s_tir import Schedule, ScheduleError
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.tirx import IntImm, PrimFunc

from tvm_ext.schedules.cuda.blocks import bind_grid, extent
from tvm_ext.schedules.cuda.elementwise import bind_flat
from tvm_ext.schedules.cuda.machine import GpuMachine, machine_of
from tvm_ext.schedules.cuda.open_extents import OPEN_ROWS
from tvm_ext.schedules.cuda.product import Product, as_matrices, find_product, inline_behind, inline_into
from tvm_ext.schedules.cuda.product_tile import Tile, arithmetic_seconds, arithmetic_tile
from tvm_ext.schedules.cuda.tile_knobs import ARITHMETIC, sampled_tile, tile_cost
from tvm_ext.schedules.kernel.blocks import is_spatial, top_blocks
from tvm_ext.schedules.rule import Cost, new_schedule

SMALLEST_SIDE = 2
"""Rows and columns from which on what is loaded is used more than once."""


MOST_LOADED = 128
"""Elements that a thread may load from a tile in shared memory without a wait: the compiler moves all loads of an
unrolled loop to its begin."""


class Matmul:
    """Schedule a product of matrices, a dense layer or a convolution with what was fused to it.

    Parameters
    ----------
    open_rows : int
        What rows or columns of open extent count as.
    """

    name = "cuda.matmul"

    def __init__(self, open_rows: int = OPEN_ROWS) -> None:
        self._open_rows = open_rows

    def apply(self, func: PrimFunc, target: tvm.target.Target, tunable: bool = False) -> Schedule | None:
        """Schedule ``func`` when it is one product with data-parallel neighbours and one result."""
        schedule = new_schedule(func, tunable)
        product = find_product(schedule, self._open_rows)
        if product is None or min(product.rows, product.columns) < SMALLEST_SIDE or (tunable and product.is_open):
            return None
        machine = machine_of(target)
        try:
            tile = sampled_tile(schedule, product, arithmetic_tile(product, machine), ARITHMETIC)
            return schedule_product(schedule, product, tile, machine)
        except ScheduleError:
            return None

    def cost(self, func: PrimFunc, target: tvm.target.Target) -> Cost | None:
        """Give the cost model's seconds of tiles."""
        product = find_product(new_schedule(func))
        if product is None or min(product.rows, product.columns) < SMALLEST_SIDE:
            return None
        machine = machine_of(target)
        tile = arithmetic_tile(product, machine)
        return tile_cost(product, ARITHMETIC, tile, arithmetic_seconds, machine)


def schedule_product(schedule: Schedule, product: Product, tile: Tile, machine: GpuMachine) -> Schedule:
    """Schedule a product with a tile; see :class:`Tile`."""
    block = product.block
    as_matrices(schedule, product)
    pad_to_tiles(schedule, block, tile)
    target = block
    if tile.parts > 1:
        target = divide_depth(schedule, block, tile.parts)
    *outer, i, j, k = schedule.get_loops(target)
    grid = schedule.fuse(*outer) if len(outer) > 1 else outer[0]
    across = tile.thread_columns if tile.thread_columns <= 4 else 4
    down = tile.thread_rows if tile.thread_rows <= 4 else 4
    i0, iv, ty, ii = schedule.split(i, [None, tile.thread_rows // down, tile.rows // tile.thread_rows, down])
    j0, jv, tx, jj = schedule.split(
        j, [None, tile.thread_columns // across, tile.columns // tile.thread_columns, across]
    )
    k0, k1 = schedule.split(k, [None, tile.depth])
    schedule.reorder(grid, i0, j0, iv, jv, ty, tx, k0, k1, ii, jj)
    bind_grid(schedule, grid, i0, j0)
    for loop, thread in ((iv, "vthread.y"), (jv, "vthread.x")):
        if extent(schedule, loop) > 1:
            schedule.bind(loop, thread)
    thread = schedule.fuse(ty, tx)
    schedule.bind(thread, "threadIdx.x")
    store = schedule.cache_write(target, 0, "local")
    schedule.reverse_compute_at(store, thread, preserve_unit_loops=True)
    for operand, vector, wide in (
        (product.row_operand, product.row_vector, down),
        (1 - product.row_operand, product.column_vector, across),
    ):
        shared = schedule.cache_read(target, operand, "shared")
        _to_depth_first(schedule, shared)
        kept = schedule.cache_read(target, operand, "local")
        schedule.compute_at(kept, k1, preserve_unit_loops=True)
        if wide > 1:
            schedule.vectorize(schedule.get_loops(kept)[-1])
        schedule.compute_at(shared, k0, preserve_unit_loops=True)
        inline_into(schedule, shared)
        fill_shared(schedule, shared, tile.threads, vector)
        if vector[0]:
            # Neighbours in depth go to different rows; four elements more keep most of them in different banks, and
            # vectors of four aligned.
            schedule.storage_align(shared, 0, axis=-2, factor=32, offset=4)
    schedule.unroll(ii)
    schedule.unroll(jj)
    _unroll(schedule, k1, tile)
    schedule.decompose_reduction(target, k0)
    if tile.parts > 1:
        add_parts(schedule, block, machine)
    else:
        finish(schedule, store, machine)
    return schedule


def _unroll(schedule: Schedule, depth: LoopRV, tile: Tile) -> None:
    """Unroll the depth of a tile: by the compiler, or in part where what is loaded for it does not fit registers."""
    if tile.depth * (tile.thread_rows + tile.thread_columns) <= MOST_LOADED:
        schedule.annotate(depth, "pragma_auto_unroll_max_step", 16)
        schedule.annotate(depth, "pragma_unroll_explicit", 1)
        return
    outer, inner = schedule.split(depth, [None, 8])
    schedule.annotate(outer, "disable_unroll", True)
    schedule.unroll(inner)


def pad_to_tiles(schedule: Schedule, block: SBlockRV, tile: Tile) -> None:
    """Pad the rows, columns and depth of a product to those of whole tiles."""
    batch = [1] * (len(schedule.get_loops(block)) - 3)
    schedule.pad_einsum(block, [*batch, tile.rows, tile.columns, tile.depth * tile.parts])


def divide_depth(schedule: Schedule, block: SBlockRV, parts: int) -> SBlockRV:
    """Compute parts of the depth apart; gives the block that does, ``block`` adds them up."""
    *_, k = schedule.get_loops(block)
    part, _ = schedule.split(k, [parts, None])
    made = schedule.rfactor(part, factor_axis=0)
    loops = schedule.get_loops(made)
    # The axes of the block are batch, rows, columns, part and depth.
    *batch, i, j, part, k = loops
    # Which part a block has is a remainder of its number; of an open batch it would be a quotient by a number that only
    # a run knows.
    is_open = not all(isinstance(schedule.get(loop).extent, IntImm) for loop in batch)
    outer = (*batch, part) if is_open else (part, *batch)
    schedule.reorder(*outer, i, j, k)
    return made


def _to_depth_first(schedule: Schedule, shared: SBlockRV) -> None:
    """Store a tile with its depth outermost, so that a thread loads neighbouring rows or columns at once."""
    schedule.transform_layout(shared, ("write", 0), lambda *index: [*index[:-2], index[-1], index[-2]])


def fill_shared(schedule: Schedule, shared: SBlockRV, threads: int, vector: tuple[bool, int]) -> None:
    """Spread the elements of a tile over threads, neighbours in memory to neighbouring threads."""
    deep, side_by_side = vector
    *_, i, k = schedule.get_loops(shared)
    if not deep:
        schedule.reorder(k, i)
    inner = extent(schedule, k if deep else i)
    total = extent(schedule, i) * extent(schedule, k)
    wide = min(4, side_by_side, inner & -inner)
    while total % (threads * wide) and wide > 1:
        wide //= 2
    fused = schedule.fuse(k, i) if not deep else schedule.fuse(i, k)
    pieces = schedule.split(fused, [None, threads, wide])
    schedule.bind(pieces[1], "threadIdx.x")
    schedule.unroll(pieces[0])
    if wide > 1:
        schedule.vectorize(pieces[2])


def finish(schedule: Schedule, store: SBlockRV, machine: GpuMachine) -> None:
    """Inline what was fused behind a product into the block that stores it; what cannot be is a kernel of its own."""
    for block in inline_behind(schedule, store):
        _rest(schedule, block, machine)
    _bind_what_is_left(schedule, machine)


def add_parts(schedule: Schedule, block: SBlockRV, machine: GpuMachine) -> None:
    """Add the parts of a divided depth up, one thread an element, and go on with what was fused behind."""
    store = schedule.cache_write(block, 0, "local")
    left = inline_behind(schedule, store)
    loop = schedule.fuse(*schedule.get_loops(store))
    grid, thread = schedule.split(loop, [None, 128])
    schedule.bind(grid, "blockIdx.x")
    schedule.bind(thread, "threadIdx.x")
    schedule.compute_at(block, thread, preserve_unit_loops=True)
    schedule.unroll(schedule.get_loops(block)[-1])
    for item in left:
        _rest(schedule, item, machine)
    _bind_what_is_left(schedule, machine)


def _bind_what_is_left(schedule: Schedule, machine: GpuMachine) -> None:
    """Make a kernel of each block that could not be inlined: what a product and its epilogue read, a single number."""
    for block in top_blocks(schedule):
        if not any(schedule.get(loop).thread_binding is not None for loop in schedule.get_loops(block)):
            bind_flat(schedule, block, machine)


def _rest(schedule: Schedule, first: SBlockRV, machine: GpuMachine) -> None:
    """Schedule the data-parallel blocks that could not be inlined, each as a kernel."""
    names = [schedule.get(block).name_hint for block in top_blocks(schedule)]
    behind = top_blocks(schedule)[names.index(schedule.get(first).name_hint) :]
    for block in behind[:-1]:
        try:
            schedule.compute_inline(block)
        except ScheduleError:
            bind_flat(schedule, block, machine)
    if not is_spatial(schedule, behind[-1]):
        raise ScheduleError("a reduction behind a product")
    bind_flat(schedule, behind[-1], machine)
