"""Tuning a whole model: what is found is stored, gone on with, and used by a compilation."""

from __future__ import annotations

import platform
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

import tvm_ext
from tests.database.test_folders import commit
from tests.schedules.kernels import graph
from tests.tuners.metaschedule.kernels import matmul
from tvm_ext.backends.cpu.target import native_target
from tvm_ext.database.folders import (
    RECORDS,
    WORKLOADS,
    open_database,
)
from tvm_ext.errors import OutputError, RemoteError, TargetError, TuningError
from tvm_ext.options import PipelineOptions
from tvm_ext.pipeline import phase_passes
from tvm_ext.schedules.cpu.machine import machine_of
from tvm_ext.tuners.measure.measurer import Measurer
from tvm_ext.tuners.measure.worker import Timing
from tvm_ext.tuners.recipes import recipe
from tvm_ext.tuning import kernels_to_tune, tune
from tvm_ext.tuning.tasks import earlier_kernels


def model() -> tvm.IRModule:
    weights = relax.const(np.random.default_rng(0).standard_normal((32, 32, 1, 1)).astype("float32") * 0.1, "float32")
    return graph(
        lambda bb, x: relax.op.nn.relu(bb.normalize(relax.op.nn.conv2d(x, weights))), [((1, 32, 14, 14), "float32")]
    )


@pytest.fixture(scope="module")
def measurer() -> Iterator[Measurer]:
    with Measurer(workers=2, threads=1, timing=Timing(repeats=1, seconds=0.001)) as made:
        yield made


def test_what_is_found_is_used(measurer: Measurer, tmp_path: Path) -> None:
    seen: list[int] = []
    result = tune(
        model(), native_target(), tmp_path, 24, recipe("evolution"), batch=8, measurer=measurer,
        progress=lambda state: seen.append(state.trials),
    )  # fmt: skip
    assert result.resumed == 0
    assert seen[-1] == result.trials == 24
    assert list(result.seconds) == ["search", "model", "build", "run", "confirm", "total"]
    assert all(seconds > 0 for seconds in result.seconds.values())
    assert result.seconds["search"] + result.seconds["model"] < result.seconds["total"]
    measured = [kernel for kernel in result.kernels if kernel.best is not None]
    assert measured
    assert all(kernel.before is not None and kernel.best <= kernel.before for kernel in measured)
    assert result.curve[-1][2] == pytest.approx(sum(kernel.best * kernel.calls for kernel in measured))

    database = open_database(tmp_path)
    records = len(database.get_all_tuning_records())
    assert records == result.trials
    array = np.random.default_rng(1).standard_normal((1, 32, 14, 14)).astype("float32")
    plain = tvm_ext.compile(model())
    tuned = tvm_ext.compile(model(), work_dir=tmp_path)
    (name,) = [spec.name for spec in plain.inputs]
    for first, second in zip(plain.run({name: array}).values(), tuned.run({name: array}).values(), strict=True):
        np.testing.assert_allclose(first, second, rtol=1e-4, atol=1e-5)

    again = tune(model(), native_target(), tmp_path, 24, recipe("evolution"), measurer=measurer)
    assert (again.trials, again.resumed) == (0, records)
    assert {kernel.best for kernel in again.kernels} == {kernel.best for kernel in result.kernels}
    # The rule's own choice has its time, also where nothing new was measured.
    for kernel, before in zip(again.kernels, result.kernels, strict=True):
        assert (kernel.before is None) == (before.before is None)
        assert kernel.before is None or kernel.before == pytest.approx(before.before)
        assert kernel.before is None or kernel.best <= kernel.before


def two_convolutions() -> tvm.IRModule:
    generator = np.random.default_rng(0)
    first, second = (
        relax.const(generator.standard_normal(shape).astype("float32"), "float32")
        for shape in ((32, 16, 1, 1), (32, 32, 3, 3))
    )
    return graph(
        lambda bb, x: relax.op.nn.conv2d(bb.normalize(relax.op.nn.conv2d(x, first)), second, strides=2),
        [((1, 16, 14, 14), "float32")],
    )


def test_a_kernel_whose_first_candidate_fails_gets_its_share(tmp_path: Path) -> None:
    """As one that timed out while the machine was busy with something else."""

    class Failing(Measurer):
        first = ""

        def run(self, row: Any, device_type: str, arguments: Any) -> None:
            self.first = self.first or row.key
            if row.key == self.first:
                row.error = "it took too long"
                return
            super().run(row, device_type, arguments)

    with Failing(workers=1, threads=1, timing=Timing(repeats=1, seconds=0.001)) as failing:
        result = tune(
            two_convolutions(), native_target(), tmp_path, 12, recipe("random"), batch=4, measurer=failing,
            confirm=False,
        )  # fmt: skip
    assert result.trials == 12
    failed, other = sorted(result.kernels, key=lambda kernel: -kernel.failed)
    assert (failed.failed, other.failed) == (1, 0)
    assert failed.trials == 1 + 12 // len(result.kernels)
    assert failed.best is not None


