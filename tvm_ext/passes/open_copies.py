"""Writes out the kernels of open extents that tuned copies with known extents stand for.

before: a copy of a kernel with known extents, at whose root block is noted what was picked
after:  the kernel of open extents, written with these choices, as a run with those extents has it

What is timed is what a compilation makes: with extents that LLVM knows the same choices may take another time.
"""

from __future__ import annotations

from collections.abc import Sequence

import tvm
from tvm.tirx import PrimFunc

from tvm_ext.passes.small_work import as_run_with
from tvm_ext.schedules.cpu.machine import machine_of
from tvm_ext.schedules.open_versions import written_open
from tvm_ext.schedules.rule import ScheduleRule


def write_open_copies(rules: Sequence[ScheduleRule]) -> tvm.transform.Pass:
    """Make the pass; other kernels stay as they are."""

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.WriteOpenCopies")
    def _write(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        target = tvm.target.Target.current(allow_none=False)
        updated = tvm.IRModule(mod.functions, attrs=mod.attrs, global_infos=mod.global_infos)
        for variable, func in mod.functions.items():
            written = written_open(func, target, rules) if isinstance(func, PrimFunc) else None
            if written is not None:
                updated.update_func(variable, as_run_with(written, func, machine_of(target)))
        return updated

    return _write
