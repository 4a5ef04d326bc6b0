"""Kernels that transpose: what is contiguous in a tensor they read is not contiguous in what they write.

Permutations, conversions between layouts, depth-to-space and their like, with what is computed on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import gcd, prod
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm.ir.prim import expr as prim
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import SBlockRV
from tvm.tirx import PrimFunc

from tvm_ext.schedules.cpu.cost import block_seconds
from tvm_ext.schedules.cpu.elementwise import vector_lanes, vectorize_and_divide
from tvm_ext.schedules.cpu.machine import Machine, machine_of
from tvm_ext.schedules.cpu.streaming import stream_large_result
from tvm_ext.schedules.cpu.tasks import share_out, share_out_one
from tvm_ext.schedules.kernel.access import Axes, axes_of
from tvm_ext.schedules.kernel.blocks import top_blocks
from tvm_ext.schedules.kernel.index_values import POINTS, evaluated
from tvm_ext.schedules.kernel.inline import inline_producers
from tvm_ext.schedules.kernel.operations import data_parallel_blocks
from tvm_ext.schedules.kernel.simplify_indices import simplify_indices
from tvm_ext.schedules.rule import new_schedule
from tvm_ext.schedules.simd.loops import mark_simd
from tvm_ext.schedules.simd.stream import SMALLEST_STREAM
from tvm_ext.schedules.simd.tile_marks import mark_tile
from tvm_ext.schedules.simd.tile_shapes import LINE, PAGE

SMALLEST_SIDE, LARGEST_SIDE = 4, 16
"""Sides of tiles: below, loading lane by lane is as good; above, the tile does not fit the registers."""

STAGED_PART = 4
"""Blocks of a result that is streamed take one part in so many of the L2 cache, beside what is read for them.

