"""Where a target says beforehand what cannot run, MetaSchedule's candidates are asked for."""

from __future__ import annotations

import pytest
import tvm
from tvm import te
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms

from tvm_ext.backends.cuda.validity import kernel_fault
from tvm_ext.backends.registry import backend_of
from tvm_ext.target import resolve_target
from tvm_ext.tuners.metaschedule.strategy import TunerStrategy
from tvm_ext.tuners.recipes import recipe

GPU = resolve_target("nvidia/a100")
HEXAGON = tvm.target.Target("qcom/hexagon-v68")
NUMBERS = 1 << 16


def doubled() -> tvm.IRModule:
    x = te.placeholder((NUMBERS,), name="x")
    return tvm.IRModule({"main": te.create_prim_func([x, te.compute((NUMBERS,), lambda i: x[i] * 2.0, name="y")])})


def bound(schedule: Schedule) -> Schedule:
    """Threads and vectors of any size, also larger than a GPU has."""
    (loop,) = schedule.get_loops(schedule.get_sblock("y"))
    factors = schedule.sample_perfect_tile(loop, 3, 64, [512, 128, 1])
    grid, thread, inner = schedule.split(loop, factors)
    schedule.bind(grid, "blockIdx.x")
    schedule.bind(thread, "threadIdx.x")
    schedule.vectorize(inner)
    return schedule


def candidates(name: str, target: tvm.target.Target, trials: int = 24) -> tuple[list[tvm.tirx.PrimFunc], int]:
    """Suggest candidates to nobody; gives their kernels, and how many questions the oracle was asked."""
    mod = doubled()
    generator = ms.space_generator.ScheduleFn(bound, sch_rules=[], postprocs=[], mutator_probs={})
    strategy = TunerStrategy(recipe(name, 12, 12))
    context = ms.TuneContext(
        mod, target=target, space_generator=generator, search_strategy=strategy, task_name="t", rand_state=1,
        num_threads=1,
    )  # fmt: skip
    strategy.pre_tuning(trials, trials, generator.generate_design_space(mod))
    assert context is not None
    found = strategy.generate_measure_candidates()
    (tuner,) = [tuner for _, tuner in strategy.sketches]
    return [row.sch.mod["main"] for row in found], 0 if tuner.validity is None else tuner.validity.asked


def test_only_kernels_that_a_gpu_runs_are_measured() -> None:
    kernels, asked = candidates("validity_exhaustive", GPU)
    assert asked > len(kernels) > 0
    assert not [reason for kernel in kernels if (reason := kernel_fault(kernel, GPU))]


def test_a_recipe_without_use_for_an_oracle_measures_what_fails() -> None:
    kernels, asked = candidates("exhaustive", GPU)
    assert asked == 0
    assert any(kernel_fault(kernel, GPU) for kernel in kernels)


def test_a_cpu_runs_whatever_is_scheduled() -> None:
    target = tvm.target.Target("llvm")
    assert backend_of(target).refuses is None


@pytest.mark.parametrize(("rows", "words"), [(1, ""), (4096, ""), (16384, "needs 8388608 bytes of global.vtcm")])
def test_buffers_that_overflow_a_dsp(rows: int, words: str) -> None:
    x = te.placeholder((NUMBERS, 128), name="x")
    schedule = Schedule(te.create_prim_func([x, te.compute(x.shape, lambda i, j: x[i, j] * 2.0, name="y")]))
    block = schedule.get_sblock("y")
    outer, _ = schedule.split(schedule.get_loops(block)[0], [None, rows])
    schedule.compute_at(schedule.cache_read(block, 0, "global.vtcm"), outer)
    refuses = backend_of(HEXAGON).refuses
    assert refuses is not None
    found = refuses(HEXAGON)(schedule.mod["main"], HEXAGON)
    assert found.startswith(words) if words else found == ""
