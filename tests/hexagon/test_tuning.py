"""Tuning on packet counts: what HVX has no kernel for gets schedules with fewer packets, and models are compiled so."""

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import tvm
from click.testing import CliRunner
from onnx import TensorProto, helper, numpy_helper
from tvm import te
from tvm.s_tir import meta_schedule as ms

import tvm_ext
from tests.commands import Commands
from tests.hexagon.emulated import TARGET, needs_emulator
from tvm_ext.backends.hexagon.tuning import PacketTuner
from tvm_ext.backends.registry import backend_of
from tvm_ext.cli.tune import command
from tvm_ext.errors import OutputError, TuningError
from tvm_ext.schedules.hexagon.panels import FOUR
from tvm_ext.schedules.hexagon.product import product
from tvm_ext.system.tensor_intrinsics import PACKAGE
from tvm_ext.tuners.recipes import recipe
from tvm_ext.tuning import tune
from tvm_ext.tuning.counted_metaschedule import builder_and_runner, design_space
from tvm_ext.tuning.result import KernelResult, TuningResult

RANDOM = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _little_effort(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tvm_ext.backends.hexagon.packer.choice.EFFORT", 10)


def product_of_floats() -> onnx.ModelProto:
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("x", "y")]
    values[0] = helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 17])
    weight = numpy_helper.from_array(RANDOM.standard_normal((17, 33)).astype("float32"), "w")
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = helper.make_graph([node], "product", values[:1], values[1:], [weight])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@needs_emulator
def test_fewer_packets_and_the_same_numbers(tmp_path: Path) -> None:
    model, x = product_of_floats(), RANDOM.standard_normal((3, 17)).astype("float32")
    mod = tvm_ext.import_model(model).mod
    result = tune(mod, TARGET, tmp_path, 6, recipe("random", batch=3, initial=3))
    (kernel,) = result.kernels
    assert kernel.trials == 6
    assert kernel.before is not None
    assert kernel.best is not None
    assert kernel.best <= kernel.before
    again = tune(mod, TARGET, tmp_path, 6, recipe("random", batch=3, initial=3))
    with pytest.raises(TuningError, match="no tuning database in nowhere"):
        tune(mod, TARGET, tmp_path, 6, recipe("random"), compare="nowhere")
    assert (again.resumed, again.trials, again.others) == (6, 0, 0)
    assert again.kernels[0].best == kernel.best

    expected, before = tvm_ext.compile(model, TARGET).profile({"x": x})
    found, after = tvm_ext.compile(model, TARGET, work_dir=tmp_path).profile({"x": x})
    np.testing.assert_allclose(found["y"], expected["y"], rtol=1e-5, atol=1e-6)
    if kernel.best < kernel.before:
        assert sum(layer.counts.packets for layer in after) < sum(layer.counts.packets for layer in before)


