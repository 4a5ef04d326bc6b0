from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.commands import Commands, real_command
from tests.zoo import get
from tvm_ext.artifact.compiled_model import load
from tvm_ext.phases import PHASES


@pytest.fixture
def open_batch(tmp_path: Path) -> Path:
    """A model that leaves its batch open; one input name holds a colon."""
    x = helper.make_tensor_value_info("x:0", TensorProto.FLOAT, ["batch", 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 4])
    graph = helper.make_graph([helper.make_node("Relu", ["x:0"], ["y"])], "relu", [x], [y])
    path = tmp_path / "relu.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


def test_summary(commands: Commands, mlp_path: Path, tmp_path: Path) -> None:
    result = commands("compile", mlp_path, "-o", tmp_path / "out")
    assert (result.code, result.stderr) == (0, "")
    assert result.stdout.startswith(f"{tmp_path}/out: compiled {mlp_path} for llvm in ")
    assert "x: float32[4,32]" in result.stdout
    assert "y: float32[4,8]" in result.stdout
    assert load(tmp_path / "out").run(get("tiny_mlp").inputs())["y"].shape == (4, 8)


def test_from_nothing(mlp_path: Path, tmp_path: Path) -> None:
    result = real_command("compile", mlp_path, "-o", tmp_path / "out")
    assert (result.code, result.stderr) == (0, "")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["metadata.json", "model.so"]


def test_json_is_the_metadata(commands: Commands, mlp_path: Path, tmp_path: Path) -> None:
    result = commands("compile", mlp_path, "-o", tmp_path / "out", "--json")
    assert (result.code, result.stderr) == (0, "")
    assert json.loads(result.stdout) == json.loads((tmp_path / "out" / "metadata.json").read_text())


def test_input_shapes_name_and_bind(commands: Commands, open_batch: Path, tmp_path: Path) -> None:
    result = commands("compile", open_batch, "-o", tmp_path / "out", "--input-shape", "x:0:3,4")
    assert result.code == 0, result.stderr
    x = np.arange(-6, 6, dtype="float32").reshape(3, 4)
    np.testing.assert_array_equal(load(tmp_path / "out").run({"x:0": x})["y"], np.maximum(x, 0))


def test_rewriting_and_fusion(commands: Commands, mlp_path: Path, tmp_path: Path) -> None:
    options = ("--rewrite", "strict", "--fuse", "mapping-type", "--json")
    result = commands("compile", mlp_path, "-o", tmp_path / "out", *options)
    assert result.code == 0, result.stderr
    decided = json.loads(result.stdout)["decisions"]["options"]
    assert (decided["rewrite"], decided["fuse"]) == ("strict", "mapping-type")
    assert load(tmp_path / "out").run(get("tiny_mlp").inputs())["y"].shape == (4, 8)
    assert commands("compile", mlp_path, "-o", tmp_path / "other", "--fuse", "all").code == 2


def test_phases_can_be_left_out_and_dumped(commands: Commands, mlp_path: Path, tmp_path: Path) -> None:
    dumps = tmp_path / "dumps"
    result = commands("compile", mlp_path, "-o", tmp_path / "out", "--disable", "fuse", "--dump-dir", dumps, "--json")
    assert result.code == 0, result.stderr
    assert json.loads(result.stdout)["decisions"]["options"]["disable"] == ["fuse"]
    assert len(list(dumps.iterdir())) == len(PHASES) - 1


def test_force_replaces_an_artifact(commands: Commands, mlp_path: Path, tmp_path: Path) -> None:
    for arguments in ([], ["--force"]):
        result = commands("compile", mlp_path, "-o", tmp_path / "out", *arguments)
        assert (result.code, result.stderr) == (0, "")


def test_torch_programs(commands: Commands, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    x = torch.ones(2, 3)
    torch.export.save(torch.export.export(torch.nn.Linear(3, 4).eval(), (x,)), tmp_path / "linear.pt2")
    result = commands("compile", tmp_path / "linear.pt2", "-o", tmp_path / "out")
    assert (result.code, result.stderr) == (0, "")
    (output,) = load(tmp_path / "out").run([x.numpy()]).values()
    assert output.shape == (2, 4)
