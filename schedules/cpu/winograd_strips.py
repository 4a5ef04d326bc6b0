"""Winograd convolutions as one kernel: the transforms and the products of a strip, then those of the next.

before: ``for s: transform strip s;  for s: multiply strip s;  for s: transform the products of strip s back``
after:  ``for s: transform strip s; multiply strip s; transform the products of strip s back``

What is between the transforms is then needed for one strip only; TVM's lowering makes the buffers as small. Where
there are too few strips for the cores, or filters are much to read again, a task takes a part of the channels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import hypot

import tvm
from tvm import s_tir, tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import SBlockRV
from tvm.tirx import PrimFunc

from tvm_ext.relax_utils import substitute
from tvm_ext.schedules.annotations import PARTS_ATTRIBUTE, TILE_ATTRIBUTE
from tvm_ext.schedules.compute.winograd import KERNEL
from tvm_ext.schedules.cpu.elementwise import vectorize_and_divide
from tvm_ext.schedules.cpu.machine import Machine, machine_of
from tvm_ext.schedules.cpu.matmul import NOT_HIDDEN, apply_tile, matmul_task, register_tiles, tile_cost
from tvm_ext.schedules.cpu.product import order_axes, product_extents
from tvm_ext.schedules.cpu.winograd import TRANSFORM_CYCLES, transform_at
from tvm_ext.schedules.divisors import divisors
from tvm_ext.schedules.kernel.blocks import annotated_block, inline_epilogue, loop_extents
from tvm_ext.schedules.rule import is_prepared, new_schedule, prepared_for, prepared_schedule

FLOAT_BYTES = 4

STRIP_OF_L2 = 2
"""Times the L2 cache of a core that the tiles of a strip and their products may take, about: they are written and read
once or twice, one after the other."""


FILTERS_NOT_HIDDEN = 0.25
"""Part of the time that filters take from a farther cache that hardware prefetching does not hide."""

COST_OF_PARTS = 1.08
"""How much longer the steps for a part of the channels take than they look: filters are read in shorter streams. Both
were measured on Zen 5, with nine convolutions of networks."""


@dataclass(frozen=True)
class WinogradExtents:
    """A Winograd convolution of one image, in tiles and whole vectors of channels.

    Attributes
    ----------
    tile_rows, tile_columns : int
        Tiles of the image.
    outputs : int
        Of a tile along an axis.
    in_channels, chunks : int
        Channels of the image, and vectors of channels of the result, those that fill up the last vectors included.
    """

    tile_rows: int
    tile_columns: int
    outputs: int
    in_channels: int
    chunks: int

    @property
    def positions(self) -> int:
        """Values of a tile, each of which a product of matrices takes care of."""
        return (self.outputs + KERNEL - 1) ** 2


def choose_strips(extents: WinogradExtents, machine: Machine) -> tuple[int, int]:
    """Choose the rows of tiles of a strip, and into how many parts the channels of the result are divided.

    A task transforms a strip, multiplies it with a part of the filters and transforms that back. Few filters are read
    again for each strip, and few tiles are transformed again for each part; where neither is cheap, three kernels are
    faster, which share out each step anew.

    Returns
    -------
    tuple of two int
        ``(0, 1)``: three kernels of the whole image.
    """
    best, best_seconds = (0, 1), _whole_seconds(extents, machine)
    for parts in divisors(extents.chunks):
        if parts > machine.cores or (parts > 1 and _filter_bytes(extents, extents.chunks, machine) > machine.l3 // 2):
            break  # filters that come from memory are read faster in long streams
        for strip in range(1, extents.tile_rows + 1):
            if strip > 1 and _strip_bytes(extents, strip, parts, machine) > STRIP_OF_L2 * machine.l2:
                break
            seconds = _strip_seconds(extents, strip, parts, machine)
            # Of equals the one that keeps least.
            if seconds < best_seconds:
                best, best_seconds = (strip, parts), seconds
    return best


def strip_tile(extents: WinogradExtents, strip: int, parts: int, machine: Machine) -> tuple[int, int]:
    """Choose the register tile of the products of a strip; a part is filled by whole ones."""
    return _tile(extents, strip * extents.tile_columns, extents.chunks // parts, parts, machine)


def _tile(extents: WinogradExtents, tiles: int, chunks: int, parts: int, machine: Machine) -> tuple[int, int]:
    reduction = extents.in_channels
    found = register_tiles(tiles, chunks, reduction, FLOAT_BYTES * reduction, machine)
    fitting = [tile for tile in found if parts == 1 or chunks % tile[1] == 0]
    return min(fitting, key=lambda tile: tile_cost(tiles, chunks, reduction, tile, machine), default=(1, 1))


def _whole_seconds(extents: WinogradExtents, machine: Machine) -> float:
    tiles = extents.tile_rows * extents.tile_columns
    seconds = _steps_seconds(extents, tiles, extents.chunks, 1, machine) / machine.cores
    between = _tile_bytes(extents, tiles, extents.chunks, machine)
    if between > machine.l2 * machine.cores:
        in_cache = between <= machine.l3
        bandwidth = machine.l3_bandwidth * machine.cores if in_cache else machine.memory_bandwidth
        seconds += 2 * NOT_HIDDEN * between / bandwidth
    return seconds + 2 * machine.call_seconds + 3 * machine.fork_seconds


def _strip_seconds(extents: WinogradExtents, strip: int, parts: int, machine: Machine) -> float:
    tasks = -(-extents.tile_rows // strip) * parts
    tiles = strip * extents.tile_columns
    task = _steps_seconds(extents, tiles, extents.chunks // parts, parts, machine)
    between = _strip_bytes(extents, strip, parts, machine)
    if between > machine.l2:
        task += 2 * NOT_HIDDEN * between / machine.l3_bandwidth
    return -(-tasks // machine.cores) * task + machine.fork_seconds


def _steps_seconds(extents: WinogradExtents, tiles: int, chunks: int, parts: int, machine: Machine) -> float:
    """Seconds of one core for so many tiles and so many vectors of channels of their result."""
    lanes, reduction = machine.lanes("float32"), extents.in_channels
    forward, back = TRANSFORM_CYCLES[extents.outputs]
    transforms = tiles * (reduction / lanes * forward + chunks * back) / machine.clock
    tile = _tile(extents, tiles, chunks, parts, machine)
    work = extents.positions * reduction * tile_cost(tiles, chunks, reduction, tile, machine)
    weights = _filter_bytes(extents, chunks, machine)
    in_cache = weights * parts <= machine.l3 // 2
    loads = (
        machine.slots(weights / (machine.l3_bandwidth if in_cache else machine.weight_bandwidth)) * FILTERS_NOT_HIDDEN
    )
    seconds = transforms + hypot(work, loads) / machine.slots(1.0)
    return seconds * COST_OF_PARTS if parts > 1 else seconds


def _filter_bytes(extents: WinogradExtents, chunks: int, machine: Machine) -> int:
    """Bytes of transformed filters for so many vectors of channels of the result."""
    return FLOAT_BYTES * extents.positions * extents.in_channels * chunks * machine.lanes("float32")


def _strip_bytes(extents: WinogradExtents, strip: int, parts: int, machine: Machine) -> int:
    return _tile_bytes(extents, strip * extents.tile_columns, extents.chunks // parts, machine)


def _tile_bytes(extents: WinogradExtents, tiles: int, chunks: int, machine: Machine) -> int:
    """Bytes of transformed tiles and their products."""
    lanes = machine.lanes("float32")
    return FLOAT_BYTES * extents.positions * tiles * (extents.in_channels + chunks * lanes)


class WinogradStrips:
    """Schedule a Winograd convolution that is one kernel, the epilogue fused to its end."""

    name = "cpu.winograd_strips"

    def apply(self, func: PrimFunc, target: tvm.target.Target, tunable: bool = False) -> Schedule | None:
        """Schedule ``func`` when it holds both transforms and the products; nothing of it is tuned."""
        if tunable:
            return None
        schedule = prepared_schedule(self, func, target)
        if schedule is None:
            return None
        machine = machine_of(target)
        forward, back = (annotated_block(schedule, f"winograd_{name}") for name in ("input", "output"))
        assert forward is not None
        assert back is not None
        flops = product_flops(schedule)
        one = replace(machine, cores=1)  # a strip is the work of one thread, which keeps what it needs to itself
        parts = int(schedule.get(forward).annotations[PARTS_ATTRIBUTE])
        _forward(schedule, forward)
        strips = _multiply(schedule, one, parts)
        _back(schedule, back, strips, parts, machine)
        return new_schedule(_joined(schedule.mod["main"], strips, parts, machine.divides(flops)))

    def prepare(self, func: PrimFunc, _target: tvm.target.Target) -> PrimFunc | None:
        """Let the block that stores the products walk over strips and positions, rows and columns."""
        if is_prepared(func, self.name):
            return func
        schedule = new_schedule(func)
        names = ("winograd_input", "matmul", "winograd_output")
        product = annotated_block(schedule, "matmul")
        if product is None or any(annotated_block(schedule, name) is None for name in names):
            return None
        (store,) = schedule.get_consumers(product)
        order_axes(schedule, product, store, loop_extents(schedule, store))
        return prepared_for(s_tir.transform.StmtSimplify()(schedule.mod)["main"], self.name)


def product_flops(schedule: Schedule) -> int:
    """Count the multiplications and additions of the products."""
    extents = product_extents(schedule)
    assert extents is not None
    return extents.flops


def _forward(schedule: Schedule, transformed: SBlockRV) -> None:
    cut, half = (annotated_block(schedule, name) for name in ("winograd_tile", "winograd_half"))
    assert cut is not None
    assert half is not None
    lanes = loop_extents(schedule, cut)[-1]
    strip, position, place, c = schedule.get_loops(transformed)
    chunk, lane = schedule.split(c, [None, lanes])
    schedule.reorder(strip, place, chunk, position, lane)
    transform_at(schedule, (half, cut), chunk, (position, lane))


def _multiply(schedule: Schedule, machine: Machine, parts: int) -> int:
    product = annotated_block(schedule, "matmul")
    extents = product_extents(schedule)
    assert product is not None
    assert extents is not None
    (store,) = schedule.get_consumers(product)
    forward = annotated_block(schedule, "winograd_input")
    assert forward is not None
    strips = loop_extents(schedule, forward)[0]
    batch, row, column = schedule.get_loops(store)
    strip, batch = schedule.split(batch, [strips, None])
    part, column = schedule.split(column, [parts, None])
    schedule.reorder(strip, part, batch, row, column)
    extents = replace(extents, batch=extents.batch // strips, chunks=extents.chunks // parts)
    tile_rows, vectors = (int(extent) for extent in schedule.get(product).annotations[TILE_ATTRIBUTE])
    task = matmul_task(extents, (tile_rows, vectors), machine)
    apply_tile(schedule, product, store, None, None, extents, (tile_rows, vectors), task, machine.pairs_loads)
    return strips


def _back(schedule: Schedule, tile: SBlockRV, strips: int, parts: int, machine: Machine) -> None:
    half = annotated_block(schedule, "winograd_back_half")
    assert half is not None
    _, rows, _, outputs, _, _ = loop_extents(schedule, tile)
    store, rest = inline_epilogue(schedule, tile)
    if rest is not None:
        vectorize_and_divide(schedule, rest, machine)
    *outer, c, h, w, lane = schedule.get_loops(store)
    strip, row, x = schedule.split(h, [None, rows // strips, outputs])
    part, c = schedule.split(c, [parts, None])
    column, y = schedule.split(w, [None, outputs])
    schedule.reorder(strip, part, *outer, c, row, column, x, y, lane)
    transform_at(schedule, (tile, half), column, (x, y, lane))


def _joined(func: PrimFunc, strips: int, parts: int, parallel: bool) -> PrimFunc:
    """Make one loop of the first three of a kernel, which go over the strips, the last two over parts inside."""
    root = func.body.block
    steps = list(root.body.seq)
    variable = tvm.ir.Var("task", steps[0].loop_var.ty)
    strip, part = (variable, None) if parts == 1 else (variable // parts, variable % parts)
    if strips == 1:
        strip, part = tirx.const(0, "int32"), variable
    bodies = []
    for step, inner in zip(steps[:3], (1, parts, parts), strict=True):
        values = {}
        for extent, value in ((strips, strip), (inner, part))[: 1 + (step is not steps[0])]:
            if not isinstance(step, tirx.For) or int(step.extent) != extent:
                raise ValueError(f"the loops over {strips} strips and {parts} parts are not the outermost ones")
            values[step.loop_var] = tirx.const(0, "int32") if extent == 1 else value
            step = step.body
        bodies.append(substitute(step, values))
    kind = tirx.ForKind.PARALLEL if parallel else tirx.ForKind.SERIAL
    joined = tirx.For(variable, tirx.const(0, "int32"), tirx.const(strips * parts, "int32"), kind, tirx.SeqStmt(bodies))
    body = tirx.SeqStmt([joined, *steps[3:]]) if steps[3:] else joined
    block = s_tir.SBlock(
        root.iter_vars, root.reads, root.writes, root.name_hint, body, root.init, root.alloc_buffers,
        root.match_buffers, root.annotations,
    )  # fmt: skip
    return func.with_body(s_tir.SBlockRealize(func.body.iter_values, func.body.predicate, block))
