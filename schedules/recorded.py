"""Which rule a recorded trace is a schedule of.

A record says nothing of the rule in whose space it was found. It shows in its steps: those of two rules differ, and
those of one rule are the same for all its choices, but for picks (:func:`.knobs.pick`), which the trace begins with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import tvm
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import Instruction, Trace
from tvm.tirx import PrimFunc

from tvm_ext.database.store import spelt
from tvm_ext.schedules.knobs import decided
from tvm_ext.schedules.rule import PREPARED_ATTRIBUTE, ScheduleRule


def rule_of_another_space(
    func: PrimFunc, target: tvm.target.Target, rules: Sequence[ScheduleRule]
) -> Callable[[Trace], str | None]:
    """Make what names the rule that a trace is a schedule of, where that is not the one that schedules the kernel.

    Parameters
    ----------
    func : PrimFunc
        A kernel as :func:`.rule.prepare` leaves it.

    Returns
    -------
    callable
        Of the trace of a record of the kernel; gives None where that is one of the kernel's own rule, or of none of the
        rules: TVM's spaces are for all kernels.
    """
    owner = func.attrs.get(PREPARED_ATTRIBUTE) if func.attrs else None
    tunable = lru_cache(None)(lambda number: _schedule(rules[number], func, target))

    @lru_cache(None)
    def own() -> int | None:
        for number, rule in enumerate(rules):
            if owner is None or rule.name == owner:
                if tunable(number) is not None or _schedule(rule, func, target, tunable=False) is not None:
                    return number
        return None

    def is_made_by(number: int, trace: Trace) -> bool:
        made = tunable(number)
        return made is not None and _is_made_by(rules[number], func, target, made, trace)

    def named(trace: Trace) -> str | None:
        mine = own()
        if mine is None or is_made_by(mine, trace):
            return None
        others = (number for number in range(len(rules)) if number != mine and is_made_by(number, trace))
        return next((rules[number].name for number in others), None)

    return named


def _schedule(rule: ScheduleRule, func: PrimFunc, target: tvm.target.Target, tunable: bool = True) -> Schedule | None:
    try:
        return rule.apply(func, target, tunable=tunable)
    except Exception:  # a rule that fails leaves its kernel to the next one in a compilation, too
        return None


def _is_made_by(rule: ScheduleRule, func: PrimFunc, target: tvm.target.Target, tunable: Schedule, trace: Trace) -> bool:
    own = picks(tunable.trace, sampling_of(tunable.trace))
    if not own:
        return same_steps(trace, tunable.trace)
    recorded = sampling_of(trace)[: len(own)]
    if [_candidates(inst) for inst in recorded] != [_candidates(inst) for inst in own]:
        return False
    with decided([numbers_of_pick(inst)[int(trace.decisions[inst])] for inst in recorded]):
        remade = _schedule(rule, func, target)
    return remade is not None and same_steps(trace, remade.trace)


def sampling_of(trace: Trace) -> tuple[Instruction, ...]:
    """List the instructions of a trace that sample."""
    return tuple(inst for inst in trace.insts if inst in trace.decisions)


def picks(trace: Trace, sampling: Sequence[Instruction]) -> tuple[Instruction, ...]:
    """Find the instructions whose number no other instruction looks at: the rule did, when it made the trace."""
    kinds = [inst.kind.name for inst in sampling]
    categorical = [inst for inst, kind in zip(sampling, kinds, strict=True) if kind == "SampleCategorical"]
    if not categorical:
        return ()
    used = [variable for inst in trace.insts for operand in inst.inputs for variable in _variables(operand)]
    return tuple(inst for inst in categorical if not any(inst.outputs[0].same_as(variable) for variable in used))


def numbers_of_pick(inst: Instruction) -> tuple[int, ...]:
    """List the numbers that a pick may take."""
    return tuple(int(number) for number in inst.attrs[0])


def _candidates(inst: Instruction) -> tuple[int, ...] | None:
    kind = inst.kind.name
    return numbers_of_pick(inst) if kind == "SampleCategorical" else None


def _variables(operand: Any) -> list[Any]:
    """List the random variables of an operand of an instruction, which may be a number computed of some."""
    return list(tvm.tirx.analysis.undefined_vars(operand)) if isinstance(operand, tvm.ir.Expr) else [operand]


def same_steps(recorded: Trace, ours: Trace) -> bool:
    """Whether two traces have the same instructions up to what postprocessors added to the recorded one."""

    def steps(trace: Trace) -> list[str]:
        names = [inst.kind.name for inst in trace.insts]
        return names[: names.index("EnterPostproc")] if "EnterPostproc" in names else names

    return steps(recorded) == steps(ours)


def spelt_steps(trace: Trace) -> str:
    """Spell the instructions of a trace without its decisions, and without those that nothing depends on.

    TVM's own search leaves such out of the traces that it records: the lookup of a block that a sketch did not use.
    """
    return spelt(trace.simplified(remove_postproc=True).as_json()[0])
