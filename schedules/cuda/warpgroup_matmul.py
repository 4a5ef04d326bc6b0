"""Products by ``wgmma``: four warps together multiply tiles that both lie in shared memory (Hopper, sm_90).

A block of threads has one or more such groups of warps, each with its part of the result in registers. Tiles come by
``cp.async``, rows of 128 bytes with their pieces swizzled; while a tile is multiplied by, the next ones are on their way
(:mod:`tvm_ext.backends.cuda.warpgroup_steps` puts waits and barriers between).
"""

from __future__ import annotations

from collections.abc import Sequence

import tvm
from tvm.s_tir import Schedule, ScheduleError
from tvm.tirx import PrimFunc

from tvm_ext.schedules.cuda.blocks import extent
from tvm_ext.schedules.cuda.finish import finish_schedule
from tvm_ext.schedules.cuda.fragments import SIDE, clear_fragment, result_fragment
from tvm_ext.schedules.cuda.machine import GpuMachine, machine_of
from tvm_ext.schedules.cuda.matmul import add_parts, divide_depth, finish
from tvm_ext.schedules.cuda.product import Product, as_matrices, find_product, inline_into
from tvm_ext.schedules.cuda.product_tile import Tile
from tvm_ext.schedules.cuda.tensor_matmul import fill_tile, operand_types, side_by_side_blocks, store_lanes, to_fragments
from tvm_ext.schedules.cuda.warpgroup_fragments import GROUP_ROWS, GROUP_WARPS, ROW, multiply_shared


def schedule_warpgroup_product(
    schedule: Schedule, product: Product, tile: Tile, machine: GpuMachine, dtypes: Sequence[str], pairs: bool = False
) -> Schedule:
    """Schedule a product with a tile, whose thread part is the part of a warpgroup; ``dtypes`` are its operands'."""
    block, dtype = product.block, dtypes[0]
    high = tile.thread_rows // GROUP_ROWS
    as_matrices(schedule, product)
    schedule.pad_einsum(block, [1, tile.rows, tile.columns, tile.depth * tile.parts])
    target = divide_depth(schedule, block, tile.parts) if tile.parts > 1 else block
    *outer, i, j, k = schedule.get_loops(target)
    grid = schedule.fuse(*outer) if len(outer) > 1 else outer[0]
    i0, wi, quarter, mi, ii = schedule.split(i, [None, tile.rows // tile.thread_rows, GROUP_WARPS, high, SIDE])
    j0, wj, jj = schedule.split(j, [None, tile.columns // tile.thread_columns, tile.thread_columns])
    k0, k1, kk = schedule.split(k, [None, tile.depth // SIDE, SIDE])
    schedule.reorder(grid, i0, j0, wi, wj, quarter, k0, k1, mi, ii, jj, kk)
    inner = target
    target = schedule.blockize(ii)
    i0, i1 = schedule.split(i0, [None, side_by_side_blocks(extent(schedule, i0))])
    schedule.reorder(i0, j0, i1)
    for loop, thread in ((grid, "blockIdx.z"), (i0, "blockIdx.y"), (schedule.fuse(j0, i1), "blockIdx.x")):
        schedule.bind(loop, thread)
    warp = schedule.fuse(wi, wj, quarter)
    schedule.bind(warp, "threadIdx.y")
    store = schedule.cache_write(target, 0, "warp")
    schedule.reverse_compute_at(store, warp, preserve_unit_loops=True)
    to_fragments(schedule, store, ("read", 0), result_fragment, SIDE)
    for operand, rows, (deep, together) in (
        (product.row_operand, True, product.row_vector), (1 - product.row_operand, False, product.column_vector),
    ):  # fmt: skip
        shared = schedule.cache_read(target, operand, "shared.dyn")
        _place_tile(schedule, shared, tile, high, rows, deep)
        schedule.compute_at(shared, k0, preserve_unit_loops=True)
        inline_into(schedule, shared)
        fill_tile(schedule, shared, tile.threads * GROUP_WARPS, deep, together, dtype)
    clear = schedule.decompose_reduction(target, k0)
    schedule.annotate(k0, "software_pipeline_stage", [0, 0, tile.stages - 1])
    schedule.annotate(k0, "software_pipeline_order", [0, 1, 2])
    schedule.annotate(k0, "software_pipeline_async_stages", [0])
    _clear(schedule, schedule.get_child_blocks(clear)[0])
    name = multiply_shared(
        tile.thread_columns, dtype, product.row_vector[0], product.column_vector[0], product.row_operand == 1
    )
    schedule.tensorize(schedule.get_loops(inner)[-3], name)
    for loop in (k1, mi):
        schedule.unroll(loop)
    store_lanes(schedule, store, pairs)
    if tile.parts > 1:
        add_parts(schedule, block, machine)
    else:
        finish(schedule, store, machine)
    return schedule


def _place_tile(schedule: Schedule, shared: object, tile: Tile, high: int, rows: bool, deep: bool) -> None:
    """Store a tile in rows of 128 bytes, as the instructions of a warpgroup take them one after the other.

    A warp's rows are neighbours in the result; an instruction takes 16 rows of each of the four warps.
    """

    def of_rows(*index: object) -> list[object]:
        *outer, i, k = index
        group, quarter = i // (GROUP_ROWS * high), i % (GROUP_ROWS * high) // (SIDE * high)
        instruction, row = i // SIDE % high, i % SIDE
        return [*outer, group, instruction, *([quarter * SIDE + row, k] if deep else [k, quarter * SIDE + row])]

    def of_columns(*index: object) -> list[object]:
        *outer, j, k = index
        return [*outer, j, k] if deep else [*outer, j // ROW, k, j % ROW]

    schedule.transform_layout(shared, ("write", 0), of_rows if rows else of_columns)


def _clear(schedule: Schedule, block: object) -> None:
    """Fill sums with zeros, a fragment of 16 x 16 at a time."""
    *_, ii, jj = schedule.get_loops(block)
    j1, j2 = schedule.split(jj, [None, SIDE])
    schedule.reorder(j1, ii, j2)
    schedule.unroll(j1)
    schedule.tensorize(ii, clear_fragment("float32"))
