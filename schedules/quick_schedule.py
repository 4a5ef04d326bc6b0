"""A schedule whose instructions do not check the types of their arguments by Python's annotations."""

from __future__ import annotations

from inspect import isfunction
from typing import Any

import tvm
from tvm.s_tir import Schedule


def _unchecked() -> dict[str, Any]:
    """Take the methods of TVM's schedule out of their wrapper, which binds and compares all arguments at each call."""
    return {
        name: method.__wrapped__
        for name, method in vars(Schedule).items()
        if isfunction(method) and hasattr(method, "__wrapped__")
    }


QuickSchedule: type[Schedule] = type(
    "QuickSchedule", (Schedule,), {"__slots__": (), "__module__": __name__, **_unchecked()}
)
"""For rules, which nobody types in at a prompt: the checks were a twentieth of the time of compiling a small model.
What an instruction refuses for its meaning, it still refuses: TVM's own code finds that, not the wrapper."""


def copied(schedule: Schedule) -> Schedule:
    """Copy a schedule, which stays as it is, to one that does not check types."""
    copy: Any = Schedule.__new__(QuickSchedule)
    copy.__init_handle_by_constructor__(tvm.get_global_func("s_tir.schedule.ScheduleCopy"), schedule)
    return copy