def test_every_kernel_is_measured_once_before_one_is_measured_again(measurer: Measurer, tmp_path: Path) -> None:
    seen: list[list[int]] = []
    result = tune(
        two_convolutions(), native_target(), tmp_path, 12, recipe("random"), batch=4, measurer=measurer,
        progress=lambda state: seen.append([kernel.trials for kernel in state.kernels]),
    )  # fmt: skip
    kernels = len(result.kernels)
    assert kernels > 1
    assert [1] * kernels in seen
    assert result.trials == 12
    assert result.curve[0][1] <= kernels + 4  # what is measured while the last of them is read counts, too


def test_a_kernel_is_tuned_with_what_is_known_of_others(measurer: Measurer, tmp_path: Path) -> None:
    """Another model of like kernels; what the database holds of the same kernel is no other's."""

    def convolution_of(channels: int) -> tvm.IRModule:
        weights = np.random.default_rng(0).standard_normal((channels, channels, 3, 3)).astype("float32")
        constant = relax.const(weights, "float32")
        shape = (1, channels, 57, 57)  # rows and columns are told apart
        return graph(lambda bb, x: relax.op.nn.conv2d(x, constant, strides=2), [(shape, "float32")])

    few = 8 * machine_of(native_target()).lanes("float32")  # as many vectors on every machine
    run = {"batch": 8, "measurer": measurer}
    tune(convolution_of(few), native_target(), tmp_path, 24, recipe("evolution_shared"), **run)
    database = open_database(tmp_path)
    same, new = (kernels_to_tune(convolution_of(channels), native_target()) for channels in (few, 2 * few))
    assert all(
        not earlier_kernels(database, [row.mod for row in same], native_target()).others(n.space.space) for n in new
    )
    peers = earlier_kernels(database, [row.mod for row in new], native_target())
    rows = max((rows for task in new for _, rows in peers.others(task.space.space)), key=len)
    assert len(rows) > 8
    assert all(row.seconds is None or 0 < row.seconds < 1 for row in rows)
    result = tune(convolution_of(2 * few), native_target(), tmp_path, 16, recipe("evolution_shared"), **run)
    assert result.trials == 16


def test_the_database_holds_the_kernels_of_the_pipeline(measurer: Measurer, tmp_path: Path) -> None:
    """Every tuned kernel is found by the phase that applies the database, whatever the comparison would say of it."""
    tune(model(), native_target(), tmp_path, 8, recipe("random"), batch=4, measurer=measurer, confirm=False)
    database = open_database(tmp_path)
    found = [task for task in kernels_to_tune(model(), native_target()) if database.has_workload(task.mod)]
    assert found
    with database:
        lowered = _scheduled(model())
    tvm.ir.assert_structural_equal(lowered, _scheduled(model(), work_dir=tmp_path))
    from_rules = _scheduled(model())
    taken = [v.name_hint for v, f in lowered.functions.items() if f.attrs and "tirx.is_scheduled" in f.attrs]
    ruled = [v.name_hint for v, f in lowered.functions.items() if f.attrs and "tvm_ext.schedule_rule" in f.attrs]
    assert len(set(taken) - set(ruled)) == len(found)
    assert all(
        "tvm_ext.schedule_rule" in func.attrs
        for func in from_rules.functions.values()
        if isinstance(func, tvm.tirx.PrimFunc)
    )


def test_options_decide_which_kernels_there_are() -> None:
    # What Winograd's algorithm computes in one kernel has nothing to tune.
    weights = relax.const(np.ones((512, 512, 3, 3), "float32"), "float32")
    mod = graph(lambda bb, x: relax.op.nn.conv2d(x, weights, padding=1), [((1, 512, 14, 14), "float32")])
    assert not any("conv" in task.name for task in kernels_to_tune(mod, native_target()))
    plain = kernels_to_tune(mod, native_target(), options=PipelineOptions(winograd=False))
    assert "conv" in plain[0].name  # most arithmetic first


def _scheduled(mod: tvm.IRModule, **options: Any) -> tvm.IRModule:
    with native_target(), tvm.transform.PassContext():
        for phase, phase_pass in phase_passes(native_target(), PipelineOptions(**options)):
            mod = phase_pass(mod)
            if phase.name == "schedule":
                return mod
    raise AssertionError("no phase schedule")


