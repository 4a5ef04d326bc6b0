"""Convolution of 8-bit integers in blocked layout: register tiles of int32 sums, filled by dot-product instructions."""

from __future__ import annotations

import tvm
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import SBlockRV
from tvm.tirx import PrimFunc

from tvm_ext.schedules.annotations import KERNEL_ATTRIBUTE
from tvm_ext.schedules.compute.quantized import SMALL_ATTRIBUTE
from tvm_ext.schedules.cpu.conv_tile import ConvShape, ConvTile, conv_tile
from tvm_ext.schedules.cpu.integer_epilogue import schedule_epilogue
from tvm_ext.schedules.cpu.intrinsics import DotProduct, dot_product, dot_product_intrinsic
from tvm_ext.schedules.cpu.machine import machine_of
from tvm_ext.schedules.kernel.blocks import annotated_block, loop_extents, top_blocks
from tvm_ext.schedules.knobs import divide
from tvm_ext.schedules.rule import new_schedule
from tvm_ext.schedules.simd.prefetch import mark_forgetful, mark_steps


class Conv2DInt8:
    """Schedule an integer convolution with its padding and its rounding epilogue.

    Tasks and register tiles are those of the float convolution; the innermost step is a dot-product instruction.
    """

    name = "cpu.conv2d_int8"

    def apply(self, func: PrimFunc, target: tvm.target.Target, tunable: bool = False) -> Schedule | None:
        """Schedule ``func`` when it holds an integer convolution."""
        schedule = new_schedule(func, tunable)
        conv = annotated_block(schedule, "conv2d_int8")
        if conv is None:
            return None
        machine = machine_of(target)
        form = dot_product(machine, small=SMALL_ATTRIBUTE in schedule.get(conv).annotations)
        tile = conv_tile(_shape_of(schedule, conv), machine)
        store = schedule_epilogue(schedule, conv, machine)
        _apply_tile(schedule, conv, store, _input_copy(schedule), tile, form, machine.pairs_loads)
        return schedule


def _shape_of(schedule: Schedule, conv: SBlockRV) -> ConvShape:
    batch, chunks, out_h, out_w, block_out, in_chunks, kernel_h, kernel_w, packs, _ = loop_extents(schedule, conv)
    source = schedule.get(conv).reads[0].source
    _, row_chunks, height, width, block = (int(extent) for extent in source.shape)
    return ConvShape(
        planes=batch,
        out_chunks=chunks,
        out_h=out_h,
        out_w=out_w,
        block_out=block_out,
        # A step of the tile is one instruction, whatever it multiplies.
        reduction=in_chunks * kernel_h * kernel_w * packs,
        in_chunks=in_chunks,
        counts_weights=False,
        kernel_h=kernel_h,
        input_row_bytes=width * row_chunks * block * (tvm.DataType(source.dtype).bits // 8),
        stride_h=max(1, (height - kernel_h) // max(1, out_h - 1)),
    )


def _input_copy(schedule: Schedule) -> SBlockRV | None:
    """Find the block that pads and widens the input; padding that is widened afterwards becomes part of that."""
    blocks = [block for block in top_blocks(schedule) if schedule.get(block).annotations.get(KERNEL_ATTRIBUTE) == "pad"]
    for block in blocks[:-1]:
        schedule.compute_inline(block)
    return blocks[-1] if blocks else None


def _apply_tile(
    schedule: Schedule,
    conv: SBlockRV,
    store: SBlockRV,
    pad: SBlockRV | None,
    tile: ConvTile,
    form: DotProduct,
    keeps_apart: bool,
) -> None:
    n, oc, h, w, lanes = schedule.get_loops(store)
    part, group, vector = divide(schedule, oc, [tile.channel_parts, None, tile.vectors], 4)
    band, row = divide(schedule, h, [None, tile.rows])
    strip, column = divide(schedule, w, [None, tile.columns], 28)
    schedule.reorder(n, part, band, group, row, strip, vector, column, lanes)
    task = schedule.fuse(n, part, band)
    if tile.parallel:
        schedule.parallel(task)
    schedule.vectorize(lanes)
    schedule.compute_at(conv, strip, preserve_unit_loops=True)
    schedule.set_scope(conv, 0, "local")
    n, vector_in, row_in, column_in, lanes_in, ic, kh, kw, ip, ik = schedule.get_loops(conv)[-10:]
    width = int(schedule.get(lanes_in).extent)
    dotted = form.has(width)
    if dotted:
        schedule.reorder(n, row_in, ic, kh, kw, ip, column_in, vector_in, lanes_in, ik)
    else:
        schedule.reorder(n, row_in, ic, kh, kw, ip, ik, column_in, vector_in, lanes_in)
        schedule.vectorize(lanes_in)
    for loop in (column_in, vector_in, column, vector):
        schedule.unroll(loop)
    if keeps_apart:
        mark_steps(schedule, ic)
    elif form.extends and int(schedule.get(ip).extent) == 1 and int(schedule.get(kw).extent) > 1:
        # All channels are one pack: neighbouring outputs share inputs, which LLVM would keep for all taps of a row.
        mark_forgetful(schedule, ic)
    initial = schedule.decompose_reduction(conv, ic)
    *_, vector_init, column_init, lanes_init = schedule.get_loops(initial)
    for loop in (vector_init, column_init):
        schedule.unroll(loop)
    schedule.vectorize(lanes_init)
    # Before the innermost step becomes opaque: what it reads of the input must still be seen.
    if pad is not None:
        schedule.compute_at(pad, task, preserve_unit_loops=True)
        schedule.vectorize(schedule.get_loops(pad)[-1])
    if dotted:
        schedule.tensorize(lanes_in, dot_product_intrinsic(form, width))
