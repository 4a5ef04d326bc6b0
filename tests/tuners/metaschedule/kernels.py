"""Kernels and design spaces that tests share."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import te
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms

from tvm_ext.backends.cpu.target import native_target
from tvm_ext.schedules.cpu import RULES
from tvm_ext.schedules.rule import prepare, tunable_schedule


def matmul(rows: int = 32, depth: int = 32, columns: int = 32) -> tvm.IRModule:
    a, b = te.placeholder((rows, depth), name="a"), te.placeholder((depth, columns), name="b")
    k = te.reduce_axis((0, depth), "k")
    c = te.compute((rows, columns), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")
    return tvm.IRModule({"main": te.create_prim_func([a, b, c])})


def tiled(schedule: Schedule) -> Schedule:
    """A design space with all kinds of sampling instructions."""
    block = schedule.get_sblock("c")
    i, j, k = schedule.get_loops(block)
    rows = schedule.split(i, schedule.sample_perfect_tile(i, n=3, max_innermost_factor=8))
    columns = schedule.split(j, schedule.sample_perfect_tile(j, n=2, max_innermost_factor=16))
    schedule.reorder(rows[0], columns[0], rows[1], k, rows[2], columns[1])
    step = schedule.sample_categorical([0, 16, 64], [0.3, 0.4, 0.3])
    schedule.annotate(rows[0], "pragma_auto_unroll_max_step", step)
    cache = schedule.cache_write(block, 0, "global")
    schedule.reverse_compute_at(cache, schedule.sample_compute_location(cache))
    return schedule


def ruled() -> tuple[tvm.IRModule, Any]:
    """A workload as our rules prepare it, and its design space."""
    target = native_target()
    prepared = tvm.IRModule({"main": prepare(matmul(200, 60, 96)["main"], target, RULES)})
    space = ms.space_generator.ScheduleFn(
        lambda schedule: tunable_schedule(schedule.mod["main"], target, RULES),
        sch_rules=[],
        postprocs=[],
        mutator_probs={},
    )
    return prepared, space
