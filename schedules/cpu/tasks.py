"""Sharing the outer loops of a kernel out among threads."""

from __future__ import annotations

from collections.abc import Sequence

from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV
from tvm.tirx import IntImm

from tvm_ext.schedules.cpu.machine import Machine
from tvm_ext.schedules.knobs import TunableSchedule, divide

WORK_ATTRIBUTE = "tvm_ext.work"
"""Attribute around a parallel loop of a kernel with open extents: how many operations of vectors the kernel takes.

At run time the calling thread does it alone where that is not worth a fork (see :mod:`tvm_ext.passes.small_work`).
"""

EVEN_SHARES = 8
"""Tasks a core from which an uneven division costs less than an eighth."""

ROUGH = 2
"""Times as long as a fork is worth that a kernel has to take by its estimate, which is that of data from memory."""


def operations_worth_a_fork(machine: Machine) -> int:
    """Operations of vectors from which on a kernel is handed to several threads."""
    return round(ROUGH * machine.forking_pays_from() * machine.flops)


def share_out(schedule: Schedule, loops: Sequence[LoopRV], seconds: float, machine: Machine) -> int:
    """Run outer loops in parallel when the kernel takes long enough.

    Parameters
    ----------
    loops : sequence of LoopRV
        Perfectly nested data-parallel loops, outermost first, that may be fused.
    seconds : float
        What one core needs for the kernel.
    machine : Machine

    Returns
    -------
    int
        How many loops there are now in place of ``loops``.
    """
    cores = machine.cores
    if seconds < ROUGH * machine.forking_pays_from() or not loops:
        return len(loops)
    extents = [_static(schedule, loop) for loop in loops]
    tasks, count = 1, 0
    for extent in extents:
        if extent is None:
            break
        tasks *= extent
        count += 1
        if tasks >= EVEN_SHARES * cores or (tasks % cores == 0 and tasks > 1):
            break
    if tasks < 2:
        return len(loops)
    task = schedule.fuse(*loops[:count]) if count > 1 else loops[0]
    if isinstance(schedule, TunableSchedule):
        task, *_ = divide(schedule, task, [None, 1], tasks)
        count -= 1
    schedule.parallel(task)
    return len(loops) - count + 1


def share_out_one(schedule: Schedule, loop: LoopRV, seconds: float, machine: Machine, grain: int) -> LoopRV:
    """Cut a long loop into pieces, multiples of ``grain`` long if it divides so, and return the inner loop."""
    cores, extent = machine.cores, _static(schedule, loop)
    if seconds < ROUGH * machine.forking_pays_from() or extent is None or extent < 2 * cores:
        return loop
    tasks = next((tasks for tasks in range(cores, EVEN_SHARES * cores, cores) if extent % (tasks * grain) == 0), 0)
    tasks = tasks or next((tasks for tasks in range(cores, EVEN_SHARES * cores) if extent % tasks == 0), 0)
    if tasks:
        outer, inner = schedule.split(loop, [tasks, None])
    else:
        piece = -(-extent // (cores * grain)) * grain
        outer, inner = schedule.split(loop, [None, piece])
    schedule.parallel(outer)
    return inner


def _static(schedule: Schedule, loop: LoopRV) -> int | None:
    extent = schedule.get(loop).extent
    return int(extent) if isinstance(extent, IntImm) else None
