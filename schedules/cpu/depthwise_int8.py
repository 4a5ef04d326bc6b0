"""Depthwise convolution of 8-bit integers in blocked layout: taps of a row are multiplied four at a time."""

from __future__ import annotations

from collections.abc import Sequence

import tvm
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.tirx import PrimFunc

from tvm_ext.schedules.cpu.integer_epilogue import schedule_epilogue
from tvm_ext.schedules.cpu.intrinsics import DotProduct, depthwise_intrinsic, dot_product
from tvm_ext.schedules.cpu.machine import Machine, machine_of
from tvm_ext.schedules.cpu.window import divisor_strip, row_bands
from tvm_ext.schedules.kernel.blocks import annotated_block, loop_extents
from tvm_ext.schedules.knobs import divide
from tvm_ext.schedules.rule import new_schedule

UNROLLED_TAPS = 16
"""Dot products of one output up to which the window is written out."""


def taps_in_a_pack(machine: Machine, block: int, dilation: Sequence[int]) -> int:
    """How many neighbouring taps of a row one instruction multiplies: the weights are packed to match."""
    form = dot_product(machine)
    return form.pack if form.inputs == "uint8" and form.has(block) and dilation[1] == 1 else 1


class DepthwiseInt8:
    """Schedule an integer depthwise convolution with its padding and its rounding epilogue.

    A task is a channel block and a band of rows, whose padded input it copies once. A strip of columns is accumulated
    over the window in registers.
    """

    name = "cpu.depthwise_int8"

    def apply(self, func: PrimFunc, target: tvm.target.Target, tunable: bool = False) -> Schedule | None:
        """Schedule ``func`` when it holds an integer depthwise convolution."""
        schedule = new_schedule(func, tunable)
        window = annotated_block(schedule, "depthwise_conv2d_int8")
        if window is None:
            return None
        machine = machine_of(target)
        batch, chunks, rows, width, lanes, kernel_h, packs, _ = loop_extents(schedule, window)
        store = schedule_epilogue(schedule, window, machine)
        pad = annotated_block(schedule, "pad")
        n, c, h, w, lane = schedule.get_loops(store)
        work = 2 * batch * chunks * rows * width * lanes * kernel_h * packs
        parallel = machine.divides(work)
        bands = row_bands(batch * chunks, rows, machine.cores) if parallel else 1
        band, _ = divide(schedule, h, [bands, None])
        task = schedule.fuse(n, c, band)
        if parallel:
            schedule.parallel(task)
        strip, column = divide(schedule, w, [None, divisor_strip(width, machine.vector_registers)], 28)
        schedule.vectorize(lane)
        schedule.unroll(column)
        schedule.compute_at(window, strip, preserve_unit_loops=True)
        schedule.set_scope(window, 0, "local")
        if pad is not None:
            schedule.compute_at(pad, task, preserve_unit_loops=True)
            schedule.vectorize(schedule.get_loops(pad)[-1])
        _accumulate(schedule, window, strip, dot_product(machine), kernel_h * packs <= UNROLLED_TAPS)
        return schedule


def _accumulate(schedule: Schedule, window: SBlockRV, strip: LoopRV, form: DotProduct, unrolled: bool) -> None:
    """Compute the window for one strip in registers."""
    n, c, h, column, lane, kh, kp, kk = schedule.get_loops(window)[-8:]
    lanes, pack = int(schedule.get(lane).extent), int(schedule.get(kk).extent)
    if pack > 1:
        schedule.reorder(n, c, h, kh, kp, column, lane, kk)
    else:
        schedule.reorder(n, c, h, kh, kp, kk, column, lane)
        schedule.vectorize(lane)
    schedule.unroll(column)
    if unrolled:
        schedule.unroll(kh)
        schedule.unroll(kp)
    initial = schedule.decompose_reduction(window, kh)
    *_, column_init, lane_init = schedule.get_loops(initial)
    schedule.unroll(column_init)
    schedule.vectorize(lane_init)
    if pack > 1:
        schedule.tensorize(lane, depthwise_intrinsic(form, lanes))
