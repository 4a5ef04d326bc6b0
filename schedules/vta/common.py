"""What the schedules for VTA share: tiles in the on-chip memories around a sum of products.

The function is a product (a convolution or matrix product on packed data), then sums and element-wise blocks, then a
store. Everything is computed tile by tile of the result; in a tile the reduction is cut into parts, and a part of the
inputs and of the weights is loaded at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvm_ext.schedules.knobs import divide

SCOPES = {"inp": "local.vta_inp", "wgt": "local.vta_wgt", "acc": "local.vta_acc"}
"""Storage scope of each on-chip memory."""

VIRTUAL_THREADS = "vta.virtual_threads"
"""Annotation of a loop whose turns run side by side, each with buffers of its own."""

LANES = 2
"""Axes at the end of every tensor that are one element of VTA."""

_REDUCTION = 2  # tvm.tirx.IterVar.CommReduce


@dataclass(frozen=True)
class Axis:
    """How an axis of the result is divided.

    Attributes
    ----------
    extent : int
    tile : int
        Elements of a tile.
    threads : int or None
        Virtual threads; None if there are none and no tuner may choose any.
    """

    extent: int
    tile: int
    threads: int | None = None


@dataclass(frozen=True)
class Blocks:
    """The blocks of a function that VTA can run.

    Attributes
    ----------
    anchor : SBlockRV
        The product that the function is named for.
    padding : tuple of SBlockRV
        Pad what the product reads.
    others : tuple of SBlockRV
        Further sums and element-wise blocks on accumulators, in order.
    store : SBlockRV
        Cuts the result down to bytes.
    """

    anchor: SBlockRV
    padding: tuple[SBlockRV, ...]
    others: tuple[SBlockRV, ...]
    store: SBlockRV


def find_blocks(schedule: Schedule, summed: int) -> Blocks | None:
    """Find the blocks of a product over ``summed`` axes besides that of an element; None for other functions."""
    blocks = schedule.get_child_blocks(schedule.get_sblock("root"))
    if len(blocks) < 2:
        return None
    anchor, padding, others = None, [], []
    for block in blocks[:-1]:
        body = schedule.get(block)
        kinds = [int(axis.iter_type) for axis in body.iter_vars]
        dtype = str(body.writes[0].source.dtype)
        if dtype == "int32" and kinds.count(_REDUCTION) == summed + 1 and anchor is None:
            anchor = block
        elif dtype == "int32" and anchor is not None:
            others.append(block)
        elif dtype == "int8" and anchor is None and _REDUCTION not in kinds:
            padding.append(block)
        else:
            return None
    last = schedule.get(blocks[-1])
    stores = str(last.writes[0].source.dtype) == "int8" and not any(
        int(axis.iter_type) == _REDUCTION for axis in last.iter_vars
    )
    return Blocks(anchor, tuple(padding), tuple(others), blocks[-1]) if anchor is not None and stores else None


def extents_of(schedule: Schedule, block: SBlockRV) -> list[int]:
    """Extents of the axes of a block."""
    return [int(axis.dom.extent) for axis in schedule.get(block).iter_vars]


def schedule_product(
    schedule: Schedule, blocks: Blocks, axes: Sequence[Axis], order: Sequence[int], reduction_tile: int
) -> None:
    """Tile a function around its product.

    Parameters
    ----------
    schedule : Schedule
    blocks : Blocks
    axes : sequence of Axis
        Of the result, without those of an element.
    order : sequence of int
        The loops over tiles, outermost first, by axis.
    reduction_tile : int
        Turns of the first axis that is summed over for which is loaded at once.
    """
    anchor = blocks.anchor
    for block in (anchor, *blocks.others):
        schedule.set_scope(block, 0, SCOPES["acc"])
    caches = _caches(schedule, anchor)
    for block in blocks.padding:
        schedule.compute_inline(block)
    for block in blocks.others:
        _caches(schedule, block)  # at the root: they stay on the chip unless they are moved below
    place, count = tile_result(schedule, blocks.store, axes, order)
    # Each goes right before what reads it; sums last, so that they come after what they are added to.
    sums = {True: [anchor], False: []}
    for block in blocks.others:
        sums[is_sum(schedule, block)].append(block)
    for block in (*reversed(sums[False]), *reversed(sums[True])):
        schedule.compute_at(block, place, preserve_unit_loops=True)
    _move_streamed_inputs(schedule, blocks, place)
    for block in (anchor, *blocks.others):
        loops = schedule.get_loops(block)[count:]
        if block is anchor:
            _tile_reduction(schedule, anchor, loops, len(axes), reduction_tile, caches)
        elif is_sum(schedule, block):
            schedule.decompose_reduction(block, loops[0])


def is_sum(schedule: Schedule, block: SBlockRV) -> bool:
    """Whether a block sums up."""
    return any(int(axis.iter_type) == _REDUCTION for axis in schedule.get(block).iter_vars)


def _caches(schedule: Schedule, block: SBlockRV) -> list[SBlockRV]:
    """Read the operands of a block from the on-chip memories; the memory follows from type and shape of an element."""
    caches = []
    for number, region in enumerate(schedule.get(block).reads):
        buffer = region.source
        if str(buffer.scope()) == "global":
            rows, columns = (int(extent) for extent in buffer.shape[-LANES:])
            is_weight = str(buffer.dtype) == "int8" and _is_weight(schedule, block, number, (rows, columns))
            memory = "acc" if str(buffer.dtype) == "int32" else "wgt" if is_weight else "inp"
            caches.append(schedule.cache_read(block, number, SCOPES[memory]))
    return caches


def _is_weight(schedule: Schedule, block: SBlockRV, number: int, lanes: tuple[int, int]) -> bool:
    """Whether an operand of a product has output channels, the last axis of the result, as its last axis but one."""
    body = schedule.get(block)
    column = body.writes[0].region[-1].min
    row = body.reads[number].region[-LANES].min
    return lanes[0] == lanes[1] and bool(row.same_as(column))


def tile_result(schedule: Schedule, store: SBlockRV, axes: Sequence[Axis], order: Sequence[int]) -> tuple[LoopRV, int]:
    """Divide the loops of the result; gives the innermost loop over tiles, and how many there are up to it."""
    outer, threads, inner = [], [], []
    for loop, axis in zip(schedule.get_loops(store), axes, strict=False):
        middle = [] if axis.threads is None else [axis.threads]
        turns, *thread, tile = divide(schedule, loop, [None, *middle, min(axis.tile, axis.extent)], largest=axis.extent)
        outer.append(turns)
        threads += thread
        inner.append(tile)
    walked = [outer[axis] for axis in order]
    schedule.reorder(*walked, *threads, *inner)
    for thread in threads:
        schedule.annotate(thread, VIRTUAL_THREADS, 1)
    return (threads or walked)[-1], len(walked) + len(threads)


def _move_streamed_inputs(schedule: Schedule, blocks: Blocks, place: LoopRV) -> None:
    """Load operands of further sums with each tile if they are as large as the result; others once, at the start."""
    result = prod(int(extent) for extent in schedule.get(blocks.store).writes[0].source.shape)
    for block in blocks.others:
        for producer in schedule.get_producers(block):
            body = schedule.get(producer)
            buffer = body.writes[0].source
            is_cache = len(body.reads) == 1 and str(body.reads[0].source.scope()) == "global"
            if is_cache and prod(int(extent) for extent in buffer.shape) >= result:
                schedule.compute_at(producer, place, preserve_unit_loops=True)


def _tile_reduction(
    schedule: Schedule, anchor: SBlockRV, loops: Sequence[LoopRV], axes: int, tile: int, caches: Sequence[SBlockRV]
) -> None:
    """Divide the first summed axis, and order the steps: outputs but the innermost, the sum, the innermost outputs.

    The window is outside of the input blocks, so that the micro-ops of some of its rows are part of those of all.
    """
    spatial, lanes = list(loops[:axes]), list(loops[axes : axes + LANES])
    first, *rest = loops[axes + LANES : -1]
    turns, part = divide(schedule, first, [None, tile], largest=int(schedule.get(first).extent))
    schedule.reorder(turns, *spatial[:-1], *rest, part, spatial[-1], *lanes, loops[-1])
    for cache in caches:
        schedule.compute_at(cache, turns, preserve_unit_loops=True)
    schedule.decompose_reduction(anchor, turns)
