"""The contract of a schedule rule, and the pass that offers every kernel to the rules in order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import tvm
from tvm.s_tir import Schedule
from tvm.tirx import PrimFunc

RULE_ATTRIBUTE = "tvm_ext.schedule_rule"
"""Attribute of a scheduled PrimFunc that names the rule that took it."""

FAULT_ATTRIBUTE = "tvm_ext.schedule_fault"
"""Attribute of a PrimFunc on which a rule failed: which rule, and how."""


class ScheduleRule(Protocol):
    """Turns one kernel into a scheduled kernel, or declines it.

    The order of rules in a list is the order in which they are asked; the first answer counts.
    """

    name: str

    def apply(self, func: PrimFunc, target: tvm.target.Target) -> Schedule | None:
        """Schedule ``func`` (which must not be changed), or return None: not mine."""


def apply_rules(func: PrimFunc, target: tvm.target.Target, rules: Sequence[ScheduleRule]) -> PrimFunc:
    """Schedule one kernel with the first rule that takes it.

    A rule that fails is a fault of this package, but no reason to refuse the model: the next rule is asked, and the
    fault is noted in the attribute ``tvm_ext.schedule_fault``.

    Returns
    -------
    PrimFunc
        The scheduled kernel, with the name of the rule in the attribute ``tvm_ext.schedule_rule``; the kernel as it was
        when no rule takes it.
    """
    faults = []
    for rule in rules:
        try:
            schedule = rule.apply(func, target)
        except Exception as error:  # whatever TVM's scheduler or the rule raised
            faults.append(f"{rule.name}: {type(error).__name__}: {' '.join(str(error).split())[:200]}")
            continue
        if schedule is not None:
            scheduled = schedule.mod["main"]
            if func.attrs and "global_symbol" in func.attrs:
                scheduled = scheduled.with_attr("global_symbol", func.attrs["global_symbol"])
            func = scheduled.with_attr("tirx.is_scheduled", True).with_attr(RULE_ATTRIBUTE, rule.name)
            break
    return func.with_attr(FAULT_ATTRIBUTE, "; ".join(faults)) if faults else func


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
            updated.update_func(global_var, apply_rules(func, target, rules))
        return updated

    return _apply


def new_schedule(func: PrimFunc) -> Schedule:
    """Start a schedule of one kernel, as function ``main`` of a module of its own."""
    return Schedule(tvm.IRModule({"main": func}), debug_mask="none", error_render_level="none")