They pay where rows of the result are more than a page apart and a row of a tile is a part of a line. Measured on Zen 3,
one thread, 64 MiB: 1.6 times the speed of tiles that are stored at once; with rows of 4 KiB and less the two are equal,
with rows of 256 bytes, which are written one behind the other in any case, blocks are slower. Tiles whose rows are
whole lines are faster stored at once: on Zen 5 1.4 times with 16 MiB, 1.3 times with 64, the next ones being fetched.
"""

TRANSPOSE_FACTOR = 2.0
"""How much longer a transposition takes than a copy."""


class Transpose:
    """Schedule a data-parallel kernel in which a block transposes."""

    name = "cpu.transpose"

    def apply(self, func: PrimFunc, target: tvm.target.Target, tunable: bool = False) -> Schedule | None:
        """Schedule ``func`` when all blocks compute single elements and one of them transposes."""
        schedule = new_schedule(func, tunable)
        blocks = data_parallel_blocks(schedule)
        if not blocks:
            return None
        machine = machine_of(target)
        try:
            blocks = inline_producers(schedule)
            if not tunable:  # what is inlined leaves remainders that are none, which TVM's analysis stumbles over
                schedule = new_schedule(simplify_indices(schedule.mod["main"]))
                blocks = top_blocks(schedule)
            done = [transpose(schedule, block, machine) for block in blocks]
            if not any(done):
                return None
            for block, transposes in zip(blocks, done, strict=True):
                if not transposes:
                    vectorize_and_divide(schedule, block, machine)
        except tvm.s_tir.ScheduleError:
            return None
        return schedule


def transpose(schedule: Schedule, block: SBlockRV, machine: Machine) -> bool:
    """Tile a block if it transposes; otherwise leave it as it is."""
    if _transpose_from_uneven_blocks(schedule, block, machine):
        return True
    _split_mixed_axes(schedule, block)
    axes = axes_of(schedule, block)
    pair = transposed_axes(axes)
    if pair is None:
        return False
    read, written = pair
    lanes = min(vector_lanes(schedule, block, machine), LARGEST_SIDE)
    side = min(lanes, *(1 << (int(axes.extents[axis] or 1) - 1).bit_length() for axis in pair))
    if side < SMALLEST_SIDE:
        return False
    loops = list(schedule.get_loops(block))
    seconds = TRANSPOSE_FACTOR * block_seconds(schedule, block, machine)
    rest = [loop for number, loop in enumerate(loops) if number not in pair]
    inner, innermost = loops[read], loops[written]
    schedule.reorder(*rest, inner, innermost)
    if rest:
        share_out(schedule, rest, seconds, machine)
    else:
        inner = share_out_one(schedule, inner, seconds, machine, side)
    mark_simd(schedule, innermost, side)
    size = tvm.DataType(schedule.get(block).writes[0].source.dtype).bits // 8
    stride, vector = _row_stride(axes, read) * size, side * size
    row, is_far = int(axes.extents[written] or 0) * size, stride > PAGE
    staging, once, aligned = 0, False, gcd(stride, vector)
    # Near rows of which vectors are not aligned would share lines with stores that go through the caches.
    if is_far or (aligned >= SMALLEST_STREAM and row > LARGEST_SIDE):
        streams = stream_large_result(schedule, block, innermost, machine, is_far)
        once = streams and machine.fetches_once and machine.cores > 1
        staging = _staging(machine, vector, aligned, is_far) if streams and row != vector else 0
    mark_tile(schedule, inner, side, staging, once, machine.strip)
    return True


def _staging(machine: Machine, vector: int, aligned: int, is_far: bool) -> int:
    """Choose the bytes of the buffer that a result goes through to memory; 0 where tiles are stored there at once.

    ``vector`` is what a tile stores of a row in bytes, ``aligned`` the largest part of it that is aligned in all rows.
    """
    if vector == LINE and (aligned == LINE or machine.joins_parts):
        return 0
    if vector == LINE // 2 == aligned and machine.joins_parts and not is_far:
        return 0
    if machine.joins_parts or aligned < SMALLEST_STREAM:  # the longer a row of a block, the fewer lines are shared
        return machine.l2 // STAGED_PART
    return machine.l1 if is_far else machine.l1 // 2


def _transpose_from_uneven_blocks(schedule: Schedule, block: SBlockRV, machine: Machine) -> bool:
    """Tile a copy out of blocks of channels which the channels do not fill; the last block has tiles of its own.

    As in ``y[n, c, i, j] = x[n, c // 8, i, j, c % 8]`` for 131 channels.
    """
    body, axes = schedule.get(block), axes_of(schedule, block)
    if [access.written for access in axes.accesses] != [False, True]:
        return False
    read, written = (access.strides for access in axes.accesses)
    if read is None or written is None:
        return False
    mixed = [axis for axis, stride in enumerate(read) if stride is None]
    target, flat = _unit_stride(axes, written), axes.flat_suffix()
    first = len(axes.extents) - flat  # of the axes of pixels, which become one
    if len(mixed) != 1 or mixed[0] >= first or target is None or target < first or read[target] in (0, 1):
        return False
    channel = body.iter_vars[mixed[0]].var
    *places, lane = (item.min for item in body.reads[0].region)
    if not isinstance(lane, prim.FloorMod) or not channel.same_as(lane.a):
        return False
    chunks = [place for place in places if isinstance(place, prim.FloorDiv) and channel.same_as(place.a)]
    if len(chunks) != 1 or not tvm_ffi.structural_equal(chunks[0].b, lane.b):
        return False
    size, channels = int(lane.b) if isinstance(lane.b, prim.IntImm) else 0, axes.extents[mixed[0]] or 0
    side = min(vector_lanes(schedule, block, machine), LARGEST_SIDE)
    if side < SMALLEST_SIDE or not size or size % side or channels <= size or channels % size < 2:  # one is no tile
        return False
    loops = list(schedule.get_loops(block))
    seconds = TRANSPOSE_FACTOR * block_seconds(schedule, block, machine)
    chunk, inner = schedule.split(loops[mixed[0]], [None, size])
    rest = [chunk if number in mixed else loop for number, loop in enumerate(loops[:first])]
    pixel = schedule.fuse(*loops[first:]) if flat > 1 else loops[-1]
    schedule.reorder(*rest, inner, pixel)
    share_out(schedule, rest, seconds, machine)
    mark_simd(schedule, pixel, side)
    mark_tile(schedule, inner, side)
    return True


def _row_stride(axes: Axes, read: int) -> int:
    """Elements between what is written next to each other in the axis along which a tensor is read; 0 if not known."""
    written = next(access for access in axes.accesses if access.written)
    return (written.strides[read] or 0) if written.strides is not None else 0


def transposed_axes(axes: Axes) -> tuple[int, int] | None:
    """Find the axis along which a tensor that is read is contiguous, and the one along which the result is.

    None when they are the same, or when there is no such axis.
    """
    written = next(access for access in axes.accesses if access.written)
    if written.strides is None:
        return None
    target = _unit_stride(axes, written.strides)
    if target is None:
        return None
    for access in axes.accesses:
        if access.written or access.strides is None or access.strides[target] in (0, 1, None):
            continue
        # Where windows overlap, an element is met along several axes.
        sources = [axis for axis, stride in enumerate(access.strides) if stride == 1 and axes.extents[axis] != 1]
        if sources:
            return max(sources, key=lambda axis: axes.extents[axis] or LARGEST_SIDE), target
    return None


def _unit_stride(axes: Axes, strides: tuple[int | None, ...]) -> int | None:
    return next((axis for axis, stride in enumerate(strides) if stride == 1 and axes.extents[axis] != 1), None)


def _split_mixed_axes(schedule: Schedule, block: SBlockRV) -> None:
    """Split an axis of which several dimensions of a tensor each take a part, as in ``a[c // 16, c % 16]``."""
    body = schedule.get(block)
    variables = [iter_var.var for iter_var in body.iter_vars]
    axes = axes_of(schedule, block)
    places: dict[int, list[int]] = {}
    for axis, variable in enumerate(variables):
        extent = axes.extents[axis]
        if extent is None or not any(a.strides is not None and a.strides[axis] is None for a in axes.accesses):
            continue
        found = _places(body, variable, extent)
        if found:
            places[axis] = found
    if not places:
        return

    def split(*indices: Any) -> list[Any]:
        result: list[Any] = []
        for axis, index in enumerate(indices):
            for high, low in pairwise([0, *places.get(axis, ()), 1]):
                digit = index // low if low > 1 else index
                result.append(digit % (high // low) if high else digit)
        return result

    index_map = tvm.tirx.IndexMap.from_func(split, ndim=len(variables))
    tried = schedule.copy()
    tried.transform_block_layout(block, index_map)
    if _same_places(body, tried.get(block), split, axes.extents):
        schedule.transform_block_layout(block, index_map)


_COMPARISONS = prim.LT, prim.LE, prim.GT, prim.GE, prim.EQ, prim.NE


def _same_places(before: Any, after: Any, split: Callable[..., list[Any]], extents: Sequence[int | None]) -> bool:
    """Whether a block reads at the same places after its axes were split, and compares the same.

    TVM's affine analysis, which simplifies what a transformed block reads, gets some sums that are divided wrong:
    ``(c % 64 - 43) // 8`` becomes ``(c + 5) % 64 // 8 - 6``.
    """
    if any(extent is None for extent in extents):
        return False
    known = [int(extent or 1) for extent in extents]
    count = min(POINTS, prod(known))
    generator = np.random.default_rng(0)
    chosen = (
        np.unravel_index(np.arange(count), known)
        if count < POINTS
        else [generator.integers(0, extent, count) for extent in known]
    )
    old = dict(zip((iter_var.var for iter_var in before.iter_vars), chosen, strict=True))
    new = dict(zip((iter_var.var for iter_var in after.iter_vars), split(*chosen), strict=True))

    def computed(body: Any, points: dict[Any, Any]) -> list[Any] | None:
        exprs: list[Any] = []
        tvm_ffi.structural_walk(
            body.body.value,
            [(tvm.ir.TensorLoad, lambda load: exprs.extend(load.indices)), (_COMPARISONS, exprs.append)],
        )
        values = [evaluated(expr, points) for expr in exprs]
        return None if any(value is None for value in values) else values

    first, second = computed(before, old), computed(after, new)
    if first is None or second is None or len(first) != len(second):
        return False
    pairs = zip(first, second, strict=True)
    return all(bool(np.all(np.equal(one, other))) for one, other in pairs)


def _places(body: Any, variable: Any, extent: int) -> list[int]:
    """Find the multiples of one at which what a block reads cuts an axis, the largest first.

    They are 32000 and 2000 in ``a[i // 32000, i % 32000 // 2000, i % 2000]``. Where sums are divided, it is the one
    place that all divisors are multiples of.
    """
    cuts: set[int] = set()
    divisors: list[int] = []
    analyzer = tvm.sym.Analyzer()
    for iter_var in body.iter_vars:
        analyzer.bind(iter_var.var, iter_var.dom)

    def unit(node: Any) -> int:
        """Give what a step of an expression is in steps of the variable; 0 where it is not of that alone."""
        if variable.same_as(node):
            return 1
        if not isinstance(node, prim.FloorMod | prim.FloorDiv) or not isinstance(node.b, prim.IntImm):
            return 0
        inner = unit(node.a)
        cuts.add(inner * int(node.b))
        return inner * int(node.b) if isinstance(node, prim.FloorDiv) else inner

    def note(node: Any) -> None:
        used = tvm.tirx.analysis.undefined_vars(node.a)
        if isinstance(node.b, prim.IntImm) and any(variable.same_as(other) for other in used):
            divisors.append(int(node.b))

    def cut(node: Any) -> None:
        if any(variable.same_as(other) for other in tvm.tirx.analysis.undefined_vars(node.a)):
            cuts.add(unit(node))

    for region in body.reads:
        for item in region.region:
            tvm_ffi.structural_walk(item.min, ((prim.FloorMod, prim.FloorDiv), note))
            tvm_ffi.structural_walk(analyzer.simplify(item.min), ((prim.FloorMod, prim.FloorDiv), cut))
    found = [extent, *sorted((place for place in cuts if 1 < place < extent), reverse=True)]
    if 0 not in cuts and len(found) > 1 and all(high % low == 0 for high, low in pairwise(found)):
        return found[1:]
    factor = gcd(extent, *divisors) if divisors else 1
    return [factor] if 1 < factor < extent else []
