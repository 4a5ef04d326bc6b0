"""Loops marked to be functions: the same values, and a function of that name in the machine code."""

from __future__ import annotations

import numpy as np
import tvm
from tvm.s_tir import Schedule
from tvm.script import tirx as T

from tvm_ext.backends.cpu.target import native_target
from tvm_ext.passes.vector_code import vector_code
from tvm_ext.schedules.simd.functions import mark_function
from tvm_ext.schedules.simd.loops import mark_simd


@T.prim_func(s_tir=True)
def squares(a: T.Buffer((7, 33), "float32"), c: T.Buffer((7, 33), "float32")):
    T.func_attr({"tirx.noalias": True})
    b = T.sblock_alloc_buffer((7, 33))
    for i, j in T.grid(7, 33):
        with T.sblock("square"):
            vi, vj = T.axis.remap("SS", [i, j])
            b[vi, vj] = a[vi, vj] * a[vi, vj]
    for i, j in T.grid(7, 33):
        with T.sblock("double"):
            vi, vj = T.axis.remap("SS", [i, j])
            c[vi, vj] = b[vi, vj] + b[vi, vj]


def test_marked_loop_is_a_function() -> None:
    schedule = Schedule(tvm.IRModule({"main": squares}))
    row, _ = schedule.get_loops(schedule.get_sblock("double"))
    schedule.compute_at(schedule.get_sblock("square"), row)
    outer, inner = schedule.split(schedule.get_loops(schedule.get_sblock("square"))[-1], [None, 16])
    mark_simd(schedule, inner, 16)
    mark_function(schedule, outer, "square_a_row")
    with native_target() as target:
        library = tvm.compile(vector_code()(schedule.mod), target)
    assert "square_a_row" in library.mod.inspect_source("asm")
    values = np.random.default_rng(0).standard_normal((7, 33)).astype("float32")
    result = tvm.runtime.tensor(np.zeros_like(values))
    library["main"](tvm.runtime.tensor(values), result)
    np.testing.assert_array_equal(result.numpy(), 2 * values * values)
