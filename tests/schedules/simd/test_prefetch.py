"""Weights fetched ahead: which addresses, what the machine code looks like, and that results stay what they were."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import te, tirx

from tests.schedules.kernels import AARCH64, TARGETS, assembly
from tests.schedules.simd.test_loops import run
from tvm_ext.passes.vector_code import vector_code
from tvm_ext.schedules.cpu.machine import machine_of
from tvm_ext.schedules.rule import new_schedule
from tvm_ext.schedules.simd.imported import LOCALITIES, import_definitions
from tvm_ext.schedules.simd.loops import mark_simd
from tvm_ext.schedules.simd.prefetch import AHEAD_ATTRIBUTE, mark_prefetch

LANES = 16


def product(
    passes: int, rows: int, groups: int, vectors: int, taps: int, steps: int, skip: int = 0
) -> tvm.s_tir.Schedule:
    """Multiply in tiles of ``rows`` x ``vectors``, the reduction in two loops."""
    left = te.placeholder((passes * rows, taps, steps), "float32", "left")
    right = te.placeholder((groups * vectors, taps, steps, LANES), "float32", "right")
    t, k = te.reduce_axis((0, taps), "t"), te.reduce_axis((0, steps), "k")
    result = te.compute(
        (passes * rows, groups * vectors, LANES),
        lambda i, p, j: te.sum(left[i, t, k] * right[p, t, k, j], [t, k]),
        name="product",
    )
    schedule = new_schedule(te.create_prim_func([left, right, result]))
    block = schedule.get_sblock("product")
    store = schedule.cache_write(block, 0, "global")
    row, chunk, lane = schedule.get_loops(store)
    again, row = schedule.split(row, [passes, rows])
    group, vector = schedule.split(chunk, [groups, vectors])
    schedule.reorder(group, again, row, vector, lane)
    mark_simd(schedule, lane, LANES)
    schedule.compute_at(block, again, preserve_unit_loops=True)
    schedule.set_scope(block, 0, "local")
    row_in, vector_in, lane_in, t_in, k_in = schedule.get_loops(block)[2:]
    schedule.reorder(t_in, k_in, row_in, vector_in, lane_in)
    schedule.vectorize(lane_in)
    for loop in (row, vector, row_in, vector_in):
        schedule.unroll(loop)
    mark_prefetch(schedule, [again], t_in, "right", 1, tiles=group, skip=skip)
    initial = schedule.decompose_reduction(block, t_in)
    schedule.vectorize(schedule.get_loops(initial)[-1])
    return schedule


def lowered(schedule: tvm.s_tir.Schedule, target: str = "native") -> tirx.PrimFunc:
    with TARGETS[target]:
        return vector_code()(schedule.mod)["main"]


def fetched(func: tirx.PrimFunc) -> dict[int, list[int]]:
    """Run through the loops of a kernel and note, for every group (the outermost loop), which elements are fetched."""
    found: dict[int, list[int]] = {}

    def note(statement: Any, values: dict[Any, int]) -> None:
        if isinstance(statement, tirx.For):
            for value in range(int(statement.extent)):
                note(statement.body, {**values, statement.loop_var: value})
        elif isinstance(statement, tirx.SeqStmt):
            for part in statement.seq:
                note(part, values)
        elif isinstance(statement, tirx.Evaluate) and "tvm_ext_prefetch" in str(statement.value.args[0]):
            (index,) = statement.value.args[1].args[0].indices
            constants = {variable: tirx.const(value, str(variable.ty.dtype)) for variable, value in values.items()}
            index = tvm_ffi.structural_map(index, (tvm.ir.Var, lambda variable: constants.get(variable, variable)))
            group = next(iter(values.values()), 0)
            found.setdefault(group, []).append(int(tvm.sym.Analyzer().simplify(index)))
        elif hasattr(statement, "body"):
            note(statement.body, values)

    note(func.body, {})
    return found


@pytest.mark.parametrize("vectors", [1, 2, 3, 4])
@pytest.mark.parametrize("passes", [1, 2, 3, 5])
def test_the_passes_over_a_group_fetch_the_next_group(passes: int, vectors: int) -> None:
    groups, taps, steps = 3, 2, 7
    found = fetched(lowered(product(passes, 3, groups, vectors, taps, steps)))
    size = vectors * taps * steps * LANES
    for group in range(groups):
        first = (group + 1) * size
        assert {index // LANES * LANES for index in found[group]} == set(range(first, first + size, LANES))
        assert len(found[group]) <= max(passes, 2 * vectors) * taps * steps


@pytest.mark.parametrize(("passes", "share"), [(1, 1), (2, 1), (4, 2), (7, 2), (8, 4)])
def test_of_many_passes_each_fetches_a_part(passes: int, share: int) -> None:
    found = fetched(lowered(product(passes, 3, 1, 2, 1, 16)))  # one group: what is outermost are the passes
    for number in range(passes if passes > 1 else 0):
        lines = {index // LANES for index in found[number]}
        assert len(lines) == 16 // share
        chunk = 2 + min(number // share, 1)
        assert lines == {16 * chunk + 16 // share * (number % share) + line for line in range(16 // share)}


@pytest.mark.parametrize("groups", [1, 2, 3])
def test_behind_the_last_group_of_a_task_the_weights_of_others_are_skipped(groups: int) -> None:
    found = fetched(lowered(product(2, 3, groups, 2, 1, 7, skip=999 * LANES)))
    size = 2 * 7 * LANES
    for group in range(groups):
        first = (group + 1) * size + (999 * LANES if group == groups - 1 else 0)
        assert set(found[group if groups > 1 else next(iter(found))]) >= {first, first + size - LANES}
        if groups > 1:
            assert set(found[group]) == set(range(first, first + size, LANES))
        else:  # its loop is gone: what is outermost are the passes
            assert set().union(*found.values()) == set(range(first, first + size, LANES))


@pytest.mark.parametrize("target", TARGETS)
def test_results(target: str) -> None:
    random = np.random.default_rng(0)
    for passes, rows, groups, vectors, taps, steps in [(1, 1, 1, 1, 1, 1), (3, 2, 2, 3, 1, 9), (2, 4, 3, 2, 3, 5)]:
        left = random.standard_normal((passes * rows, taps, steps), np.float32)
        right = random.standard_normal((groups * vectors, taps, steps, LANES), np.float32)
        func = lowered(product(passes, rows, groups, vectors, taps, steps), target)
        result = run(func, [left, right], (passes * rows, groups * vectors, LANES), "float32", target)
        np.testing.assert_allclose(result, np.einsum("itk,ptkj->ipj", left, right), rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(machine_of(TARGETS["native"]).isa != "avx512", reason="this machine has no AVX-512")
def test_accumulators_stay_in_registers() -> None:
    """LLVM writes them back before every instruction that it thinks reads memory."""
    lines = assembly(product(4, 4, 4, 4, 1, 512).mod["main"]).splitlines()
    first = next(number for number, line in enumerate(lines) if "prefetcht1" in line)
    loop = list(itertools.takewhile(lambda line: not line.split()[:1] or line.split()[0][0] != "j", lines[first:]))
    assert sum("vfmadd" in line for line in loop) >= 12
    assert not [line for line in loop if "vmov" in line and line.rstrip().endswith(")") and "zmm" in line]


def test_a_kernel_may_fetch_into_several_caches() -> None:
    """All of these definitions declare the same function of LLVM, which takes one declaration only."""
    address = tirx.const(0, "int64")
    calls = [tirx.Evaluate(tirx.call_extern("void", name, address)) for name in (*LOCALITIES, *LOCALITIES)]
    body = import_definitions(tirx.PrimFunc([], tirx.SeqStmt(calls))).body
    assert (body.value.value.count("declare"), body.value.value.count("define")) == (1, len(LOCALITIES))


def test_other_processors() -> None:
    assert "prfm" in assembly(product(4, 2, 2, 2, 1, 64).mod["main"], AARCH64)


def test_without_the_mark_nothing_is_fetched() -> None:
    schedule = product(2, 2, 2, 2, 1, 8)
    loop = next(
        loop
        for loop in schedule.get_loops(schedule.get_sblock("product_update"))
        if "tvm_ext.prefetch" in schedule.get(loop).annotations
    )
    schedule.unannotate(loop, "tvm_ext.prefetch")
    assert not fetched(lowered(schedule))


def test_schedules_of_databases_that_know_of_no_parts() -> None:
    old, new = product(2, 3, 2, 2, 1, 5), product(2, 3, 2, 2, 1, 5)
    reduction = next(
        loop for loop in old.get_loops(old.get_sblock("product_update")) if AHEAD_ATTRIBUTE in old.get(loop).annotations
    )
    old.unannotate(reduction, AHEAD_ATTRIBUTE)
    assert fetched(lowered(old)) == fetched(lowered(new)) != {}
