"""Products by ``wgmma``: four warps together multiply tiles that both lie in shared memory (Hopper, sm_90).

A block of threads has one or more such groups of warps, each with its part of the result in registers. Tiles come by
``cp.async``, rows of 128 bytes with their pieces swizzled; while one is multiplied by, the next ones are on their way
(:mod:`tvm_ext.backends.cuda.warpgroup_steps` puts waits and barriers between).
"""

from __future__ import annotations

from collections.abc import Sequence

import tvm
from tvm.s_tir import Schedule, ScheduleError
from tvm.s_tir.schedule import SBlockRV
from tvm.tirx import PrimFunc

from tvm_ext.schedules.cuda.blocks import bind_grid
from tvm_ext.schedules.cuda.finish import finish_schedule
from tvm_ext.schedules.cuda.fragments import SIDE, clear_fragment, result_fragment
from tvm_ext.schedules.cuda.machine import GpuMachine, machine_of
from tvm_ext.schedules.cuda.matmul import add_parts, divide_depth, finish, pad_to_tiles
from tvm_ext.schedules.cuda.open_extents import OPEN_ROWS
from tvm_ext.schedules.cuda.product import Product, as_matrices, find_product, inline_into
from tvm_ext.schedules.cuda.product_tile import Tile
from tvm_ext.schedules.cuda.tensor_matmul import (
    HALVES,
    fill_tile,
    operand_types,
    store_lanes,
    to_fragments,
)
from tvm_ext.schedules.cuda.tensor_tile import tensor_seconds, tensor_tile
from tvm_ext.schedules.cuda.tile_knobs import WARPGROUPS, sampled_tile, tile_cost
from tvm_ext.schedules.cuda.warpgroup_fragments import GROUP_ROWS, GROUP_WARPS, ROW, multiply_shared
from tvm_ext.schedules.cuda.warpgroup_tile import (
    FEWEST_NEIGHBOURS,
    warpgroup_seconds,
    warpgroup_tile,
    warpgroup_use,
)
from tvm_ext.schedules.rule import Cost, new_schedule

FEWEST_ROWS = GROUP_ROWS // 2
"""Rows and columns from which on an instruction is more than half full."""


class WarpgroupMatmul:
    """Schedule a product or a convolution of 16-bit operands, where ``wgmma`` is faster than ``mma.sync``.

    Parameters
    ----------
    open_rows : int
        What rows or columns of open extent count as.
    """

    name = "cuda.warpgroup_matmul"

    def __init__(self, open_rows: int = OPEN_ROWS) -> None:
        self._open_rows = open_rows

    def apply(self, func: PrimFunc, target: tvm.target.Target, tunable: bool = False) -> Schedule | None:
        """Schedule ``func`` when it is one such product with data-parallel neighbours and one result."""
        schedule, machine = new_schedule(func, tunable), machine_of(target)
        product = self._product(schedule, machine)
        tile = None if product is None else faster_tile(product, machine)
        if product is None or tile is None or (tunable and product.is_open):
            return None
        try:
            tile = sampled_tile(schedule, product, tile, WARPGROUPS)
            schedule_warpgroup_product(schedule, product, tile, machine, operand_types(schedule, product))
        except ScheduleError:
            return None
        blocks = warpgroup_use(tile).resident(machine)
        return finish_schedule(schedule, {"tvm_ext.registers_of_lanes": 1, "tvm_ext.resident_blocks": max(1, blocks)})

    def cost(self, func: PrimFunc, target: tvm.target.Target) -> Cost | None:
        """Give the cost model's seconds of tiles."""
        schedule, machine = new_schedule(func), machine_of(target)
        product = self._product(schedule, machine)
        tile = None if product is None else faster_tile(product, machine)
        if product is None or tile is None:
            return None
        return tile_cost(product, WARPGROUPS, tile, warpgroup_seconds, machine)

    def _product(self, schedule: Schedule, machine: GpuMachine) -> Product | None:
        """Find the product of a kernel, if warpgroups multiply it."""
        product = find_product(schedule, self._open_rows) if machine.has_warpgroups else None
        if product is None or min(product.row_vector[1], product.column_vector[1]) < FEWEST_NEIGHBOURS:
            return None
        if product.open_depth:  # which may have fewer steps than tiles are on their way
            return None
        if min(product.rows, product.columns) < FEWEST_ROWS:
            return None
        dtypes = operand_types(schedule, product)
        total = str(schedule.get(product.block).writes[0].source.dtype)
        return product if dtypes[0] == dtypes[1] and dtypes[0] in HALVES and total == "float32" else None


