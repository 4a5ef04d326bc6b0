"""Where a target says beforehand what cannot run, MetaSchedule's candidates are asked for."""

from __future__ import annotations

import pytest
import tvm
from tvm import te
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms

from tvm_ext.backends.cpu.tile_limits import tile_fault, tile_refusal
from tvm_ext.backends.cuda.validity import kernel_fault
from tvm_ext.backends.registry import backend_of
from tvm_ext.schedules.instructions import rows
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


def test_a_cpu_without_tiles_runs_whatever_is_scheduled() -> None:
    target = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v4"})
    refuses = backend_of(target).refuses
    assert refuses is not None
    assert refuses(target) is None
    assert candidates("validity_exhaustive", target)[1] == 0


def called(*names: str, tile: int = 0) -> tvm.tirx.PrimFunc:
    """Use instructions on tiles, all of them on the same."""
    calls = []
    for name in names:
        operands = [tvm.tirx.const(tile, "uint8")] * {"ldtilecfg": 0, "tilerelease": 0, "tilezero": 1}.get(name, 3)
        calls.append(tvm.tirx.Evaluate(tvm.tirx.call_llvm_intrin("void", f"llvm.x86.{name}", *operands)))
    return tvm.tirx.PrimFunc([], tvm.tirx.SeqStmt(calls) if len(calls) > 1 else calls[0])


PRODUCT = ("ldtilecfg", "tilezero", "tdpbssd", "tilerelease")


@pytest.mark.parametrize(
    ("names", "tile", "features", "reason"),
    [
        (PRODUCT, 0, {"amx-int8"}, ""),
        (PRODUCT, 7, {"amx-int8"}, ""),
        (PRODUCT, 8, {"amx-int8"}, "uses tile 8, there are 8"),
        (PRODUCT, 0, {"amx-bf16"}, "multiplies with tdpbssd, which needs amx-int8: the CPU lacks it"),
        (PRODUCT[1:], 0, {"amx-int8"}, "uses tilezero before tiles are configured"),
        ((*PRODUCT, "tilezero"), 0, {"amx-int8"}, "uses tilezero before tiles are configured"),
        (("ldtilecfg", "tdpbf16ps", "tilerelease"), 0, {"amx-bf16"}, ""),
    ],
)
def test_tiles_that_are_not_there(names: tuple[str, ...], tile: int, features: set[str], reason: str) -> None:
    assert tile_fault(called(*names, tile=tile), features) == reason


def test_our_own_products_keep_to_the_tiles() -> None:
    target = tvm.target.Target({"kind": "llvm", "mcpu": "sapphirerapids"})
    refuses = tile_refusal(target)
    assert refuses is not None
    for left, right in (("int8", "int8"), ("uint8", "int8"), ("bfloat16", "bfloat16")):
        row = rows.amx(left, right)
        assert row.emit is not None
        assert refuses(row.emit(("global", "global", "global")), target) == ""
    without = {"kind": "llvm", "mcpu": "sapphirerapids", "mattr": ["-amx-int8"]}
    refuses = tile_refusal(tvm.target.Target(without))
    assert refuses is not None
    emit = rows.amx("int8", "int8").emit
    assert emit is not None
    assert "needs amx-int8" in refuses(emit(("global", "global", "global")), target)


def test_a_cpu_with_tiles_is_asked() -> None:
    kernels, asked = candidates("validity_exhaustive", tvm.target.Target({"kind": "llvm", "mcpu": "sapphirerapids"}))
    assert asked >= len(kernels) > 0  # a CPU runs all of them


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
