"""From a model file to its outputs on an emulated AArch64, as a user would cross-compile it."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
from click.testing import CliRunner

from tests.guarded import emulated_model
from tests.zoo import need
from tvm_ext.artifact.compiled_model import load
from tvm_ext.artifact.metadata import read_metadata, tensor_specs
from tvm_ext.cli.compile import command
from tvm_ext.errors import TargetError
from tvm_ext.verify import compare_outputs, onnxruntime_outputs

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(emulated_model.missing()), reason=f"models for AArch64 need {emulated_model.missing()}"),
]


@pytest.mark.parametrize("name", ["tiny_cnn", "tiny_transformer"])
@pytest.mark.parametrize("threads", [1, 2])
def test_cross_compiled_models(name: str, threads: int, tmp_path: Path) -> None:
    entry = need(name)
    inputs = entry.inputs(3)
    onnx.save(entry.onnx_model(), tmp_path / "model.onnx")
    target = {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a76", "num-cores": 2}
    words = [str(tmp_path / "model.onnx"), "-o", str(tmp_path / "out"), "--target", json.dumps(target)]
    for input_name, array in inputs.items():
        words += ["--input-shape", f"{input_name}:{','.join(map(str, array.shape))}"]
    done = CliRunner().invoke(command, words)
    assert done.exit_code == 0, done.output
    metadata = read_metadata(tmp_path / "out" / "metadata.json")
    ordered = [inputs[spec.name] for spec in tensor_specs(metadata["inputs"])]
    runner = emulated_model.build_model_runner(tmp_path)
    outputs = tensor_specs(metadata["outputs"])
    found = emulated_model.run_model(tmp_path / "out", ordered, outputs, runner, tmp_path, threads)
    expected = onnxruntime_outputs(entry.onnx_model(), inputs)
    assert max(difference.relative for difference in compare_outputs(found, expected)) <= entry.tolerance
    with pytest.raises(TargetError, match="cannot be loaded on this machine"):
        load(tmp_path / "out")