def faster_tile(product: Product, machine: GpuMachine) -> Tile | None:
    """Choose the tile of a product; None where one for ``mma.sync`` is expected to be faster."""
    tile = warpgroup_tile(product, machine)
    if tile is None:
        return None
    other = tensor_seconds(product, tensor_tile(product, machine), machine)
    return tile if warpgroup_seconds(product, tile, machine) < other else None


def schedule_warpgroup_product(
    schedule: Schedule, product: Product, tile: Tile, machine: GpuMachine, dtypes: Sequence[str]
) -> Schedule:
    """Schedule a product with a tile, whose thread part is the part of a warpgroup; ``dtypes`` are its operands'."""
    block, dtype = product.block, dtypes[0]
    if not product.allows(tile.rows, tile.columns):
        raise ScheduleError(f"{tile} does not divide a result whose products share an axis")
    if tile.thread_rows != GROUP_ROWS or (not product.column_vector[0] and tile.thread_columns % ROW):
        raise ScheduleError(f"{tile} is not of whole instructions, whose columns are whole rows of shared memory")
    # A pair of neighbours is one access, where every row begins at an even number.
    pairs = product.columns % 2 == 0 and not product.open_columns
    as_matrices(schedule, product)
    pad_to_tiles(schedule, block, tile)
    target = divide_depth(schedule, block, tile.parts) if tile.parts > 1 else block
    *outer, i, j, k = schedule.get_loops(target)
    grid = schedule.fuse(*outer) if len(outer) > 1 else outer[0]
    i0, wi, quarter, ii = schedule.split(i, [None, tile.rows // GROUP_ROWS, GROUP_WARPS, SIDE])
    j0, wj, jj = schedule.split(j, [None, tile.columns // tile.thread_columns, tile.thread_columns])
    k0, k1, kk = schedule.split(k, [None, tile.depth // SIDE, SIDE])
    schedule.reorder(grid, i0, j0, wi, wj, quarter, k0, k1, ii, jj, kk)
    inner = target
    target = schedule.blockize(ii)
    bind_grid(schedule, grid, i0, j0, together=True)
    warp = schedule.fuse(wi, wj, quarter)
    schedule.bind(warp, "threadIdx.y")
    store = schedule.cache_write(target, 0, "warp")
    schedule.reverse_compute_at(store, warp, preserve_unit_loops=True)
    to_fragments(schedule, store, ("read", 0), result_fragment, SIDE)
    for operand, (deep, together) in (
        (product.row_operand, product.row_vector), (1 - product.row_operand, product.column_vector),
    ):  # fmt: skip
        shared = schedule.cache_read(target, operand, "shared.dyn")
        _place_tile(schedule, shared, deep)
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
    schedule.unroll(k1)
    store_lanes(schedule, store, pairs)
    if tile.parts > 1:
        add_parts(schedule, block, machine)
    else:
        finish(schedule, store, machine)
    return schedule


def _place_tile(schedule: Schedule, shared: SBlockRV, deep: bool) -> None:
    """Store a tile in rows of 128 bytes: along its depth, or 64 neighbours at one depth after the other."""
    if not deep:
        schedule.transform_layout(
            shared, ("write", 0), lambda *index: [*index[:-2], index[-2] // ROW, index[-1], index[-2] % ROW]
        )


def _clear(schedule: Schedule, block: SBlockRV) -> None:
    """Fill sums with zeros, a fragment of 16 x 16 at a time."""
    *_, ii, jj = schedule.get_loops(block)
    j1, j2 = schedule.split(jj, [None, SIDE])
    schedule.reorder(j1, ii, j2)
    schedule.unroll(j1)
    schedule.tensorize(ii, clear_fragment("float32"))
