from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.commands import Commands
from tvm_ext.cli.tune import _times
from tvm_ext.tuning import KernelResult


def convolution(path: Path, inputs: int, outputs: int, size: int, kernel: int) -> Path:
    weights = np.random.default_rng(0).standard_normal((outputs, inputs, kernel, kernel)).astype("float32") * 0.1
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"], pads=[kernel // 2] * 4)],
        "convolution",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, inputs, size, size])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, outputs, size, size])],
        [numpy_helper.from_array(weights, "w")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return convolution(tmp_path / "model.onnx", 16, 32, 8, 1)


def test_tune_compile_and_resume(commands: Commands, model: Path, tmp_path: Path) -> None:
    folder, output = tmp_path / "database", tmp_path / "out"
    options = ["--work-dir", str(folder), "--trials", "10", "--batch", "5", "--threads", "1"]
    result = commands("tune", str(model), *options, "-o", str(output), "--chart", str(tmp_path / "chart.svg"))
    assert (result.code, result.stderr) == (0, "")
    # On a busy machine the network may turn out slower with the fastest schedule that was found.
    assert "µs (was" in result.stdout or "µs (its rule's own schedule" in result.stdout
    assert (output / "metadata.json").exists()
    compiled = commands("compile", str(model), "--work-dir", str(folder), "-o", str(tmp_path / "again"))
    assert (compiled.code, compiled.stderr) == (0, "")
    refused = commands("compile", str(model), "--work-dir", str(tmp_path / "none"), "-o", str(tmp_path / "other"))
    assert (refused.code, refused.stderr.count("\n")) == (14, 1)
    assert "no tuning database" in refused.stderr
    assert "best kernel times" in (tmp_path / "chart.svg").read_text()
    again = commands("tune", str(model), *options, "--json", "--compare", str(folder))
    assert again.code == 0
    document = json.loads(again.stdout)
    assert document["trials"] == 0
    assert document["resumed"] == 10
    comparison = document["comparison"]
    assert (comparison["kernels"], comparison["ratio"]) == (len(document["kernels"]), 1.0)
    chart = tmp_path / "none.svg"
    text = commands("tune", str(model), *options, "--compare", str(folder), "--chart", str(chart))
    assert " in the earlier run, 1.00 times as fast" in text.stdout
    assert "no chart: no trial was left; give it more --trials" in text.stdout
    assert not chart.exists()


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["--tuner", "best"], 2, "autotvm_sa"),
        (["--target", "cuda"], 6, ""),
        (["--trials", "0"], 2, "--trials"),
        (["--chart", "chart.pdf"], 2, ".png"),
        (["--compare", "nowhere"], 14, "no tuning database in nowhere"),
    ],
)
def test_errors(commands: Commands, model: Path, tmp_path: Path, options: list[str], code: int, words: str) -> None:
    result = commands("tune", str(model), "--work-dir", str(tmp_path / "database"), *options)
    assert result.code == code
    assert words in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_folder_that_cannot_be_written(commands: Commands, model: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = commands("tune", str(model), "--work-dir", str(tmp_path / "file"))
    assert result.code == 7
    assert "file" in result.stderr


def test_a_full_disk_is_said(model: Path, tmp_path: Path) -> None:
    """Files may not grow beyond 12 kB, as on a disk that is full."""
    script = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (12000, 12000)); "
        "from tvm_ext.cli.main import main; main(sys.argv[1:])"
    )
    options = ["--work-dir", str(tmp_path / "database"), "--trials", "60", "--batch", "10", "--threads", "1"]
    arguments = [sys.executable, "-c", script, "tune", str(model), *options, "--tuner", "random"]
    result = subprocess.run(arguments, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 7, result.stderr
    assert "database" in result.stderr


def test_a_tuner_without_its_prior_says_which_one_is_used(commands: Commands, model: Path, tmp_path: Path) -> None:
    options = ["--trials", "6", "--batch", "3", "--threads", "1", "--tuner", "glimpse"]
    result = commands("tune", str(model), *options, "--work-dir", str(tmp_path / "database"))
    assert (result.code, result.stderr) == (0, "")
    (note,) = (line for line in result.stdout.splitlines() if line.startswith("  note"))
    assert "what the schedule rule estimates is the prior: the target says nothing of the kernel" in note
    assert note.endswith("the tuner is evolution_pretrained")


def test_why_nothing_could_be_measured_of_a_kernel() -> None:
    kernel = KernelResult("matmul", 1, 8, trials=2, failed=2, error="running took longer than 10 s and was stopped")
    assert _times(kernel, str) == "nothing could be measured: running took longer than 10 s and was stopped"
    assert _times(KernelResult("matmul", 1, 8), str) == "not tried; give it more --trials"


def test_missing_calibration_is_told_of_before_the_search(commands: Commands, tmp_path: Path) -> None:
    model = convolution(tmp_path / "model.onnx", 128, 128, 14, 3)
    options = ["--trials", "6", "--target", "tvm-ext/vta-1x16x16", "-o", str(tmp_path / "out")]
    result = commands("tune", str(model), *options, "--work-dir", str(tmp_path / "database"))
    assert result.code != 0
    assert "give calibration data (--calibrate FILE" in result.stderr
    assert "trials for" not in result.stdout
    assert not (tmp_path / "database").exists()


def test_vta_has_a_prior(commands: Commands, tmp_path: Path) -> None:
    model = convolution(tmp_path / "model.onnx", 128, 128, 14, 3)
    options = ["--trials", "6", "--tuner", "glimpse", "--target", "tvm-ext/vta-1x16x16", "--json"]
    result = commands("tune", str(model), *options, "--work-dir", str(tmp_path / "database"))
    assert (result.code, result.stderr) == (0, "")
    document = json.loads(result.stdout)
    assert document["notes"] == []
    assert document["trials"] == 6
    assert document["kernels"][0]["failed"] == 0
