from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import tvm_ext
from tests.commands import Commands, real_command
from tests.cpu import needs_avx512_bf16
from tests.modules import Several
from tests.zoo import get
from tvm_ext.artifact.compiled_model import load
from tvm_ext.frontend.imported import ImportedModel
from tvm_ext.inputs import random_inputs
from tvm_ext.tensor_spec import TensorSpec


def test_random_inputs_by_seed(commands: Commands, artifact: Path) -> None:
    outputs = [json.loads(commands("run", artifact, "--seed", seed, "--json").stdout)["outputs"] for seed in "001"]
    assert outputs[0] == outputs[1] != outputs[2]
    expected = load(artifact)
    result = expected.run(random_inputs(expected.inputs, seed=1))["y"]
    assert outputs[2] == [
        {
            "name": "y",
            "shape": [4, 8],
            "dtype": "float32",
            "mean": pytest.approx(float(result.mean(dtype="float64"))),
            "std": pytest.approx(float(result.std(dtype="float64"))),
        }
    ]


def test_text(artifact: Path) -> None:
    result = real_command("run", artifact)
    assert (result.code, result.stderr) == (0, "")
    first, second = result.stdout.splitlines()
    assert first.startswith(f"{artifact}: ran on random (seed 0) inputs in ")
    assert second.startswith("  y: float32[4, 8] mean ")


def test_given_inputs_and_written_outputs(commands: Commands, artifact: Path, tmp_path: Path) -> None:
    inputs = get("tiny_mlp").inputs()
    np.savez(tmp_path / "in.npz", **inputs)
    np.save(tmp_path / "x.npy", inputs["x"])
    expected = load(artifact).run(inputs)["y"]
    for number, argument in enumerate(("in.npz", "x.npy", "x=x.npy")):
        output = tmp_path / f"out{number}.npz"
        result = commands("run", artifact, "--input", argument, "-o", output, cwd=tmp_path)
        assert (result.code, result.stderr) == (0, "")
        with np.load(output) as archive:
            np.testing.assert_array_equal(archive["y"], expected)


def test_outputs_may_have_any_name(commands: Commands, tmp_path: Path) -> None:
    names = ("file", "allow_pickle", "a/b:0")
    outputs = tuple(
        TensorSpec(name, shape, dtype)
        for name, shape, dtype in zip(names, ((2, 3), (2,), ()), ("float32", "int64", "float32"), strict=True)
    )
    inputs = (TensorSpec("x", (2, 3), "float32"), TensorSpec("index", (2,), "int64"))
    tvm_ext.compile(ImportedModel(Several, inputs, outputs, "several", ())).save(tmp_path / "model")
    result = commands("run", tmp_path / "model", "-o", tmp_path / "out.npz")
    assert (result.code, result.stderr) == (0, "")
    with np.load(tmp_path / "out.npz") as archive:
        assert [archive[name].shape for name in names] == [(2, 3), (2,), ()]


def test_check_against_onnxruntime(commands: Commands, artifact: Path, mlp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    result = commands("run", artifact, "--check", mlp_path)
    assert (result.code, result.stderr) == (0, "")
    assert "check y: largest absolute error" in result.stdout
    (error,) = json.loads(commands("run", artifact, "--check", mlp_path, "--json").stdout)["check"]
    assert 0 < error["relative"] < 1e-5


def test_check_that_fails(commands: Commands, artifact: Path, mlp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    result = commands("run", artifact, "--check", mlp_path, "--tolerance", "0")
    result.error(8, "output 'y' differs from the reference by", "the tolerance is 0")
    assert "check y" in result.stdout


@needs_avx512_bf16
def test_a_check_of_a_model_that_rounds_says_so(commands: Commands, mlp_path: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    shapes = get("tiny_mlp").input_shapes()
    tvm_ext.compile(mlp_path, precision="bfloat16", input_shapes=shapes).save(tmp_path / "model")
    result = commands("run", tmp_path / "model", "--check", mlp_path)
    result.error(8, "products and convolutions of this model have operands that are off by up to 0.2%", "--tolerance")
    assert commands("run", tmp_path / "model", "--check", mlp_path, "--tolerance", "0.05").code == 0


def test_check_against_another_model(commands: Commands, artifact: Path) -> None:
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    commands("run", artifact, "--check", get("tiny_cnn").onnx_path()).error(5, "onnxruntime cannot run")
    commands("run", artifact, "--check", "/nothing.onnx").error(3, "/nothing.onnx: no such file to compare with")
