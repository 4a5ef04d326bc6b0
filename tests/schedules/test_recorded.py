"""A recorded trace tells which rule it is a schedule of."""

from __future__ import annotations

import pytest
import tvm
from tvm import te

from tvm_ext.schedules.knobs import choose, divide, pick
from tvm_ext.schedules.recorded import rule_of_another_space
from tvm_ext.schedules.rule import new_schedule, prepared_for

TARGET = tvm.target.Target("llvm")


def kernel() -> tvm.tirx.PrimFunc:
    x = te.placeholder((24,), "float32", name="x")
    return te.create_prim_func([x, te.compute((24,), lambda i: x[i] + 1.0, name="y")])


class Splits:
    name = "splits"

    def apply(self, func, target, tunable=False):  # type: ignore[no-untyped-def]
        schedule = new_schedule(func, tunable)
        (loop,) = schedule.get_loops(schedule.get_sblock("y"))
        divide(schedule, loop, [None, 4])
        return schedule


class Unrolls:
    name = "unrolls"

    def apply(self, func, target, tunable=False):  # type: ignore[no-untyped-def]
        schedule = new_schedule(func, tunable)
        (loop,) = schedule.get_loops(schedule.get_sblock("y"))
        schedule.annotate(loop, "pragma_auto_unroll_max_step", choose(schedule, [0, 16], 16))
        return schedule


class Picks:
    """Its steps depend on its choice."""

    name = "picks"

    def apply(self, func, target, tunable=False):  # type: ignore[no-untyped-def]
        schedule = new_schedule(func, tunable)
        times = pick(schedule, [1, 2, 3], 2)
        (loop,) = schedule.get_loops(schedule.get_sblock("y"))
        for _ in range(times):
            loop = schedule.split(loop, [None, 1])[0]
        return schedule


class HasNoChoices:
    name = "has_no_choices"

    def apply(self, func, target, tunable=False):  # type: ignore[no-untyped-def]
        return None if tunable else new_schedule(func)


class Fails:
    name = "fails"

    def apply(self, func, target, tunable=False):  # type: ignore[no-untyped-def]
        raise RuntimeError("no such block")


class Declines:
    name = "declines"

    def apply(self, func, target, tunable=False):  # type: ignore[no-untyped-def]
        return None


def trace_of(rule, picked: int | None = None) -> tvm.s_tir.schedule.Trace:  # type: ignore[no-untyped-def]
    """A trace as a database has it: replayed, and with what postprocessors add."""
    from tvm_ext.schedules.knobs import decided

    if picked is None:
        made = rule.apply(kernel(), TARGET, tunable=True)
    else:
        with decided([picked]):
            made = rule.apply(kernel(), TARGET, tunable=True)
    schedule = tvm.s_tir.Schedule(tvm.IRModule({"main": kernel()}))
    made.trace.apply_to_schedule(schedule, remove_postproc=True)
    schedule.enter_postproc()
    block = schedule.get_sblock("y")
    schedule.annotate(block, "afterwards", 1)
    return schedule.trace


@pytest.mark.parametrize(
    ("rules", "recorded", "expected"),
    [
        ([Splits(), Unrolls()], Splits(), None),
        ([Splits(), Unrolls()], Unrolls(), "unrolls"),
        ([HasNoChoices(), Splits()], Splits(), "splits"),
        ([Declines(), Fails(), Splits(), Unrolls()], Splits(), None),
        ([Unrolls(), Fails(), Picks()], Picks(), "picks"),
        ([HasNoChoices(), Declines()], Splits(), None),  # no rule's: TVM's own tuners may have found it
        ([Declines()], Splits(), None),
        ([], Splits(), None),
    ],
)
def test_a_trace_is_of_the_rule_that_takes_the_kernel_or_of_another(rules, recorded, expected) -> None:  # type: ignore[no-untyped-def]
    assert rule_of_another_space(kernel(), TARGET, rules)(trace_of(recorded)) == expected


@pytest.mark.parametrize("picked", [1, 2, 3])
def test_steps_follow_picks(picked: int) -> None:
    trace = trace_of(Picks(), picked)
    assert rule_of_another_space(kernel(), TARGET, [Picks(), Splits()])(trace) is None
    assert rule_of_another_space(kernel(), TARGET, [Splits(), Picks()])(trace) == "picks"


def test_a_prepared_kernel_belongs_to_the_rule_that_prepared_it() -> None:
    func = prepared_for(kernel(), "unrolls")
    rules = [Splits(), Unrolls()]
    assert rule_of_another_space(func, TARGET, rules)(trace_of(Unrolls())) is None
    assert rule_of_another_space(func, TARGET, rules)(trace_of(Splits())) == "splits"
