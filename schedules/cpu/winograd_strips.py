"""Winograd convolutions as one kernel: the transforms and the products of a strip, then those of the next.

before: ``for s: transform strip s;  for s: multiply strip s;  for s: transform the products of strip s back``
after:  ``for s: transform strip s; multiply strip s; transform the products of strip s back``

What is between the transforms is then needed for one strip only; TVM's lowering makes the buffers as small. Where
there are too few strips for the cores, or filters are much to read again, a task takes a part of the channels: it
transforms the strip itself, or all threads do so together before the first part is begun.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import hypot
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import SBlockRV
from tvm.tirx import PrimFunc

from tvm_ext.relax_utils import substitute
from tvm_ext.schedules.annotations import PARTS_ATTRIBUTE, SHARES_ATTRIBUTE, TILE_ATTRIBUTE
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


@dataclass(frozen=True)
class Strips:
    """How a Winograd convolution of one image is divided.

    Attributes
    ----------
    rows : int
        Of tiles in a strip; 0: three kernels of the whole image.
    parts : int
        Of the channels of the result.
    shares : bool
        Whether all threads work on one strip, whose tiles they transform together; otherwise a task transforms a strip,
        multiplies it with a part of the filters, and transforms that back.
    """

    rows: int = 0
    parts: int = 1
    shares: bool = False


def choose_strips(extents: WinogradExtents, machine: Machine) -> Strips:
    """Choose the rows of tiles of a strip, and into how many parts the channels of the result are divided.

    Few filters are read again for each strip, and few tiles are transformed again for each part. Where neither is cheap
    threads share the tiles of the image, as far as their L2 caches hold these together, and wait for each other; where
    that takes longer than storing all tiles and products, there are three kernels.
    """
    best, best_seconds = Strips(), _whole_seconds(extents, machine)
    for strips, kept, most, seconds in _divisions(extents, machine):
        # Of equals the one that keeps least.
        if (kept <= most or strips.rows == 1) and seconds < best_seconds:
            best, best_seconds = strips, seconds
    return best


def _divisions(extents: WinogradExtents, machine: Machine) -> Iterator[tuple[Strips, int, float, float]]:
    """List divisions with the bytes that are kept, those that may be, and the seconds that they take."""
    # Filters that come from memory are read faster in long streams, and where threads wait for each other those of the
    # L3 cache are, too, if there are many.
    filters = _filter_bytes(extents, extents.chunks, machine)
    in_cache, few = filters <= machine.l3 // 2, filters <= machine.l3 // 8
    for parts in divisors(extents.chunks):
        for rows in range(1, extents.tile_rows + 1):
            if parts == 1 or (parts <= machine.cores and in_cache):
                kept = _strip_bytes(extents, rows, parts, machine)
                seconds = _strip_seconds(extents, rows, parts, machine)
                yield Strips(rows, parts), kept, STRIP_OF_L2 * machine.l2, seconds
            # Of several strips threads would wait for each other at each.
            if 1 < machine.cores <= parts and few and rows == extents.tile_rows:
                tiles = rows * extents.tile_columns
                kept = _bytes(extents, tiles, extents.in_channels)
                most = STRIP_OF_L2 * machine.l2 * machine.cores
                yield Strips(rows, parts, True), kept, most, _shared_seconds(extents, rows, parts, machine)


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


def _shared_seconds(extents: WinogradExtents, rows: int, parts: int, machine: Machine) -> float:
    """Seconds where all cores transform a strip, wait, and compute parts of the result."""
    tiles, chunks = rows * extents.tile_columns, extents.chunks // parts
    transformed = _bytes(extents, tiles, extents.in_channels)
    products = _bytes(extents, tiles, chunks * machine.lanes("float32"))
    forward = -(-tiles // machine.cores) * _forward_seconds(extents, machine)
    part = _product_seconds(extents, tiles, chunks, parts, machine) + tiles * chunks * _back_seconds(extents, machine)
    if transformed > machine.l2:
        forward += NOT_HIDDEN * transformed / machine.cores / machine.l3_bandwidth
        part += NOT_HIDDEN * transformed / machine.l3_bandwidth
    if products > machine.l2:
        part += 2 * NOT_HIDDEN * products / machine.l3_bandwidth
    strips, rounds = -(-extents.tile_rows // rows), -(-parts // machine.cores)
    return strips * (forward + rounds * part + 2 * machine.fork_seconds)


def _forward_seconds(extents: WinogradExtents, machine: Machine) -> float:
    """Seconds of one core to transform a tile of all channels."""
    cycles, _ = TRANSFORM_CYCLES[extents.outputs]
    return extents.in_channels / machine.lanes("float32") * cycles / machine.clock


def _back_seconds(extents: WinogradExtents, machine: Machine) -> float:
    """Seconds of one core to transform a vector of channels of the products of a tile."""
    _, cycles = TRANSFORM_CYCLES[extents.outputs]
    return cycles / machine.clock


def _steps_seconds(extents: WinogradExtents, tiles: int, chunks: int, parts: int, machine: Machine) -> float:
    """Seconds of one core for so many tiles and so many vectors of channels of their result."""
    transforms = tiles * (_forward_seconds(extents, machine) + chunks * _back_seconds(extents, machine))
    seconds = transforms + _product_seconds(extents, tiles, chunks, parts, machine)
    return seconds * COST_OF_PARTS if parts > 1 else seconds


def _product_seconds(extents: WinogradExtents, tiles: int, chunks: int, parts: int, machine: Machine) -> float:
    """Seconds of one core for the products of so many tiles with so many vectors of filters, one of ``parts``."""
    reduction = extents.in_channels
    tile = _tile(extents, tiles, chunks, parts, machine)
    work = extents.positions * reduction * tile_cost(tiles, chunks, reduction, tile, machine)
    weights = _filter_bytes(extents, chunks, machine)
    in_cache = weights * parts <= machine.l3 // 2
    loads = (
        machine.slots(weights / (machine.l3_bandwidth if in_cache else machine.weight_bandwidth)) * FILTERS_NOT_HIDDEN
    )
    return hypot(work, loads) / machine.slots(1.0)


def _filter_bytes(extents: WinogradExtents, chunks: int, machine: Machine) -> int:
    """Bytes of transformed filters for so many vectors of channels of the result."""
    return FLOAT_BYTES * extents.positions * extents.in_channels * chunks * machine.lanes("float32")


def _strip_bytes(extents: WinogradExtents, strip: int, parts: int, machine: Machine) -> int:
    return _tile_bytes(extents, strip * extents.tile_columns, extents.chunks // parts, machine)


def _tile_bytes(extents: WinogradExtents, tiles: int, chunks: int, machine: Machine) -> int:
    """Bytes of transformed tiles and their products."""
    return _bytes(extents, tiles, extents.in_channels + chunks * machine.lanes("float32"))


def _bytes(extents: WinogradExtents, tiles: int, channels: int) -> int:
    """Bytes of so many channels of tiles."""
    return FLOAT_BYTES * extents.positions * tiles * channels


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
        parts, shares = (int(schedule.get(forward).annotations[name]) for name in (PARTS_ATTRIBUTE, SHARES_ATTRIBUTE))
        _forward(schedule, forward)
        strips = _multiply(schedule, one, parts)
        _back(schedule, back, strips, parts, machine)
        join = _shared if shares else _joined
        return new_schedule(join(schedule.mod["main"], strips, parts, machine.divides(flops)))

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
    steps = list(func.body.block.body.seq)
    variable = tvm.ir.Var("task", steps[0].loop_var.ty)
    strip, part = (variable, None) if parts == 1 else (variable // parts, variable % parts)
    if strips == 1:
        strip, part = _ZERO, variable
    given = ((strips, strip), (parts, part))
    bodies = [_peeled(step, given[: 1 + (step is not steps[0])]) for step in steps[:3]]
    return _replaced(func, _loop(variable, strips * parts, parallel, tirx.SeqStmt(bodies)), steps[3:])


def _shared(func: PrimFunc, strips: int, parts: int, parallel: bool) -> PrimFunc:
    """Go over the strips one by one: all threads transform its tiles, then each computes parts of the result."""
    steps = list(func.body.block.body.seq)
    strip, part = (tvm.ir.Var(name, steps[0].loop_var.ty) for name in ("strip", "part"))
    at = strip if strips > 1 else _ZERO
    place = _peeled(steps[0], ((strips, at),))
    forward = _loop(place.loop_var, int(place.extent), parallel, place.body)
    given = ((strips, at), (parts, part if parts > 1 else _ZERO))
    back = _loop(part, parts, parallel, tirx.SeqStmt([_peeled(step, given) for step in steps[1:3]]))
    return _replaced(func, _loop(strip, strips, False, tirx.SeqStmt([forward, back])), steps[3:])


_ZERO = tirx.const(0, "int32")


def _loop(variable: Any, extent: int, parallel: bool, body: Any) -> tirx.For:
    kind = tirx.ForKind.PARALLEL if parallel and extent > 1 else tirx.ForKind.SERIAL
    return tirx.For(variable, _ZERO, tirx.const(extent, "int32"), kind, body)


def _peeled(step: Any, given: Sequence[tuple[int, Any]]) -> Any:
    """Take the outermost loops off, of these extents, and put values in the place of their variables."""
    values = {}
    for extent, value in given:
        if not isinstance(step, tirx.For) or int(step.extent) != extent:
            raise ValueError(f"loops of {' and '.join(str(extent) for extent, _ in given)} are not the outermost ones")
        values[step.loop_var] = _ZERO if extent == 1 else value
        step = step.body
    return substitute(step, values)


def _replaced(func: PrimFunc, joined: tirx.For, rest: Sequence[Any]) -> PrimFunc:
    """Put a loop in the place of the first three steps of a kernel."""
    root = func.body.block
    body = tirx.SeqStmt([joined, *rest]) if rest else joined
    block = s_tir.SBlock(
        root.iter_vars, root.reads, root.writes, root.name_hint, body, root.init, root.alloc_buffers,
        root.match_buffers, root.annotations,
    )  # fmt: skip
    return func.with_body(s_tir.SBlockRealize(func.body.iter_values, func.body.predicate, block))