def test_a_killed_run_is_gone_on_with(measurer: Measurer, tmp_path: Path) -> None:
    script = textwrap.dedent(
        f"""
        from tests.tuning.test_loop import model
        from tvm_ext.target import native_target
        from tvm_ext.tuners.recipes import recipe
        from tvm_ext.tuning import tune
        tune(model(), native_target(), {str(tmp_path)!r}, 400, recipe("random"), batch=2)
        """
    )
    with subprocess.Popen([sys.executable, "-c", script]) as process:
        records = tmp_path / RECORDS
        deadline = time.monotonic() + 120
        while (not records.exists() or records.read_text().count("\n") < 4) and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
    known = records.read_text().count("\n")
    assert known >= 4
    with records.open("a") as file:
        file.write('[0, [[["Get')  # killed in the middle of a line
    result = tune(model(), native_target(), tmp_path, known + 4, recipe("random"), batch=4, measurer=measurer)
    assert result.resumed == known
    assert result.trials == 4
    assert all(kernel.best is not None for kernel in result.kernels)


def test_machines_that_are_gone_end_a_run_and_are_no_failures(tmp_path: Path) -> None:
    class Alone(Measurer):
        """Measures one batch, then has no machine any more."""

        def run_all(self, rows: Any) -> Any:
            if self.counts.run:
                self.broken = RemoteError("no server at all")
                raise self.broken
            return super().run_all(rows)

    with (
        Alone(workers=1, threads=1, timing=Timing(repeats=2, seconds=0.001)) as measurer,
        pytest.raises(RemoteError, match="no server at all"),
    ):
        tune(model(), native_target(), tmp_path, 40, recipe("random"), batch=2, measurer=measurer)
    records = open_database(tmp_path).get_all_tuning_records()
    assert len(records) == 1  # the first batch is the rule's own choice
    assert all(float(record.run_secs[0]) < 1.0 for record in records)


def test_a_run_beside_other_kernels_and_compared_with_another(measurer: Measurer, tmp_path: Path) -> None:
    commit(tmp_path / "new", matmul(8), 1.0)
    commit(tmp_path / "other", matmul(8), 1.0)
    with pytest.raises(TuningError, match=r"other holds none of this model's \d+ kernels: it is of another model"):
        tune(model(), native_target(), tmp_path / "new", 4, recipe("random"), compare=tmp_path / "other")
    with pytest.raises(TuningError, match=r"no tuning database in .*none: expected the --work-dir"):
        tune(model(), native_target(), tmp_path / "new", 4, recipe("random"), compare=tmp_path / "none")
    assert not (tmp_path / "none").exists()
    run = {"batch": 4, "measurer": measurer}
    result = tune(model(), native_target(), tmp_path / "new", 8, recipe("random"), **run)
    assert (result.resumed, result.others) == (0, 1)
    assert result.trials == 8
    again = tune(model(), native_target(), tmp_path / "next", 8, recipe("random"), compare=tmp_path / "new", **run)
    assert [kernel.earlier for kernel in again.kernels] == [kernel.best for kernel in result.kernels]


def test_errors(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="this machine has no NVIDIA GPU"):
        kernels_to_tune(model(), tvm.target.Target("cuda", host="llvm"))
    foreign = "aarch64-linux-gnu" if platform.machine() == "x86_64" else "x86_64-linux-gnu"
    with pytest.raises(TargetError, match="this machine"):
        kernels_to_tune(model(), tvm.target.Target({"kind": "llvm", "mtriple": foreign}))
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="file"):
        open_database(tmp_path / "file")
    (tmp_path / WORKLOADS).write_text("not a workload\n")
    (tmp_path / RECORDS).write_text("")
    with pytest.raises(TuningError, match="another folder"):
        open_database(tmp_path)
    flat = graph(lambda bb, x: relax.op.reshape(x, (4,)), [((2, 2), "float32")])
    with pytest.raises(TuningError, match="nothing to tune"):
        tune(flat, native_target(), tmp_path / "new", 8, recipe("random"))


def test_a_run_says_that_nothing_was_left_to_try(measurer: Measurer, tmp_path: Path) -> None:
    weights = relax.const(np.ones((16, 8, 1, 1), "float32"), "float32")
    mod = graph(lambda bb, x: relax.op.nn.conv2d(x, weights), [((1, 8, 3, 3), "float32")])
    run = {"batch": 16, "measurer": measurer}
    result = tune(mod, native_target(), tmp_path, 2000, recipe("random"), **run)
    assert 0 < result.trials < 2000
    (note,) = result.notes
    left = 2000 - result.trials
    assert note == f"{left} of 2000 trials were not needed: the kernels have no configuration that was not tried"
    assert tune(mod, native_target(), tmp_path, 1, recipe("random"), **run).notes == []
