"""The contract of a schedule rule, and the pass that offers every kernel to the rules in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Protocol

import tvm
from tvm.s_tir import Schedule
from tvm.tirx import IntImm, PrimFunc
from tvm.tirx.buffer import BufferType

from tvm_ext.schedules.knobs import TunableSchedule, decided
from tvm_ext.schedules.quick_schedule import copied

RULE_ATTRIBUTE = "tvm_ext.schedule_rule"
"""Attribute of a scheduled PrimFunc that names the rule that took it."""

PREPARED_ATTRIBUTE = "tvm_ext.prepared_for"
"""Attribute of a PrimFunc that names the rule that prepared it; see :func:`prepare`."""

FAULT_ATTRIBUTE = "tvm_ext.schedule_fault"
"""Attribute of a PrimFunc on which a rule failed: which rule, and how."""


class ScheduleRule(Protocol):
    """Turns one kernel into a scheduled kernel, or declines it.

    The order of rules in a list is the order in which they are asked; the first answer counts.
    """

    name: str

    def apply(self, func: PrimFunc, target: tvm.target.Target, tunable: bool = False) -> Schedule | None:
        """Schedule ``func`` (which must not be changed), or return None: not mine.

        With ``tunable`` the choices of the rule are sampling instructions of the trace, which begins at ``func`` as
        :func:`prepare` leaves it.
        """


class PreparingRule(ScheduleRule, Protocol):
    """A rule that changes kernels before it schedules them, where that is no schedule instruction."""

    def prepare(self, func: PrimFunc, target: tvm.target.Target) -> PrimFunc | None:
        """Bring ``func`` into the form in which it is scheduled; it may be in it. None: not mine."""


Cost = tuple[int, Callable[[Sequence[Sequence[int]]], float]]
"""How many knobs, the first ones of the trace, an estimate looks at, and the estimate: of their factors, lower is
better, in any unit; infinite where nothing is expected to work."""


class CostingRule(ScheduleRule, Protocol):
    """A rule that tells what it thinks of choices other than its own."""

    def cost(self, func: PrimFunc, target: tvm.target.Target) -> Cost | None:
        """Give the estimate for a prepared kernel; None: not mine."""


Refusal = Callable[[PrimFunc, tvm.target.Target], str]
"""Says why a target cannot run a scheduled kernel; ``""`` if it can."""


def apply_rules(
    func: PrimFunc, target: tvm.target.Target, rules: Sequence[ScheduleRule], refuses: Refusal | None = None
) -> PrimFunc:
    """Schedule one kernel with the first rule that takes it, and whose kernel the target can run.

    A rule that fails is a fault of this package, but no reason to refuse the model: the next rule is asked, and the
    fault is noted in the attribute ``tvm_ext.schedule_fault``. So is a kernel over a limit of the target. That loops of
    no iterations cannot be split is no fault: a kernel that fills nothing may stay as it is.

    Parameters
    ----------
    func : PrimFunc
    target : tvm.target.Target
    rules : sequence of ScheduleRule
    refuses : Refusal, optional
        By default the target runs whatever a rule makes.

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
            if refuses is not None and (reason := refuses(scheduled, target)):
                faults.append(f"{rule.name}: its kernel {reason}")
                continue
            if func.attrs and "global_symbol" in func.attrs:
                scheduled = scheduled.with_attr("global_symbol", func.attrs["global_symbol"])
            func = scheduled.with_attr("tirx.is_scheduled", True).with_attr(RULE_ATTRIBUTE, rule.name)
            break
    return func.with_attr(FAULT_ATTRIBUTE, "; ".join(faults)) if faults and not _fills_nothing(func) else func


def _fills_nothing(func: PrimFunc) -> bool:
    """Whether the last parameter, the result, is a tensor without elements."""
    shape = func.params[-1].ty.shape if func.params and isinstance(func.params[-1].ty, BufferType) else ()
    return any(isinstance(size, IntImm) and size.value == 0 for size in shape)


def prepare(func: PrimFunc, target: tvm.target.Target, rules: Sequence[ScheduleRule]) -> PrimFunc:
    """Bring a kernel into the form in which its rule schedules it, as far as that is no schedule instruction.

    Traces of tuned schedules begin here. What there is to do is up to a :class:`PreparingRule`.
    """
    for rule in rules:
        prepared = rule.prepare(func, target) if hasattr(rule, "prepare") else None
        if prepared is not None:
            return prepared_for(prepared, rule.name)
    return func


def prepared_for(func: PrimFunc, rule: str) -> PrimFunc:
    """Note that ``func`` has the form in which ``rule`` schedules it."""
    return func.with_attr(PREPARED_ATTRIBUTE, rule)


def is_prepared(func: PrimFunc, rule: str) -> bool:
    """Whether ``func`` has the form in which ``rule`` schedules it."""
    return bool(func.attrs) and func.attrs.get(PREPARED_ATTRIBUTE) == rule


