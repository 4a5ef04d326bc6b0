"""Kernels, reports and refusals name the nodes of the model that they are about."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
import tvm
from onnx import TensorProto, helper
from tvm import relax, tirx

import tvm_ext
from tests.commands import Commands
from tests.hexagon.emulated import TARGET, needs_emulator
from tests.hexagon.test_bad_input import float_model
from tests.hexagon.test_model import small
from tvm_ext.backends.hexagon.code import refuse_packed_calls
from tvm_ext.backends.hexagon.model.compiled import load_hexagon
from tvm_ext.backends.hexagon.model.profile import by_node, totals
from tvm_ext.errors import CompileError, TvmExtError

pytestmark = needs_emulator


@pytest.fixture(autouse=True)
def _little_effort(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tvm_ext.backends.hexagon.packer.choice.EFFORT", 10)


def test_every_call_knows_its_nodes(commands: Commands, tmp_path: Path) -> None:
    """All were said to come from the last node, and rows of the selection from none."""
    model, inputs = small()
    compiled = tvm_ext.compile(model, TARGET)
    _, layers = compiled.profile(inputs)
    rows = by_node(layers)
    operators = [[word.split()[0] for word in row["nodes"]] for row in rows]
    assert operators == [
        ["QuantizeLinear"], ["Conv", "Relu"], ["Conv"], ["Add", "Relu"], ["Conv"], ["MaxPool"], ["Conv"],
        ["GlobalAveragePool"], ["MatMul"], ["DequantizeLinear"],
    ]  # fmt: skip
    names = {f"{node.op_type} node {node.name!r}" for node in model.graph.node}
    assert all(word in names for layer in layers for word in layer.nodes)
    assert sum(row["packets"] for row in rows) == totals(layers)["packets"]
    chosen = compiled.metadata["decisions"]["layout"]
    assert [row["nodes"][0].split()[0] for row in chosen if row["operator"] == "add"] == ["Add"]
    folder = compiled.save(tmp_path / "model")
    assert load_hexagon(folder).executable.plan == compiled.executable.plan
    result = commands("hexagon", "profile", folder, "--nodes")
    assert (result.code, result.stderr) == (0, "")
    (row,) = (line for line in result.stdout.splitlines() if "MaxPool node" in line)
    assert row.endswith(rows[5]["nodes"][0])


def test_what_runs_on_the_scalar_core_is_reported_with_its_nodes(commands: Commands, tmp_path: Path) -> None:
    onnx.save(named(float_model("Softmax", (3, 7)), "ending"), tmp_path / "model.onnx")
    result = commands("compile", tmp_path / "model.onnx", "--target", "hexagon-v67", "-o", tmp_path / "out")
    assert (result.code, result.stderr) == (0, "")
    assert "1 on the scalar core: softmax (Softmax node 'ending')" in result.stdout


def named(model: onnx.ModelProto, name: str) -> onnx.ModelProto:
    model.graph.node[0].name = name
    return model


def quotient() -> onnx.ModelProto:
    model = named(float_model("Div", (3,), (3,)), "quotient")
    for item in (*model.graph.input, *model.graph.output):
        item.type.tensor_type.elem_type = TensorProto.DOUBLE
    return model


def many_tensors(count: int) -> tvm.IRModule:
    """One kernel of one's own: those that are fused are divided before."""
    buffers = [tirx.decl_buffer((1,), "float32", f"x{number}") for number in range(count)]
    total = sum((tirx.BufferLoad(buffer, [0]) for buffer in buffers[:-1]), tirx.const(0, "float32"))
    kernel = tirx.PrimFunc(buffers, tirx.BufferStore(buffers[-1], total, [0])).with_attr("tirx.is_scheduled", True)
    builder = relax.BlockBuilder()
    kind = relax.TensorType([1], "float32")
    values = [relax.Var(f"x{number}", kind) for number in range(count - 1)]
    with builder.function("main", values):
        called = builder.add_func(kernel, "many")
        builder.emit_func_output(builder.emit(relax.call_tir(called, values, kind)))
    return builder.get()


def branch() -> onnx.ModelProto:
    number, node = helper.make_tensor_value_info, helper.make_node
    branches = [
        helper.make_graph([node(operator, ["x"], [name])], name, [], [number(name, TensorProto.FLOAT, [3])])
        for operator, name in (("Relu", "yes"), ("Neg", "no"))
    ]
    nodes = [node("If", ["c"], ["y"], "which", then_branch=branches[0], else_branch=branches[1])]
    inputs = [number("x", TensorProto.FLOAT, [3]), number("c", TensorProto.BOOL, [])]
    graph = helper.make_graph(nodes, "if", inputs, [number("y", TensorProto.FLOAT, [3])])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (quotient(), r"divide \(Div node 'quotient'\)\) call __hexagon_divdf3"),
        (branch(), r"more than that: branches \(If node 'which'\); compile it for another target"),
        (many_tensors(141), r"kernel many.* reads and writes 141 tensors"),
        (float_model("Relu", (3, 33000, 33000)), r"tensor \S+ has 3,267,000,000 elements"),
    ],
    ids=["missing function", "branch", "many tensors", "large tensor"],
)
def test_refusals_name_the_node(model: onnx.ModelProto | tvm.IRModule, words: str) -> None:
    with pytest.raises(TvmExtError, match=words):
        tvm_ext.compile(model, TARGET)


def test_calls_of_a_runtime_are_refused_with_their_node() -> None:
    body = tirx.Evaluate(tirx.call_packed("my.sort"))
    mod = tvm.IRModule({"sort": tirx.PrimFunc([], body)})
    with pytest.raises(CompileError, match=r"kernel sort \(TopK node 'best'\) calls my\.sort of TVM's runtime"):
        refuse_packed_calls(mod, {"sort": ["TopK node 'best'"]})


@pytest.mark.parametrize("target", ["cuda", "nvidia/h100", "nonsense", "native"])
def test_a_profile_for_another_target(target: str, commands: Commands, tmp_path: Path) -> None:
    onnx.save(small()[0], tmp_path / "model.onnx")
    profile = commands("hexagon", "profile", tmp_path / "model.onnx", "--target", target)
    profile.error(6, f"target '{target}' is not a Hexagon processor; give one such as hexagon-v67")
    misspelt = commands("hexagon", "profile", tmp_path / "model.onnx", "--target", "hexagon-v670")
    misspelt.error(6, "did you mean hexagon-v")
