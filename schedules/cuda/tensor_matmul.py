"""Products on tensor cores: ``mma.sync`` of 16 x 8, 32 bytes deep.

Operands of 16 bits and of float32 rounded to tf32 add up in float32, those of 8 bits in int32. A block of threads keeps
a tile of rows and one of columns in shared memory, its warps load fragments from there with ``ldmatrix`` and keep their
part of the result in registers. Rows of a tile are 16 bytes longer than their elements, so that the eight rows of a
matrix lie in different banks. Tiles of the next steps are on their way (``cp.async``) while one is computed with.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm.s_tir import Schedule, ScheduleError
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.tirx import PrimFunc

from tvm_ext.schedules.cuda.blocks import VECTOR_BYTES, bind_grid, element_bytes, extent, power_of_two
from tvm_ext.schedules.cuda.finish import finish_schedule
from tvm_ext.schedules.cuda.fragments import (
    SIDE,
    clear_fragment,
    columns_fragment,
    fragment_depth,
    load_fragment,
    multiply_fragments,
    result_fragment,
    result_type,
    rows_fragment,
)
from tvm_ext.schedules.cuda.machine import WARP, GpuMachine, machine_of
from tvm_ext.schedules.cuda.matmul import add_parts, divide_depth, finish, pad_to_tiles
from tvm_ext.schedules.cuda.open_extents import OPEN_ROWS
from tvm_ext.schedules.cuda.product import Product, as_matrices, find_product, inline_into
from tvm_ext.schedules.cuda.product_tile import Tile
from tvm_ext.schedules.cuda.tensor_tile import SMALLEST_COPY, tensor_seconds, tensor_tile, tensor_use
from tvm_ext.schedules.cuda.tile_knobs import TENSOR, TENSOR_IN_TURNS, sampled_tile, tile_cost
from tvm_ext.schedules.rule import Cost, new_schedule

HALVES, BYTES, SINGLES = ("float16", "bfloat16"), ("int8", "uint8"), ("float32",)
"""Element types of operands. The two of a product are the same, or any of 8 bits."""

MOST_FETCHED = 8
"""Elements that a thread fetches through registers before it stores them."""

SMALLEST_SIDE = 8
"""Rows and columns from which on tensor cores pay, though half of their work is then on padding."""


class TensorMatmul:
    """Schedule a product or a convolution whose operands tensor cores multiply.

    Parameters
    ----------
    tf32 : bool
        Take operands of float32 too, and round them to 10 bits of mantissa.
    open_rows : int
        What rows or columns of open extent count as.
    """

    name = "cuda.tensor_matmul"

    def __init__(self, tf32: bool = False, open_rows: int = OPEN_ROWS) -> None:
        self._open_rows = open_rows
        self._kinds = (HALVES, BYTES, SINGLES) if tf32 else (HALVES, BYTES)

    def apply(self, func: PrimFunc, target: tvm.target.Target, tunable: bool = False) -> Schedule | None:
        """Schedule ``func`` when it is one such product with data-parallel neighbours and one result."""
        schedule = new_schedule(func, tunable)
        machine = machine_of(target)
        product = self._product(schedule, machine)
        if product is None or (tunable and product.is_open):
            return None
        dtypes = operand_types(schedule, product)
        asynchronous = dtypes[0] not in SINGLES
        tile = tensor_tile(product, machine, asynchronous)
        try:
            tile = sampled_tile(schedule, product, tile, TENSOR if asynchronous else TENSOR_IN_TURNS)
            schedule_tensor_product(schedule, product, tile, machine, dtypes)
        except ScheduleError:
            return None
        blocks = tensor_use(product, tile).resident(machine)
        steps = {"tvm_ext.registers_of_lanes": 1, "tvm_ext.resident_blocks": max(1, blocks)}
        return finish_schedule(schedule, steps if asynchronous else steps | {"tvm_ext.rounded_to_tf32": 1})

    def cost(self, func: PrimFunc, target: tvm.target.Target) -> Cost | None:
        """Give the cost model's seconds of tiles."""
        schedule, machine = new_schedule(func), machine_of(target)
        product = self._product(schedule, machine)
        if product is None:
            return None
        asynchronous = operand_types(schedule, product)[0] not in SINGLES
        tile = tensor_tile(product, machine, asynchronous)
        return tile_cost(product, TENSOR if asynchronous else TENSOR_IN_TURNS, tile, tensor_seconds, machine)

    def _product(self, schedule: Schedule, machine: GpuMachine) -> Product | None:
        """Find the product of a kernel, if tensor cores multiply it and it is large enough."""
        product = find_product(schedule, self._open_rows) if machine.has_async_copy else None
        if product is None or min(product.rows, product.columns) < SMALLEST_SIDE or product.depth < SIDE:
            return None
        dtypes = operand_types(schedule, product)
        total = str(schedule.get(product.block).writes[0].source.dtype)
        return product if self._multiplies(dtypes) and total == result_type(dtypes[0]) else None

    def _multiplies(self, dtypes: Sequence[str]) -> bool:
        same = dtypes[0] == dtypes[1] or set(dtypes) <= set(BYTES)
        return same and any(dtypes[0] in kind for kind in self._kinds)


