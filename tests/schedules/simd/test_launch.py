"""What every thread does once, against numpy and in the code."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import te, tirx

from tests.schedules.kernels import TARGETS
from tests.schedules.simd.test_loops import run
from tvm_ext.passes.vector_code import vector_code
from tvm_ext.schedules.rule import new_schedule
from tvm_ext.schedules.simd.launch import LAUNCH_PRAGMA
from tvm_ext.schedules.simd.loops import mark_simd


def running_differences(rows: int, columns: int) -> tirx.PrimFunc:
    """Double a row in a buffer of its own, then subtract neighbours; rows are shared out among threads."""
    source = te.placeholder((rows, columns), "float32", "source")
    doubled = te.compute((rows, columns), lambda i, j: source[i, j] + source[i, j], name="doubled")
    result = te.compute((rows, columns - 1), lambda i, j: doubled[i, j + 1] - doubled[i, j], name="differences")
    schedule = new_schedule(te.create_prim_func([source, result]))
    row, column = schedule.get_loops(schedule.get_sblock("differences"))
    schedule.compute_at(schedule.get_sblock("doubled"), row)
    schedule.parallel(row)
    mark_simd(schedule, column, 16)
    mark_simd(schedule, schedule.get_loops(schedule.get_sblock("doubled"))[-1], 16)
    with TARGETS["native"]:
        return vector_code()(schedule.mod)["main"]


def allocations(node: Any) -> int:
    found: list[Any] = []
    tvm_ffi.structural_walk(node, (tirx.AllocBuffer, found.append))
    return len(found)


@pytest.mark.parametrize("rows", [1, 2, 37])
@pytest.mark.parametrize(("columns", "once"), [(100, False), (300, True), (1025, True)])
def test_large_buffers_are_allocated_once_a_thread(rows: int, columns: int, once: bool) -> None:
    func = running_differences(rows, columns)
    launches: list[Any] = []

    def note(statement: Any) -> None:
        if statement.attr_key == LAUNCH_PRAGMA:
            launches.append(statement)

    tvm_ffi.structural_walk(func.body, (tirx.AttrStmt, note))
    if rows > 1:
        assert bool(launches) == once
    for launch in launches:
        loop = launch.body.seq[-1]
        assert loop.kind == tirx.ForKind.PARALLEL
        assert (allocations(launch.body), allocations(loop)) == (1, 0)
    x = np.random.default_rng(0).standard_normal((rows, columns)).astype(np.float32)
    expected = np.diff(2 * x, axis=1)
    np.testing.assert_allclose(run(func, [x], expected.shape, "float32", "native"), expected, atol=1e-6)


def test_kernels_of_one_module() -> None:
    kernels = {name: running_differences(9, 600).with_attr("global_symbol", name) for name in "ab"}
    library = tvm.compile(tvm.IRModule(kernels), TARGETS["native"])
    x = np.random.default_rng(0).standard_normal((9, 600)).astype(np.float32)
    for name in "ab":
        result = tvm.runtime.tensor(np.zeros((9, 599), np.float32))
        library[name](tvm.runtime.tensor(x), result)
        np.testing.assert_allclose(result.numpy(), np.diff(2 * x, axis=1), atol=1e-6)
