"""Kernels of which no sketch samples anything are measured as they are, and end no tuning of others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import tvm
from tvm import relax, te
from tvm.relax.frontend import nn
from tvm.s_tir import meta_schedule as ms

from tests.tuners.metaschedule.kernels import matmul
from tvm_ext.backends.cpu.target import native_target
from tvm_ext.errors import TvmExtWarning
from tvm_ext.system.tensor_intrinsics import only_tensor_intrinsics
from tvm_ext.tuners.measure.measurer import Measurer
from tvm_ext.tuners.measure.worker import Timing
from tvm_ext.tuners.metaschedule.builder import builder_and_runner
from tvm_ext.tuners.metaschedule.strategy import TunerStrategy
from tvm_ext.tuners.recipes import recipe


@pytest.fixture(scope="module")
def measurer() -> Iterator[Measurer]:
    with Measurer(workers=1, threads=1, timing=Timing(repeats=1, seconds=0.001)) as made:
        yield made


def _gather() -> tvm.IRModule:
    table, rows = te.placeholder((33, 9), name="table"), te.placeholder((13,), "int32", name="rows")
    return tvm.IRModule(
        {"main": te.create_prim_func([table, rows, te.compute((13, 9), lambda i, j: table[rows[i], j])])}
    )


def _tune(mod: tvm.IRModule, folder: Path, measurer: Measurer) -> ms.Database:
    builder, runner = builder_and_runner(measurer)
    with only_tensor_intrinsics("x86"):
        return ms.tune_tir(
            mod, native_target(), str(folder), 4, strategy=TunerStrategy(recipe("chameleon")), builder=builder,
            runner=runner, cost_model=ms.cost_model.RandomModel(), num_tuning_cores=1, seed=1,
        )  # fmt: skip


def test_a_gather_is_measured_once_over_all_runs(tmp_path: Path, measurer: Measurer) -> None:
    for _ in range(2):
        database = _tune(_gather(), tmp_path, measurer)
        assert len(database) == 1
        assert ms.tir_integration.compile_tir(database, _gather(), native_target()) is not None


def test_a_kernel_of_open_extents_is_told_of(tmp_path: Path, measurer: Measurer) -> None:
    rows = te.var("n", "int64")
    given = te.placeholder((rows, 17), name="given")
    mod = tvm.IRModule({"main": te.create_prim_func([given, te.compute((rows, 17), lambda i, j: given[i, j] + 1.0)])})
    with pytest.warns(TvmExtWarning, match=r"no sketch of a kernel could be scheduled.*open.*not measured"):
        assert len(_tune(mod, tmp_path, measurer)) == 0


def test_a_network_with_a_gather_is_tuned(tmp_path: Path, measurer: Measurer) -> None:
    class Lookup(nn.Module):
        def __init__(self) -> None:
            self.table, self.layer = nn.Parameter((19, 33)), nn.Linear(33, 17)

        def forward(self, rows: nn.Tensor) -> nn.Tensor:
            return nn.op.permute_dims(self.layer(nn.op.take(self.table, rows, axis=0)), [1, 0])

    mod, _ = Lookup().export_tvm({"forward": {"rows": nn.spec.Tensor([7], "int32")}})
    mod = tvm.transform.Sequential(
        [relax.transform.LegalizeOps(), relax.transform.FoldConstant(), relax.transform.DeadCodeElimination()]
    )(mod)
    builder, runner = builder_and_runner(measurer)
    with only_tensor_intrinsics("x86"):
        database = ms.relax_integration.tune_relax(
            mod, {}, native_target(), str(tmp_path), 12, strategy=TunerStrategy(recipe("evolution")), builder=builder,
            runner=runner, cost_model=ms.cost_model.RandomModel(), seed=1,
        )  # fmt: skip
    tasks = ms.relax_integration.extract_tasks(mod, native_target())
    assert len(tasks) > 1
    assert all(database.has_workload(task.dispatched[0]) for task in tasks)
    best = [database.get_top_k(database.commit_workload(task.dispatched[0]), 1) for task in tasks]
    assert all(best), "each kernel has a record"


def test_sketches_that_sample_are_searched_beside_those_that_do_not(tmp_path: Path, measurer: Measurer) -> None:
    def spaces(schedule: tvm.s_tir.Schedule) -> list[tvm.s_tir.Schedule]:
        plain, tiled = schedule, schedule.copy()
        loop = tiled.get_loops(tiled.get_sblock("c"))[0]
        tiled.split(loop, tiled.sample_perfect_tile(loop, n=2))
        return [plain, tiled]

    builder, runner = builder_and_runner(measurer)
    space = ms.space_generator.ScheduleFn(spaces, sch_rules=[], postprocs=[], mutator_probs={})
    with only_tensor_intrinsics("x86"):
        database = ms.tune_tir(
            matmul(), native_target(), str(tmp_path), 5, space=space, strategy=TunerStrategy(recipe("random")),
            builder=builder, runner=runner, cost_model=ms.cost_model.RandomModel(), num_tuning_cores=1, seed=1,
        )  # fmt: skip
    lengths = [len(record.trace.insts) for record in database.get_all_tuning_records()]
    assert len(lengths) == 5
    assert lengths.count(min(lengths)) == 1
