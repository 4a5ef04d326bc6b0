"""What Hexagon refuses, and says so: nothing wrong is run silently."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from tvm import relax, te

import tvm_ext
from tests.hexagon.emulated import TARGET, needs_emulator
from tests.hexagon.fixed_point_reference import run_fixed_point
from tests.quantized.qdq_graphs import QdqGraph
from tvm_ext.backends.hexagon.packer import pack
from tvm_ext.backends.hexagon.toolchain import LLD, TOOLS, Found, compile_file, find
from tvm_ext.errors import CompileError, MemoryLimitError, MissingPackageError, OptionError

pytestmark = needs_emulator


@pytest.fixture(autouse=True)
def _little_effort(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tvm_ext.backends.hexagon.packer.choice.EFFORT", 10)


def float_model(operator: str, *shapes: tuple[int, ...], **attributes: object) -> onnx.ModelProto:
    """One node of floats."""
    names = [f"x{number}" for number in range(len(shapes))]
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in zip(names, shapes, strict=True)
    ]
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([helper.make_node(operator, names, ["y"], **attributes)], "float", inputs, [result])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def convolution() -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    graph = QdqGraph((1, 3, 9, 7))
    return graph.model(graph.quantized(graph.conv(graph.quantized("x"), 3, 5))), graph.input()


def test_a_processor_that_clang_does_not_know(tmp_path: Path) -> None:
    (tmp_path / "empty.c").write_text("")
    with pytest.raises(CompileError, match=r"clang.* does not know the processor hexagonv99; compile for an older one"):
        compile_file(tmp_path / "empty.c", tmp_path / "empty.o", "hexagonv99")


def test_it_is_noticed_before_kernels_are_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(processor: str) -> None:
        raise CompileError(f"clang-19 does not know the processor {processor}")

    monkeypatch.setattr("tvm_ext.backends.hexagon.model.program.compiled_runtime", unknown)
    monkeypatch.setattr("tvm_ext.backends.hexagon.model.program.packed_kernels", lambda *_: pytest.fail("packed"))
    with pytest.raises(CompileError, match="does not know the processor hexagonv67"):
        tvm_ext.compile(convolution()[0], TARGET)


def test_a_linker_that_is_missing_is_noticed_before_kernels_are_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    found = tuple(Found(tool) if tool is LLD else find(tool) for tool in TOOLS)
    monkeypatch.setattr("tvm_ext.backends.hexagon.toolchain.installed", lambda: found)
    monkeypatch.setattr("tvm_ext.backends.hexagon.model.program.packed_kernels", lambda *_: pytest.fail("packed"))
    with pytest.raises(MissingPackageError, match=r"lld .*: not found; install with: apt-get install lld-19"):
        tvm_ext.compile(convolution()[0], TARGET)


def test_float64_beyond_sums_and_products() -> None:
    model = float_model("Div", (3,), (3,))
    for item in model.graph.input:
        item.type.tensor_type.elem_type = TensorProto.DOUBLE
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.DOUBLE
    with pytest.raises(CompileError, match=r"call __hexagon_divdf3, .* make the model's tensors float32, or compile"):
        tvm_ext.compile(model, TARGET)


def test_a_model_beyond_the_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tvm_ext.backends.hexagon.model.program.packed_kernels", lambda *_: pytest.fail("packed"))
    with pytest.raises(
        CompileError, match=r"needs 7\.2 GiB and a Hexagon program has 3 GiB of addresses; make the input"
    ):
        tvm_ext.compile(float_model("Relu", (31, 1000, 31250)), TARGET)


def test_a_memory_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was taken, and nothing was made of it."""
    arena = tvm_ext.compile(convolution()[0], TARGET, memory_limit="1MB").executable.plan.arena
    tvm_ext.compile(convolution()[0], TARGET, memory_limit=arena)
    monkeypatch.setattr("tvm_ext.backends.hexagon.model.program.packed_kernels", lambda *_: pytest.fail("packed"))
    with pytest.raises(MemoryLimitError, match=r"limit .*: inputs, .* of the Hexagon program take .*; raise the limit"):
        tvm_ext.compile(convolution()[0], TARGET, memory_limit=arena - 1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"precision": "float16"}, "target hexagon give a model"),
        ({"cuda_graphs": True}, "not for target hexagon"),
        ({"emit": "c"}, "'c' cannot be made for target hexagon"),
    ],
)
def test_refused_options_name_the_target(options: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        tvm_ext.compile(convolution()[0], TARGET, **options)


def test_a_packet_that_the_assembler_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is kept and named, the kernel is packed anew without it, and the result is right."""
    judge, found = pack.refused_lines, []

    def stern(file: str, processor: str) -> list[int]:
        lines = file.split("\n")
        for number, line in enumerate(lines):
            if line == "\t{":
                packet = tuple(item.strip() for item in lines[number + 1 : lines.index("\t}", number)])
                if len(packet) == 4 and not found:
                    found.append(packet)
                if found and packet == found[0]:
                    return [number + 2]
        return judge(file, processor)

    monkeypatch.setattr(pack, "refused_lines", stern)
    model, inputs = convolution()
    compiled = tvm_ext.compile(model, TARGET)
    packets = compiled.metadata["decisions"]["hexagon"]["packets"]
    assert [tuple(item["packet"]) for item in packets["refused"]] == found
    assert packets["refused"][0]["kernel"] in {step.kernel for step in compiled.executable.plan.steps}
    for name, expected in run_fixed_point(model, inputs).items():
        np.testing.assert_array_equal(compiled.run(inputs)[name], expected)


def test_packets_that_are_always_refused_are_llvms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pack, "refused_lines", lambda *_: [0])
    model, inputs = convolution()
    compiled = tvm_ext.compile(model, TARGET)
    packets = compiled.metadata["decisions"]["hexagon"]["packets"]
    assert packets["ours"] == 0
    assert len(packets["kept"]) == packets["kernels"] > 0
    for name, expected in run_fixed_point(model, inputs).items():
        np.testing.assert_array_equal(compiled.run(inputs)[name], expected)


def test_a_tensor_of_more_elements_than_are_counted() -> None:
    graph = QdqGraph((1, 3, 33000, 33000))
    model = graph.model(graph.quantized(graph.node("Sigmoid", graph.quantized("x"))))
    with pytest.raises(CompileError, match=r"tensor 'x' has 3,267,000,000 elements .* at most 2,147,483,647; make the"):
        tvm_ext.compile(model, TARGET)


@pytest.mark.parametrize("count", [7, 33, 120])
def test_kernels_of_many_tensors(count: int) -> None:
    """Arguments are passed in registers, and more of them on the stack."""
    model = float_model("Concat", *[(1, number % 3 + 1) for number in range(count)], axis=1)
    inputs = {f"x{number}": np.full((1, number % 3 + 1), number, "float32") for number in range(count)}
    (found,) = tvm_ext.compile(model, TARGET).run(inputs).values()
    np.testing.assert_array_equal(found, np.concatenate(list(inputs.values()), axis=1))


@pytest.mark.parametrize(("operator", "expected"), [("Sum", 9730), ("Max", 139)])
def test_operators_of_more_tensors_than_a_kernel_takes(operator: str, expected: int) -> None:
    inputs = {f"x{number}": np.full((1, 1), number, "float32") for number in range(140)}
    (found,) = tvm_ext.compile(float_model(operator, *[(1, 1)] * 140), TARGET).run(inputs).values()
    assert found == expected


def test_a_kernel_of_too_many_tensors() -> None:
    """Operators are divided; a kernel that comes with the module is not."""
    builder = relax.BlockBuilder()
    tensors = [relax.Var(f"x{number}", relax.TensorType((1, 1), "float32")) for number in range(140)]

    def total(*values: te.Tensor) -> te.Tensor:
        return te.compute((1, 1), lambda row, column: sum(value[row, column] for value in values), name="total")

    with builder.function("main", tensors):
        with builder.dataflow():
            result = builder.emit_output(builder.call_te(total, *tensors))
        builder.emit_func_output(result)
    with pytest.raises(CompileError, match=r"reads and writes 141 tensors, .* at most 128; split the operator"):
        tvm_ext.compile(builder.get(), TARGET)


def test_workspaces_of_any_size() -> None:
    """TVM's kernels ask for memory while they run: a padded picture has 13 MB here."""
    shape = (1, 1, 1800, 1801)
    model = float_model("Conv", shape, (1, 1, 3, 1), pads=[1, 0, 1, 0])
    random = np.random.default_rng(0)
    data, weight = (random.standard_normal(size).astype("float32") for size in (shape, (1, 1, 3, 1)))
    (found,) = tvm_ext.compile(model, TARGET).run({"x0": data, "x1": weight}).values()
    padded = np.pad(data, [(0, 0), (0, 0), (1, 1), (0, 0)])
    expected = sum(padded[:, :, row : row + 1800] * weight[0, 0, row, 0] for row in range(3))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
