"""What is done to a scheduled kernel behind its schedule: rewriting that is no schedule instruction.

Of an ordinary schedule it is done at once. The trace of a tunable one ends before it, and annotates the root with what
is missing: whoever compiles such a kernel, or asks whether it runs, has it done by :func:`finished`.
"""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm import s_tir
from tvm.s_tir import Schedule
from tvm.tirx import PrimFunc

from tvm_ext.schedules.cuda.barriers import barriers_behind_sums
from tvm_ext.schedules.cuda.launch_bounds import with_resident_blocks
from tvm_ext.schedules.cuda.registers import registers_of_lanes
from tvm_ext.schedules.cuda.rounding import rounded_to_tf32
from tvm_ext.schedules.cuda.thread_numbers import threads_of_one_type
from tvm_ext.schedules.knobs import TunableSchedule
from tvm_ext.schedules.rule import new_schedule

STEPS: dict[str, Callable[[PrimFunc, int], PrimFunc]] = {
    "tvm_ext.registers_of_lanes": lambda func, _: registers_of_lanes(func),
    "tvm_ext.resident_blocks": with_resident_blocks,
    "tvm_ext.rounded_to_tf32": lambda func, _: rounded_to_tf32(func),
    "tvm_ext.threads_of_one_type": lambda func, _: threads_of_one_type(func),
    "tvm_ext.barriers_behind_sums": lambda func, _: barriers_behind_sums(func),
}
"""By annotation, in the order in which they are done; the second argument is the annotation's value."""


def finish_schedule(schedule: Schedule, steps: dict[str, int]) -> Schedule:
    """Do ``steps``, keys of :data:`STEPS` with their values; in a tunable schedule note that they are to be done."""
    if isinstance(schedule, TunableSchedule):
        root = schedule.get_sblock("root")
        for name, value in steps.items():
            schedule.annotate(root, name, value)
        return schedule
    return new_schedule(_done(schedule.mod["main"], steps))


def finished(func: PrimFunc) -> PrimFunc:
    """Do what the trace of a tuned kernel left to be done; a kernel without such annotations stays as it is."""
    if not isinstance(func.body, s_tir.SBlockRealize):
        return func
    root = func.body.block
    steps = {str(name): int(value) for name, value in root.annotations.items() if str(name) in STEPS}
    return _done(_without(func, steps), steps) if steps else func


def finish_kernels() -> tvm.transform.Pass:
    """Make the pass that finishes every kernel; see :func:`finished`."""

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.FinishKernels")
    def _finish(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        updated = tvm.IRModule(mod.functions, attrs=mod.attrs, global_infos=mod.global_infos)
        for variable, func in mod.functions_items():
            if isinstance(func, PrimFunc) and (made := finished(func)) is not func:
                updated.update_func(variable, made)
        return updated

    return _finish


def _done(func: PrimFunc, steps: dict[str, int]) -> PrimFunc:
    for name, step in STEPS.items():
        if name in steps:
            func = step(func, steps[name])
    return func


def _without(func: PrimFunc, names: dict[str, int]) -> PrimFunc:
    schedule = new_schedule(func)
    root = schedule.get_sblock("root")
    for name in names:
        schedule.unannotate(root, name)
    return schedule.mod["main"].with_attrs(func.attrs) if func.attrs else schedule.mod["main"]
