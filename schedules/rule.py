"""The contract of a schedule rule, and the pass that offers every kernel to the rules in order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import tvm
from tvm.s_tir import Schedule
from tvm.tirx import PrimFunc

RULE_ATTRIBUTE = "tvm_ext.schedule_rule"
"""Attribute of a scheduled PrimFunc that names the rule that took it."""


class ScheduleRule(Protocol):
    """Turns one kernel into a scheduled kernel, or declines it.

    The order of rules in a list is the order in which they are asked; the first answer counts.
    """

    name: str

    def apply(self, func: PrimFunc, target: tvm.target.Target) -> Schedule | None:
        """Schedule ``func`` (which must not be changed), or return None: not mine."""


def apply_rules(
    func: PrimFunc, target: tvm.target.Target, rules: Sequence[ScheduleRule]
) -> tuple[PrimFunc, str] | None:
    """Schedule one kernel with the first rule that takes it.

    Returns
    -------
    tuple of PrimFunc and str, or None
        The scheduled kernel and the name of the rule; None when no rule takes it.
    """
    for rule in rules:
        schedule = rule.apply(func, target)
        if schedule is not None:
            scheduled = schedule.mod["main"]
            if func.attrs and "global_symbol" in func.attrs:
                scheduled = scheduled.with_attr("global_symbol", func.attrs["global_symbol"])
            return scheduled.with_attr("tirx.is_scheduled", True).with_attr(RULE_ATTRIBUTE, rule.name), rule.name
    return None


def apply_schedule_rules(rules: Sequence[ScheduleRule]) -> tvm.transform.Pass:
    """Make the pass that offers every unscheduled kernel to ``rules``.

    A kernel that no rule takes stays as it is and is compiled as stock TVM would.
    """

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.ApplyScheduleRules")
    def _apply(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        target = tvm.target.Target.current(allow_none=False)
        updated = tvm.IRModule(mod.functions, attrs=mod.attrs)
        for global_var, func in mod.functions.items():
            if not isinstance(func, PrimFunc) or (func.attrs and "tirx.is_scheduled" in func.attrs):
                continue
            taken = apply_rules(func, target, rules)
            if taken is not None:
                updated.update_func(global_var, taken[0])
        return updated

    return _apply


def new_schedule(func: PrimFunc) -> Schedule:
    """Start a schedule of one kernel, as function ``main`` of a module of its own."""
    return Schedule(tvm.IRModule({"main": func}), debug_mask="none", error_render_level="none")
