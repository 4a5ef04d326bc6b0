"""Give kernels the fastest schedules that a tuning database knows of them.

before: ``@T.prim_func def fused_conv_relu(...)`` as its rule prepared it
after:  the same, scheduled as the fastest record of the database says, and marked ``tirx.is_scheduled``
"""

from __future__ import annotations

from pathlib import Path

import tvm
from tvm import relax

from tvm_ext.database.folders import open_earlier


def tuned_schedules(folder: str | Path) -> tvm.transform.Pass:
    """Make the pass, for the database in a folder.

    It is read as it is at that moment: a run that tunes into the folder meanwhile, or one that was killed in the middle
    of a line, does no harm.

    Raises
    ------
    TuningError
        If the database cannot be read.
    """

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.TunedSchedules")
    def _tuned_schedules(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        with open_earlier(Path(folder)):
            return relax.transform.MetaScheduleApplyDatabase(enable_warning=False)(mod)

    return _tuned_schedules