def operand_types(schedule: Schedule, product: Product) -> list[str]:
    """List the element types of what a product reads, in the order in which it is written."""
    return [str(region.source.dtype) for region in schedule.get(product.block).reads]


def schedule_tensor_product(
    schedule: Schedule, product: Product, tile: Tile, machine: GpuMachine, dtypes: Sequence[str]
) -> Schedule:
    """Schedule a product with a tile, whose thread part is the part of a warp; ``dtypes`` are its operands'."""
    block = product.block
    if not product.allows(tile.rows, tile.columns):
        raise ScheduleError(f"{tile} does not divide a result whose products share an axis")
    fragment, total = fragment_depth(dtypes[0]), result_type(dtypes[0])
    as_matrices(schedule, product)
    pad_to_tiles(schedule, block, tile)
    target = divide_depth(schedule, block, tile.parts) if tile.parts > 1 else block
    *outer, i, j, k = schedule.get_loops(target)
    grid = schedule.fuse(*outer) if len(outer) > 1 else outer[0]
    i0, wi, mi, ii = schedule.split(i, [None, tile.rows // tile.thread_rows, tile.thread_rows // SIDE, SIDE])
    j0, wj, nj, jj = schedule.split(j, [None, tile.columns // tile.thread_columns, tile.thread_columns // SIDE, SIDE])
    k0, k1, kk = schedule.split(k, [None, tile.depth // fragment, fragment])
    schedule.reorder(grid, i0, j0, wi, wj, k0, k1, mi, nj, ii, jj, kk)
    inner = target
    target = schedule.blockize(ii)
    bind_grid(schedule, grid, i0, j0, together=True)
    warp = schedule.fuse(wi, wj)
    schedule.bind(warp, "threadIdx.y")
    store = schedule.cache_write(target, 0, "warp")
    schedule.reverse_compute_at(store, warp, preserve_unit_loops=True)
    to_fragments(schedule, store, ("read", 0), result_fragment, SIDE)
    for operand, name, (deep, side_by_side), place in (
        (product.row_operand, "rows", product.row_vector, rows_fragment),
        (1 - product.row_operand, "columns", product.column_vector, columns_fragment),
    ):
        dtype = dtypes[operand]
        # Only elements of 16 bits are transposed on the way to registers; others are when they come to shared memory.
        stored_deep = deep or element_bytes(dtype) != 2
        shared = schedule.cache_read(target, operand, "shared.dyn")
        if not stored_deep:
            schedule.transform_layout(shared, ("write", 0), lambda *index: [*index[:-2], index[-1], index[-2]])
        kept = schedule.cache_read(target, operand, "warp")
        schedule.compute_at(kept, k1, preserve_unit_loops=True)
        schedule.compute_at(shared, k0, preserve_unit_loops=True)
        inline_into(schedule, shared)
        fill_tile(schedule, shared, tile.threads, deep, side_by_side if deep or not stored_deep else 1, dtype)
        _lengthen(schedule, shared, dtype)
        # Axes of a copy are in the order of what it copies.
        to_fragments(schedule, kept, ("write", 0), _turned(place) if not stored_deep else place, fragment)
        _load(schedule, kept, name, stored_deep, dtype)
    clear = schedule.decompose_reduction(target, k0)
    if not product.open_depth:
        stages = min(tile.stages, extent(schedule, k0))
    else:  # TVM leaves a barrier out of a pipeline of open length whose copies are not asynchronous
        stages = tile.stages if dtypes[0] not in SINGLES else 1
    if stages > 1:
        # Tiles of the next steps are on their way while this one is computed with.
        schedule.annotate(k0, "software_pipeline_stage", [0, 0, stages - 1])
        schedule.annotate(k0, "software_pipeline_order", [0, 1, 2])
        if dtypes[0] not in SINGLES:
            schedule.annotate(k0, "software_pipeline_async_stages", [0])
    schedule.tensorize(schedule.get_loops(schedule.get_child_blocks(clear)[0])[-2], clear_fragment(total))
    schedule.tensorize(schedule.get_loops(inner)[-3], multiply_fragments(*dtypes, product.row_operand == 1))
    for loop in (mi, nj):
        schedule.unroll(loop)
    store_lanes(schedule, store)
    if tile.parts > 1:
        add_parts(schedule, block, machine)
    else:
        finish(schedule, store, machine)
    return schedule


def to_fragments(schedule: Schedule, block: SBlockRV, buffer: tuple[str, int], place: Any, depth: int) -> None:
    """Store a tensor as fragments: the last two axes become a grid of fragments, lanes, and places in a lane.

    ``depth`` is the extent of a fragment along the second of them; of 16-bit elements both are :data:`SIDE`.
    """
    per = depth // 8

    def index_map(*index: Any) -> list[Any]:
        *outer, i, j = index
        return [*outer, i // SIDE, j // depth, *place(i % SIDE, j % depth, per)]

    schedule.transform_layout(block, buffer, index_map)


def fill_tile(schedule: Schedule, shared: SBlockRV, warps: int, deep: bool, side_by_side: int, dtype: str) -> None:
    """Spread the elements of a tile over all threads, neighbours in memory to neighbouring threads."""
    *_, i, k = schedule.get_loops(shared)
    if not deep:
        schedule.reorder(k, i)
    inner = extent(schedule, k if deep else i)
    total = extent(schedule, i) * extent(schedule, k)
    wide = min(VECTOR_BYTES // element_bytes(dtype), side_by_side, power_of_two(inner))
    while total % (warps * WARP * wide) and wide > 1:
        wide //= 2
    fused = schedule.fuse(i, k) if deep else schedule.fuse(k, i)
    pieces = schedule.split(fused, [None, warps, WARP, wide])
    schedule.bind(pieces[1], "threadIdx.y")
    schedule.bind(pieces[2], "threadIdx.x")
    schedule.unroll(_few_at_once(schedule, pieces[0], wide * element_bytes(dtype)))
    if wide > 1:
        schedule.vectorize(pieces[3])


def _few_at_once(schedule: Schedule, copies: LoopRV, width: int) -> LoopRV:
    """Give the loop of the copies of a thread that are made together.

    Copies of less than four bytes go through registers, each with an address and a condition of its own: all of a deep
    tile together would not fit. Asynchronous ones hold nothing.
    """
    together = power_of_two(extent(schedule, copies))
    while together > MOST_FETCHED:
        together //= 2
    if width >= SMALLEST_COPY or together == extent(schedule, copies):
        return copies
    outer, inner = schedule.split(copies, [None, together])
    schedule.annotate(outer, "disable_unroll", True)
    return inner


def _lengthen(schedule: Schedule, shared: SBlockRV, dtype: str) -> None:
    """Make rows of a tile 16 bytes longer than a multiple of 32."""
    vector = VECTOR_BYTES // element_bytes(dtype)
    schedule.storage_align(shared, 0, axis=-2, factor=2 * vector, offset=vector)


def _load(schedule: Schedule, kept: SBlockRV, operand: str, deep: bool, dtype: str) -> None:
    """Load fragments by ``ldmatrix``."""
    *_, first, second = schedule.get_loops(kept)
    outer, row = schedule.split(first, [None, SIDE])
    next_outer, column = schedule.split(second, [None, fragment_depth(dtype)])
    schedule.reorder(outer, next_outer, row, column)
    schedule.unroll(outer)
    schedule.unroll(next_outer)
    schedule.tensorize(row, load_fragment(operand, deep, dtype))


def _turned(place: Any) -> Any:
    return lambda depth, side, per: place(side, depth, per)


def store_lanes(schedule: Schedule, store: SBlockRV, pairs: bool = False) -> None:
    """Let each lane store what it holds, neighbours in a row one after the other."""
    *_, i, j = schedule.get_loops(store)
    i0, upper, row = schedule.split(i, [None, 2, 8])
    j0, right, pair, neighbour = schedule.split(j, [None, 2, 4, 2])
    schedule.reorder(i0, j0, row, pair, right, upper, neighbour)
    lane = schedule.fuse(row, pair)
    schedule.bind(lane, "threadIdx.x")
    for loop in (i0, j0, right, upper):
        schedule.unroll(loop)
    if pairs:
        schedule.vectorize(neighbour)
    else:
        schedule.unroll(neighbour)
