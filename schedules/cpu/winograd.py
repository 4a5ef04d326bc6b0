"""Winograd convolutions: when they pay, and the schedules of their transforms."""

from __future__ import annotations

from collections.abc import Sequence
from math import hypot, prod

import tvm
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.tirx import PrimFunc

from tvm_ext.schedules.compute.bfloat16 import PAIR
from tvm_ext.schedules.compute.winograd import tiles
from tvm_ext.schedules.compute.winograd_transforms import KERNEL, STEADY_OUTPUTS
from tvm_ext.schedules.cpu.elementwise import vectorize_and_divide
from tvm_ext.schedules.cpu.machine import Machine, machine_of
from tvm_ext.schedules.cpu.tasks import share_out
from tvm_ext.schedules.kernel.blocks import annotated_block, inline_epilogue, loop_extents
from tvm_ext.schedules.rule import new_schedule

TRANSFORM_CYCLES = {2: (110, 70), 4: (300, 220), 6: (590, 610)}
"""Cycles of a core for one vector of channels of a tile: transforming the input, and the products back. They are the
instructions of the transforms, which are the same on every machine."""

STEADY_CYCLES = 600, 400
"""The same of the tiles of :data:`STEADY_OUTPUTS` whose operands are rounded to bfloat16."""

CHOSEN_OUTPUTS = (2, 4)
"""Outputs of a tile along an axis that are chosen without measuring: more of them round too badly to be taken
unasked."""

GAIN, GAIN_OVER_PAIRS = 1.15, 1.6
"""How much faster a Winograd convolution has to look to be preferred: it rounds less well than a direct one in float32.
It rounds better than one in bfloat16, but its product, of many small matrices, takes up to half again as long as it
looks (measured on Zen 5)."""


