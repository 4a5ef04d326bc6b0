"""``tvm-ext embed`` as a user calls it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tvm_ext.cli.main import run


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stem of three channels, a depthwise convolution and a product."""
    rng = np.random.default_rng(0)

    def weights(name: str, *shape: int) -> onnx.TensorProto:
        return helper.make_tensor(name, TensorProto.FLOAT, shape, rng.standard_normal(shape).astype("f").ravel())

    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"], pads=[1, 1, 1, 1], name="stem"),
        helper.make_node("Conv", ["a", "w2"], ["b"], group=16, name="each[0]"),
        helper.make_node("GlobalAveragePool", ["b"], ["c"]),
        helper.make_node("Flatten", ["c"], ["d"]),
        helper.make_node("MatMul", ["d", "w3"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes, "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 10, 10])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 8])],
        [weights("w1", 16, 3, 3, 3), weights("w2", 16, 1, 3, 3), weights("w3", 16, 8)],
    )  # fmt: skip
    path = tmp_path_factory.mktemp("embed") / "net.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def test_json_names_mapping_rewrites_and_reasons(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["embed", str(model), "--target", "tvm-ext/vta-1x16x16", "--json"]) == 0
    stem, depthwise, product = json.loads(capsys.readouterr().out)["operators"]
    (choice,) = stem["instructions"]
    assert choice["quantized"]
    assert choice["candidates"] > 1
    assert {part["axis"] for part in choice["best"]["mapping"]["z"]} <= {"rc", "ry", "rx"}
    assert choice["best"]["cycles"] <= choice["others"][0]["cycles"]
    assert choice["others"][0]["lost_by"] >= 1
    assert stem["nodes"] == ["Conv node 'stem'"]
    assert "finds no axis of its kind" in depthwise["reason"]
    assert product["chosen"] == "vta.gemm.1x16x16"
    assert product["instructions"][0]["best"]["features"][-1] in ("reorder", "fuse")


def test_rewriting_finds_what_it_can(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["embed", str(model), "--target", "tvm-ext/vta-1x16x16", "--engine", "top-down"]
    assert run([*arguments, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    stem, depthwise, product = report["operators"]
    assert report["engine"] == "top-down"
    assert stem["instructions"][0]["best"]["mapping"]["z"] == [{"axis": "rc", "size": 16, "stride": 1, "padded": 16}]
    assert stem["instructions"][0]["programs"] > stem["instructions"][0]["candidates"] > 0
    assert "matches the instruction vta.gemm.1x16x16" in depthwise["reason"]
    assert product["chosen"] == "vta.gemm.1x16x16"
    assert run(arguments) == 0
    out = capsys.readouterr().out
    assert "2 of 3 multiply-accumulate kernels have an embedding" in out
    assert "(Conv node 'each[0]'): no embedding:" in out
    assert run([*arguments[:-1], "bottom-up"]) != 0
    assert "top-down" in capsys.readouterr().err


def test_table_for_a_cpu(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["embed", str(model), "--target", '{"kind": "llvm", "mcpu": "haswell"}']) == 0
    out = capsys.readouterr().out
    assert "3 of 3 multiply-accumulate kernels have an embedding" in out
    assert "x86.fma.256" in out
    assert "times as long" in out


def test_a_target_without_instructions_is_refused(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["embed", str(model), "--target", "c"]) == 6
    assert "no instructions that multiply and add are known of target c" in capsys.readouterr().err


@pytest.mark.parametrize("engine", ["constraints", "top-down"])
def test_an_operator_of_nothing_has_a_reason(engine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [0, 5])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [0, 3])],
        [helper.make_tensor("w", TensorProto.FLOAT, [5, 3], np.ones(15, "f"))],
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "x.onnx")
    assert run(["embed", str(tmp_path / "x.onnx"), "--engine", engine]) == 0
    assert "multiplies nothing: its axis i0 is empty" in capsys.readouterr().out


def test_a_search_that_time_ends_is_named(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["embed", str(model), "--target", "hexagon-v67", "--seconds"]
    assert run([*arguments, "0.001", "--json"]) == 0
    operators = json.loads(capsys.readouterr().out)["operators"]
    notes = [choice["note"] for operator in operators for choice in operator["instructions"]]
    assert any("stopped after 0.001 seconds" in note for note in notes)
    assert run([*arguments, "0"]) != 0
    assert "--seconds" in capsys.readouterr().err


def _save(
    path: Path, nodes: list[onnx.NodeProto], inputs: list[onnx.ValueInfoProto], *weights: onnx.TensorProto
) -> Path:
    (result,) = nodes[-1].output
    graph = helper.make_graph(nodes, "net", inputs, [onnx.ValueInfoProto(name=result)], list(weights))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(onnx.shape_inference.infer_shapes(model), path)
    return path


def test_extents_may_stay_open_and_are_the_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights = numpy_helper.from_array(np.ones((8, 6, 3, 3), "float32"), "w")
    data = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 6, "h", 12])
    model = _save(tmp_path / "open.onnx", [helper.make_node("Conv", ["x", "w"], ["y"])], [data], weights)
    assert run(["embed", str(model), "--dynamic", "h=3..40", "--json"]) == 0
    (operator,) = json.loads(capsys.readouterr().out)["operators"]
    assert operator["chosen"] is None
    assert "expected a known number" in operator["reason"]


def test_the_reason_is_of_an_instruction_of_the_same_kind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Integers of 32 bits fit no instruction; that some instructions are of floats is not why."""
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT32, [4, 4]) for name in "ab"]
    model = _save(tmp_path / "wide.onnx", [helper.make_node("MatMul", ["a", "b"], ["y"])], inputs)
    assert run(["embed", str(model), "--target", '{"kind": "llvm", "mcpu": "sapphirerapids"}', "--json"]) == 0
    (operator,) = json.loads(capsys.readouterr().out)["operators"]
    assert "multiplies int32 and int32 into int32" in operator["reason"]
    assert "float" not in operator["reason"]


@pytest.mark.parametrize("target", ["tvm-ext/vta-1x16x16", "hexagon-v67", '{"kind": "llvm", "mcpu": "znver4"}'])
@pytest.mark.parametrize("dtype", [TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.INT64])
def test_what_is_not_quantised_gets_no_instruction_of_integers(
    target: str, dtype: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inputs = [
        helper.make_tensor_value_info("a", dtype, [16, 32]), helper.make_tensor_value_info("b", dtype, [32, 16])
    ]  # fmt: skip
    model = _save(tmp_path / "wide.onnx", [helper.make_node("MatMul", ["a", "b"], ["y"])], inputs)
    assert run(["embed", str(model), "--target", target, "--json"]) == 0
    (operator,) = json.loads(capsys.readouterr().out)["operators"]
    assert operator["chosen"] is None
    assert not any(choice["candidates"] for choice in operator["instructions"])
    kind = {TensorProto.DOUBLE: "float64", TensorProto.FLOAT16: "float16", TensorProto.INT64: "int64"}[dtype]
    assert kind in operator["reason"]
    assert all(kind in choice["reason"] for choice in operator["instructions"])
