"""The schedule without checks of types does what TVM's does."""

import numpy as np
import pytest
import tvm
from tvm import te
from tvm.s_tir import Schedule

from tvm_ext.schedules.quick_schedule import QuickSchedule
from tvm_ext.schedules.rule import new_schedule


def function() -> tvm.tirx.PrimFunc:
    a = te.placeholder((7, 33), name="a")
    return te.create_prim_func([a, te.compute((7, 33), lambda i, j: a[i, j] * 2.0, name="b")])


def divided(schedule: Schedule) -> Schedule:
    rows, columns = schedule.get_loops(schedule.get_sblock("b"))
    schedule.reorder(*schedule.split(columns, [None, 8]), rows)
    return schedule


def test_instructions_are_those_of_tvm() -> None:
    quick = divided(new_schedule(function()))
    assert isinstance(quick, QuickSchedule)
    checked = divided(Schedule(tvm.IRModule({"main": function()})))
    tvm.ir.assert_structural_equal(quick.mod, checked.mod)
    assert str(quick.trace) == str(checked.trace)
    values = np.arange(7 * 33, dtype="float32").reshape(7, 33)
    result = tvm.runtime.tensor(np.zeros_like(values))
    tvm.compile(quick.mod, tvm.target.Target("llvm"))["main"](tvm.runtime.tensor(values), result)
    np.testing.assert_array_equal(result.numpy(), values * 2)


def test_what_is_wrong_is_refused_all_the_same() -> None:
    schedule = new_schedule(function())
    rows, _ = schedule.get_loops(schedule.get_sblock("b"))
    with pytest.raises(TypeError, match="LoopRV"):
        schedule.split("rows", [None, 8])
    with pytest.raises(tvm.s_tir.schedule.ScheduleError):
        schedule.reorder(rows, rows)


def test_a_schedule_leaves_no_trace_in_the_next_one_of_the_same_kernel() -> None:
    func = function()
    first = divided(new_schedule(func))
    second = new_schedule(func)
    tvm.ir.assert_structural_equal(second.mod["main"], func)
    assert not second.trace.insts
    tvm.ir.assert_structural_equal(divided(second).mod, first.mod)
    assert str(second.trace) == str(first.trace)


def test_kernels_that_look_alike_keep_their_own_variables() -> None:
    for func in (function(), function()):
        assert new_schedule(func).mod["main"].params[0].same_as(func.params[0])