def winograd_outputs(
    planes: int,
    in_channels: int,
    out_channels: int,
    out_extents: tuple[int, int],
    machine: Machine,
    depth_taps: int = 1,
    pairs: bool = False,
) -> int:
    """Choose the outputs of a tile along an axis for a 3 x 3 convolution of stride 1: 4, 2, or 0 for a direct one.

    Costs are cycles of a core. Weights grow with the size of the tile, and come from the cache that holds them.

    Parameters
    ----------
    planes : int
        Images, or images times the depth of the output.
    out_extents : tuple of two int
        Rows and columns of the output.
    depth_taps : int
        Taps of the filters along the depth.
    pairs : bool
        Whether a direct convolution would multiply pairs of bfloat16, two in the time of one float32.
    """
    lanes = machine.lanes("float32")
    steps = depth_taps * in_channels * -(-out_channels // lanes)
    positions = planes * out_extents[0] * out_extents[1]
    # A machine without fused multiply-adds may do less than one in a cycle: its transforms take as long, too.
    units = max(1.0, machine.units)
    work = positions * steps * KERNEL**2 / units
    if machine.streams_weights:
        work = hypot(work, _streaming(KERNEL**2 * steps * lanes * 4, machine))
    best, best_cost = 0, work / (2 * GAIN_OVER_PAIRS if pairs else GAIN)
    for outputs in CHOSEN_OUTPUTS:
        cost = winograd_cycles(outputs, planes, in_channels, out_channels, out_extents, machine, depth_taps)
        if cost < best_cost:
            best, best_cost = outputs, cost
    return best


def pays_steady(
    planes: int, in_channels: int, out_channels: int, out_extents: tuple[int, int], machine: Machine
) -> bool:
    """Whether a 3 x 3 convolution of bfloat16 of images is faster by Winograd's algorithm, in bfloat16, too.

    The parameters are those of :func:`winograd_outputs`.
    """
    shape = planes, in_channels, out_channels, out_extents, machine
    lanes, units = machine.lanes("float32"), max(1.0, machine.units)
    steps = KERNEL**2 * in_channels * -(-out_channels // lanes) // PAIR
    work = planes * out_extents[0] * out_extents[1] * steps / units
    if machine.streams_weights:
        work = hypot(work, _streaming(steps * lanes * 4, machine))
    return winograd_cycles(STEADY_OUTPUTS, *shape, steady=True) < work / GAIN


def transform_cycles(outputs: int, steady: bool = False) -> tuple[int, int]:
    """Cycles of a core to transform a vector of channels of a tile: of the input, and of the products back."""
    return STEADY_CYCLES if steady else TRANSFORM_CYCLES[outputs]


def winograd_cycles(
    outputs: int,
    planes: int,
    in_channels: int,
    out_channels: int,
    out_extents: tuple[int, int],
    machine: Machine,
    depth_taps: int = 1,
    steady: bool = False,
) -> float:
    """Estimate the cycles of a core for a 3 x 3 convolution with so many outputs of a tile along an axis.

    With ``steady`` operands are rounded to bfloat16. The other parameters are those of :func:`winograd_outputs`.
    """
    lanes = machine.lanes("float32")
    steps = depth_taps * in_channels * -(-out_channels // lanes)
    steps = steps // PAIR if steady else steps
    units = max(1.0, machine.units)
    forward, backward = transform_cycles(outputs, steady)
    size = (outputs + KERNEL - 1 + steady) ** 2
    tile_rows, tile_columns = tiles(out_extents, outputs)
    count = planes * tile_rows * tile_columns
    weight_bytes = size * steps * lanes * 4
    bandwidth = machine.weight_bandwidth if weight_bytes > machine.l3 // 2 else machine.l3_bandwidth
    # Few rows leave a register tile too small to hide its loads.
    multiply = size * steps * max(count, 6) / units
    loads = weight_bytes / (bandwidth / machine.clock) / machine.cores if weight_bytes > machine.l2 // 2 else 0.0
    transform = count * (in_channels / lanes * forward + -(-out_channels // lanes) * backward)
    if machine.streams_weights:
        return hypot(multiply, _streaming(weight_bytes, machine)) + transform
    return max(multiply, loads * machine.cores) + transform


def _streaming(nbytes: int, machine: Machine) -> float:
    """Cycles of all cores in which weights come from memory, fetched ahead, each by one core."""
    return nbytes / machine.fetched_bandwidth * machine.clock


class Winograd:
    """Schedule the transforms of a Winograd convolution, the epilogue fused to the one back."""

    name = "cpu.winograd"

    def apply(self, func: PrimFunc, target: tvm.target.Target, tunable: bool = False) -> Schedule | None:
        """Schedule ``func`` when it holds one of the transforms."""
        schedule = new_schedule(func, tunable)
        machine = machine_of(target)
        forward = annotated_block(schedule, "winograd_input")
        if forward is not None:
            _forward(schedule, forward, machine)
            return schedule
        back = annotated_block(schedule, "winograd_output")
        if back is not None:
            _back(schedule, back, machine)
            return schedule
        return None


def _forward(schedule: Schedule, transformed: SBlockRV, machine: Machine) -> None:
    tile, half = (annotated_block(schedule, name) for name in ("winograd_tile", "winograd_half"))
    assert tile is not None
    assert half is not None
    lanes = loop_extents(schedule, tile)[-1]
    positions, *places, channels = loop_extents(schedule, transformed)
    outputs = round(positions**0.5) - KERNEL + 1
    position, *outer, c = schedule.get_loops(transformed)
    chunk, lane = schedule.split(c, [None, lanes])
    schedule.reorder(*outer, chunk, position, lane)
    transform_at(schedule, (half, tile), chunk, (position, lane))
    seconds = prod(places) * channels / lanes * TRANSFORM_CYCLES[outputs][0] / machine.clock
    share_out(schedule, [*outer, chunk], seconds, machine)


def _back(schedule: Schedule, tile: SBlockRV, machine: Machine) -> None:
    half = annotated_block(schedule, "winograd_half")
    assert half is not None
    *places, outputs, _, _ = loop_extents(schedule, tile)
    store, rest = inline_epilogue(schedule, tile)
    if rest is not None:
        vectorize_and_divide(schedule, rest, machine)
    *outer, h, w, lane = schedule.get_loops(store)
    row, x = schedule.split(h, [None, outputs])
    column, y = schedule.split(w, [None, outputs])
    schedule.reorder(*outer, row, column, x, y, lane)
    transform_at(schedule, (tile, half), column, (x, y, lane))
    seconds = prod(places) * TRANSFORM_CYCLES[outputs][1] / machine.clock
    share_out(schedule, [*outer, row], seconds, machine)


def transform_at(schedule: Schedule, steps: Sequence[SBlockRV], loop: LoopRV, inner: Sequence[LoopRV]) -> None:
    """Compute the steps of a transform in registers, for one vector of a tile at a time.

    Parameters
    ----------
    schedule : Schedule
    steps : sequence of block
        What the transform computes on the way, last one first: rows, columns and a vector of channels.
    loop : loop
        Over the vectors of the tiles.
    inner : sequence of loop
        Those inside it, of the result, the vector last.
    """
    for block in steps:
        schedule.compute_at(block, loop, preserve_unit_loops=True)
        schedule.set_scope(block, 0, "local")
    for loops in (*(schedule.get_loops(block)[-3:] for block in steps), inner):
        *written_out, lane = loops
        for each in written_out:
            schedule.unroll(each)
        schedule.vectorize(lane)