def tunable_schedule(func: PrimFunc, target: tvm.target.Target, rules: Sequence[ScheduleRule]) -> Schedule | None:
    """Schedule a prepared kernel with the first rule that takes it, its choices as sampling instructions.

    Parameters
    ----------
    func : PrimFunc
        A kernel as :func:`prepare` leaves it.

    Returns
    -------
    Schedule or None
        The decisions of its trace are the rule's own choices; None when no rule takes the kernel, or the one that does
        has no choices. A later rule that takes it as well is not asked: what it does is slower.
    """
    owner = func.attrs.get(PREPARED_ATTRIBUTE) if func.attrs else None
    for rule in rules:
        if owner is not None and rule.name != owner:
            continue
        schedule = rule.apply(func, target, tunable=True)
        if schedule is not None:
            return schedule
        if owner is None and rule.apply(func, target) is not None:
            return None
    return None


def tunable_with(
    func: PrimFunc, target: tvm.target.Target, rules: Sequence[ScheduleRule], picks: Sequence[int]
) -> Schedule | None:
    """Schedule a kernel as :func:`tunable_schedule` does, with other picks (see :func:`.knobs.pick`) than the rule's.

    Returns
    -------
    Schedule or None
        None where the rule that picks cannot schedule the kernel so.
    """
    owner = func.attrs.get(PREPARED_ATTRIBUTE) if func.attrs else None
    for rule in rules:
        if owner is not None and rule.name != owner:
            continue
        with decided(picks) as decisions:
            schedule = rule.apply(func, target, tunable=True)
        if schedule is not None or decisions.used:
            return schedule
    return None


def tunable_cost(func: PrimFunc, target: tvm.target.Target, rules: Sequence[ScheduleRule]) -> Cost | None:
    """Give the estimate of the rule that prepared a kernel, or else of the first that takes it; None without one."""
    owner = func.attrs.get(PREPARED_ATTRIBUTE) if func.attrs else None
    for rule in rules:
        if hasattr(rule, "cost") and rule.name == (owner or rule.name) and (found := rule.cost(func, target)):
            return found
    return None


def prepare_kernels(rules: Sequence[ScheduleRule]) -> tvm.transform.Pass:
    """Make the pass that prepares every unscheduled kernel; see :func:`prepare`."""

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.PrepareKernels")
    def _prepare(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        target = tvm.target.Target.current(allow_none=False)
        return _map_kernels(mod, lambda func: prepare(func, target, rules))

    return _prepare


def make_intrinsics(rules: Sequence[ScheduleRule]) -> tvm.transform.Pass:
    """Make the pass that changes nothing, but has rules schedule kernels as for tuning.

    Tensor intrinsics are made when a rule needs them: a recorded trace that names one can be followed behind this pass.
    """

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.MakeIntrinsics")
    def _make(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        target = tvm.target.Target.current(allow_none=False)

        def asked(func: PrimFunc) -> PrimFunc:
            try:
                tunable_schedule(func, target, rules)
            except Exception:  # the rules are asked once more when the kernel is scheduled, and a fault is noted then
                return func
            return func

        _map_kernels(mod, asked)
        return mod

    return _make


def apply_schedule_rules(rules: Sequence[ScheduleRule], refuses: Refusal | None = None) -> tvm.transform.Pass:
    """Make the pass that offers every unscheduled kernel to ``rules``; see :func:`apply_rules`.

    A kernel that no rule takes stays as it is and is compiled as stock TVM would.
    """

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.ApplyScheduleRules")
    def _apply(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        target = tvm.target.Target.current(allow_none=False)
        return _map_kernels(mod, lambda func: apply_rules(func, target, rules, refuses))

    return _apply


def _map_kernels(mod: tvm.IRModule, change: Callable[[PrimFunc], PrimFunc]) -> tvm.IRModule:
    updated = tvm.IRModule(mod.functions, attrs=mod.attrs, global_infos=mod.global_infos)
    for global_var, func in mod.functions.items():
        if isinstance(func, PrimFunc) and not (func.attrs and "tirx.is_scheduled" in func.attrs):
            updated.update_func(global_var, change(func))
    return updated


def prepared_schedule(
    rule: PreparingRule, func: PrimFunc, target: tvm.target.Target, tunable: bool = False
) -> Schedule | None:
    """Start a schedule of a kernel in the form that ``rule`` schedules; None when the rule declines the kernel."""
    prepared = rule.prepare(func, target)
    return None if prepared is None else new_schedule(prepared, tunable)


def new_schedule(func: PrimFunc, tunable: bool = False) -> Schedule:
    """Start a schedule of one kernel, as function ``main`` of a module of its own.

    Every rule in turn starts one of the same kernel, only to look at it and decline it as a rule. TVM analyses the
    blocks of a kernel whenever a schedule is made from it, which takes many times as long as to copy a schedule.
    """
    if tunable:
        return TunableSchedule(_alone(func), debug_mask="none", error_render_level="none")
    return copied(_untouched(func))


@lru_cache(maxsize=4)  # by identity; a rule that prepares kernels asks for its own in between
def _untouched(func: PrimFunc) -> Schedule:
    return Schedule(_alone(func), debug_mask="none", error_render_level="none")


def _alone(func: PrimFunc) -> tvm.IRModule:
    return tvm.IRModule({"main": func})