@pytest.mark.parametrize("name", ["file", "file/folder", "file/folder/below"])
def test_a_folder_that_cannot_be_written(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was noticed when all kernels had been scheduled and counted, which takes a minute or more."""
    monkeypatch.setattr(PacketTuner, "kernels", lambda *_: pytest.fail("counted"))
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match=f"cannot write the database in .*{name}: "):
        tune(tvm_ext.import_model(product_of_floats()).mod, TARGET, tmp_path / name, 4, recipe("random"))


@needs_emulator
@pytest.mark.parametrize(("stop", "seconds"), [(KeyboardInterrupt, 60), (SystemExit, 0)])
def test_what_was_measured_before_a_run_is_stopped_is_kept(
    stop: type[BaseException], seconds: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C in the first batch; and a process that ends without a word, where candidates take their time."""
    mod, count, counts = tvm_ext.import_model(product_of_floats()).mod, PacketTuner.count, []

    def stopping(tuner: PacketTuner, scheduled: tvm.tirx.PrimFunc) -> tuple[int | None, str]:
        if len(counts) == 4:  # the kernel without a schedule, and three candidates
            raise stop
        counts.append(count(tuner, scheduled))
        return counts[-1]

    monkeypatch.setattr("tvm_ext.tuning.counted.PART_SECONDS", seconds)
    monkeypatch.setattr(PacketTuner, "count", stopping)
    with pytest.raises(stop):
        tune(mod, TARGET, tmp_path, 6, recipe("random", batch=6, initial=6))
    monkeypatch.undo()
    ((fewest, trials),) = PacketTuner(TARGET, lambda mod: mod).known(tmp_path).values()
    assert trials == 3
    assert fewest == min(packets for packets, _ in counts if packets is not None)
    again = tune(mod, TARGET, tmp_path, 5, recipe("random", batch=3, initial=3))
    assert (again.resumed, again.trials) == (3, 2)


@needs_emulator
def test_an_interrupted_command_is_gone_on_with(commands: Commands, tmp_path: Path) -> None:
    """Ctrl-C in the middle of a batch: one line, soon, and the next run counts what was tried."""
    onnx.save(product_of_floats(), tmp_path / "model.onnx")
    folder, tuner = tmp_path / "tuned", PacketTuner(TARGET, lambda mod: mod)
    arguments = "tune", tmp_path / "model.onnx", "--target", "hexagon-v67", "--work-dir", folder, "--batch", "500"
    running = commands.start(*arguments, "--trials", "500")
    deadline = time.monotonic() + 100
    while sum(trials for _, trials in tuner.known(folder).values()) < 2:
        assert running.process.is_alive(), running.read("stderr")
        assert time.monotonic() < deadline
        time.sleep(0.05)
    start = time.monotonic()
    os.kill(running.pid, signal.SIGINT)
    result = running.wait(60)
    assert (result.code, result.stderr) == (130, "tvm-ext: interrupted\n")
    assert time.monotonic() - start < 20
    ((_, tried),) = tuner.known(folder).values()
    assert 2 <= tried < 500
    again = commands(*arguments, "--trials", str(tried + 2))
    assert (again.code, again.stderr) == (0, "")
    assert ": 2 trials in " in again.stdout
    assert f", {tried} resumed" in again.stdout


@needs_emulator
def test_only_what_hexagon_needs_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """A context of MetaSchedule imports the tensor intrinsics of all targets, a minute before the first trial."""
    monkeypatch.delitem(sys.modules, PACKAGE, raising=False)
    monkeypatch.delattr(tvm.s_tir, "tensor_intrin", raising=False)
    mod = tvm_ext.import_model(product_of_floats()).mod
    counter = backend_of(TARGET).measurer
    assert counter is not None
    tuner = counter(TARGET)
    (kernel,) = tuner.kernels(mod)
    (schedule, *_) = tuner.sketches(kernel.func).values()
    assert tuner.count(schedule.mod["main"])[0]
    assert PACKAGE not in sys.modules


@needs_emulator
def test_metaschedule_searches_on_packets(tmp_path: Path) -> None:
    """Its own search, with our builder and runner: what is recorded is what the schedule is counted at again."""
    left, right = (te.placeholder(shape, "float32", name) for name, shape in (("a", (3, 17)), ("b", (17, 7))))
    along = te.reduce_axis((0, 17), "k")
    product = te.compute((3, 7), lambda i, j: te.sum(left[i, along] * right[along, j], along), "product")
    func = te.create_prim_func([left, right, product])
    tuner = PacketTuner(TARGET, lambda mod: mod)
    builder, runner = builder_and_runner(tuner)
    database = ms.tune_tir(
        func, TARGET, str(tmp_path), 4, num_trials_per_iter=4, builder=builder, runner=runner, strategy="replay-trace",
        space=design_space(func, tuner), cost_model="random", num_tuning_cores=1, seed=1,
    )  # fmt: skip
    records = [record for record in database.get_all_tuning_records() if record.run_secs]
    assert len(records) == 4
    best = min(records, key=lambda record: float(record.run_secs[0]))
    schedule = tvm.s_tir.Schedule(best.workload.mod)
    best.trace.apply_to_schedule(schedule, remove_postproc=False)
    assert tuner.count(schedule.mod["main"])[0] == round(float(best.run_secs[0]) * tuner.clock)


def test_kernels_of_hvx_leave_nothing_to_choose() -> None:
    tuner = PacketTuner(TARGET, lambda mod: mod)
    kernel = product(FOUR, 3, 4, 5).with_attr("global_symbol", "kernel")
    with pytest.raises(TuningError, match="leave nothing to tune"):
        tuner.kernels(tvm.IRModule({"kernel": kernel}))


@needs_emulator
def test_a_file_that_is_damaged(tmp_path: Path) -> None:
    (tmp_path / "packets.json").write_text("{}")
    with pytest.raises(TuningError, match="remove it to begin anew"):
        tune(tvm_ext.import_model(product_of_floats()).mod, TARGET, tmp_path, 4, recipe("random"))


def test_what_is_tried_is_said_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of minutes, its output no terminal, had no line before its end."""

    def two_batches(*_: object, progress: Callable[[TuningResult], None], **__: object) -> TuningResult:
        result = TuningResult([KernelResult("softmax", 1, 0, before=2e-6)], beside="process 7")
        progress(result)
        result.kernels[0].trials = 3
        result.curve.append((1.0, 3, 1.5e-6))
        progress(result)
        return result

    monkeypatch.setattr("tvm_ext.tuning.tune", two_batches)
    monkeypatch.setattr("tvm_ext.cli.tune.LINE_SECONDS", 0.0)
    onnx.save(product_of_floats(), tmp_path / "model.onnx")
    arguments = [str(tmp_path / "model.onnx"), "--target", "hexagon-v67", "--work-dir", "tuned", "--trials", "4"]
    lines = CliRunner().invoke(command, arguments, catch_exceptions=False).output.splitlines()
    assert lines[0].endswith("model.onnx gets up to 4 trials for hexagon-v67, by packets, counted by the emulator")
    assert lines[1:3] == ["  kernels  softmax", "  trying   3 of 4 trials, 1,500 packets"]
    # Counts are as exact beside other runs as alone, unlike times.
    assert lines[-1] == "  beside   process 7 was tuning into this folder, too: what both measured is kept"
