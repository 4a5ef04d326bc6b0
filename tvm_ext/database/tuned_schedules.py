"""Give kernels the fastest schedules that a tuning database knows of them.

before: ``@T.prim_func def fused_conv_relu(...)`` as its rule prepared it
after:  the same, scheduled as the fastest record of the database says, and marked ``tirx.is_scheduled``
"""

from __future__ import annotations

from pathlib import Path

import tvm
from tvm import relax
from tvm.tirx import PrimFunc

from tvm_ext.database.folders import begun_by, open_earlier
from tvm_ext.errors import TvmExtWarning, warn


def tuned_schedules(folder: str | Path) -> tvm.transform.Pass:
    """Make the pass, for the database in a folder.

    It is read as it is at that moment: a run that tunes into the folder meanwhile, or one that was killed in the middle
    of a line, does no harm. A database that has records, but none of these kernels, is warned of, and so are lines that
    are damaged otherwise.

    Raises
    ------
    TuningError
        If the database cannot be read.
    """

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.TunedSchedules")
    def _tuned_schedules(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        with open_earlier(Path(folder)) as database:
            tuned = relax.transform.MetaScheduleApplyDatabase(enable_warning=False)(mod)
        if database.unread:
            lines = f"{database.unread} line{'s' if database.unread != 1 else ''}"
            warn(
                f"{lines} of the database in {folder} ({begun_by(Path(folder))}) could not be read and were passed "
                "over; `tvm-ext tune` moves them out of the way, and measures what is missing",
                TvmExtWarning,
            )
        kernels, left = _unscheduled(mod), _unscheduled(tuned)
        if len(database) and kernels and kernels == left:
            warn(
                f"the database in {folder} ({begun_by(Path(folder))}) has none of the {len(kernels)} kernels of this "
                "model: it is of another model, shape, target, other options or another release; tune with those you "
                "compile with"
            )
        return tuned

    return _tuned_schedules


def _unscheduled(mod: tvm.IRModule) -> set[str]:
    return {
        str(name.name_hint)
        for name, func in mod.functions.items()
        if isinstance(func, PrimFunc) and not (func.attrs and "tirx.is_scheduled" in func.attrs)
    }
