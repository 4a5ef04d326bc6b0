"""Whole quantised models: bit-exact against integers in numpy, and what is said of those that do not fit."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import tvm
from tvm.tirx import PrimFunc

import tvm_ext
from tests.commands import Commands
from tests.hexagon.emulated import TARGET, needs_emulator
from tests.hexagon.fixed_point_reference import run_fixed_point
from tests.quantized.qdq_graphs import QdqGraph
from tvm_ext.backends.hexagon.backend import HEXAGON
from tvm_ext.backends.hexagon.model.compiled import HexagonModel, load_hexagon
from tvm_ext.backends.hexagon.model.integers import hvx_kernels
from tvm_ext.backends.hexagon.model.profile import by_kernel, totals
from tvm_ext.errors import InputError, ModelError, TargetError, UnsupportedOperatorError
from tvm_ext.frontend import import_model
from tvm_ext.options import PipelineOptions
from tvm_ext.schedules.hexagon.panels import LAYOUTS, Panels

Build = Callable[[QdqGraph], onnx.ModelProto]


@pytest.fixture(autouse=True)
def _little_effort(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tvm_ext.backends.hexagon.packer.choice.EFFORT", 10)


def small(activations: str = "uint8") -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A convolution, a residual, a depthwise convolution, a maximum, an average and a product."""
    graph = QdqGraph((1, 3, 13, 11), activations)
    stem = graph.quantized(graph.node("Relu", graph.conv(graph.quantized("x"), 3, 8, strides=[2, 2])))
    branch = graph.quantized(graph.conv(stem, 8, 8))
    joined = graph.quantized(graph.node("Relu", graph.node("Add", branch, stem)))
    narrow = graph.quantized(graph.conv(joined, 8, 8, group=8, per_channel=False))
    # Maxima keep the steps of their operand.
    pooled = graph.node("MaxPool", narrow, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    mean = graph.quantized(graph.node("GlobalAveragePool", graph.quantized(graph.conv(pooled, 8, 21, 1, bias=False))))
    flat = graph.node("Flatten", mean)
    result = graph.quantized(graph.node("MatMul", flat, graph.weight((21, 5), 1)))
    return graph.model(result), graph.input()


def assert_exact(model: onnx.ModelProto, inputs: dict[str, np.ndarray], scalar: int | None = None) -> HexagonModel:
    """Compile and run a model; ``scalar`` is how many of its kernels run on the scalar core."""
    compiled = tvm_ext.compile(model, TARGET)
    assert isinstance(compiled, HexagonModel)
    outputs, layers = compiled.profile(inputs)
    for name, expected in run_fixed_point(model, inputs).items():
        np.testing.assert_array_equal(outputs[name], expected)
        assert np.unique(expected).size > 1
    if scalar is not None:
        assert sum(layer.unit == "scalar" for layer in layers) == scalar, [layer.kernel for layer in layers]
    return compiled


@needs_emulator
@pytest.mark.parametrize("activations", ["uint8", "int8"])
def test_small_model(activations: str) -> None:
    # On the scalar core: the result is dequantised.
    model, inputs = small(activations)
    assert_exact(model, inputs, scalar=1 if activations == "uint8" else None)


@needs_emulator
def test_functions_of_one_tensor_are_looked_up() -> None:
    graph = QdqGraph((1, 5, 7, 6))
    data = graph.quantized("x")
    gate = graph.node("HardSigmoid", data, alpha=1 / 6, beta=0.5)
    swish = graph.quantized(graph.node("Mul", data, gate))
    shifted = graph.quantized(graph.node("Add", swish, graph.constant(np.float32(0.3))))
    assert_exact(graph.model(graph.quantized(graph.node("Relu", shifted))), graph.input(), scalar=1)


@needs_emulator
def test_functions_in_several_steps_are_one() -> None:
    """The hard swish as quantisation tools leave it, each step quantised, and a maximum over floats."""
    graph = QdqGraph((1, 6, 9, 8))
    data = graph.quantized("x")
    bounded = graph.quantized(graph.node("Add", data, graph.constant(np.float32(3))), 6 / 255, 0)
    product = graph.quantized(graph.node("Mul", data, bounded))
    swish = graph.node("Div", product, graph.constant(np.float32(6)))
    pooled = graph.quantized(graph.node("MaxPool", swish, kernel_shape=[2, 2], strides=[2, 2]))
    compiled = assert_exact(graph.model(pooled), graph.input(), scalar=1)
    names = [step.kernel.rstrip("0123456789") for step in compiled.executable.plan.steps if step.is_vector]
    wanted = ["hvx_quantize", "hvx_from_planes", "hvx_look_up", "hvx_gather", "hvx_maximum", "hvx_to_planes"]
    # The maximum may be cheaper in another layout than the look-up.
    assert [name for name in names if name != "hvx_relayout"] == wanted


@needs_emulator
@pytest.mark.parametrize("activations", ["uint8", "int8"])
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.instruction)
def test_products_of_two_tensors(activations: str, layout: Panels, monkeypatch: pytest.MonkeyPatch) -> None:
    """A picture times one number a channel, and times another picture, bounded."""
    monkeypatch.setattr("tvm_ext.backends.hexagon.backend.hvx_kernels", lambda: hvx_kernels(layout))
    graph = QdqGraph((1, 7, 5, 9), activations)
    data = graph.quantized("x")
    gate = graph.quantized(graph.node("GlobalAveragePool", data))
    scaled = graph.quantized(graph.node("Mul", gate, data))
    other = graph.quantized(graph.conv(data, 7, 7))
    both = graph.quantized(graph.node("Relu", graph.node("Mul", scaled, other)))
    assert_exact(graph.model(both), graph.input(), scalar=1 if activations == "uint8" else None)


@needs_emulator
def test_what_hvx_lacks_runs_on_the_scalar_core() -> None:
    """A convolution in two groups, several images."""
    graph = QdqGraph((1, 8, 5, 5))
    data = graph.quantized("x")
    compiled = assert_exact(graph.model(graph.quantized(graph.conv(data, 8, 8, 3, group=2))), graph.input())
    assert len(compiled.metadata["decisions"]["hexagon"]["scalar"]) > 1

    batch = QdqGraph((2, 3, 6, 6))
    model = batch.model(batch.quantized(batch.conv(batch.quantized("x"), 3, 4)))
    compiled = tvm_ext.compile(model, TARGET)
    kernels = [step.kernel for step in compiled.executable.plan.steps if step.is_vector]
    assert kernels == ["hvx_quantize"]


@needs_emulator
@pytest.mark.parametrize("mode", ["reflect", "edge"])
def test_images_that_go_on_beyond_their_borders(mode: str) -> None:
    """Only numbers around an image are part of a convolution."""
    graph = QdqGraph((1, 8, 5, 6))
    data = graph.quantized("x")
    wide = graph.node("Pad", data, graph.constant(np.array([0, 0, 1, 2, 0, 0, 1, 0])), mode=mode)
    graph.scales[wide] = graph.scales[data]
    model = graph.model(graph.quantized(graph.conv(wide, 8, 8, 3, pads=[0, 0, 0, 0])))
    assert_exact(model, graph.input())


@needs_emulator
@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (1, 1, 3, 1), (1, 33, 1, 17), (1, 2, 31, 7)])
def test_ragged_extents(shape: tuple[int, ...]) -> None:
    graph = QdqGraph(shape)
    first = graph.quantized(graph.conv(graph.quantized("x"), shape[1], 7))
    second = graph.quantized(graph.conv(first, 7, 7, group=7, dilations=[2, 2], pads=[2, 2, 2, 2]))
    assert_exact(graph.model(graph.quantized(graph.conv(second, 7, 9, 1))), graph.input(), scalar=1)


@needs_emulator
def test_a_model_of_floats_runs_on_the_scalar_core(mlp_path: Path) -> None:
    compiled = tvm_ext.compile(mlp_path, TARGET)
    data = np.random.default_rng(0).standard_normal((4, 32)).astype("float32")
    expected = tvm_ext.compile(mlp_path).run({"x": data})["y"]
    np.testing.assert_allclose(compiled.run({"x": data})["y"], expected, rtol=1e-4, atol=1e-5)


@needs_emulator
def test_saved_and_loaded(tmp_path: Path) -> None:
    model, inputs = small()
    compiled = tvm_ext.compile(model, TARGET)
    folder = compiled.save(tmp_path / "model")
    loaded = load_hexagon(folder)
    assert loaded.executable == compiled.executable
    for name, value in compiled.run(inputs).items():
        np.testing.assert_array_equal(loaded.run(inputs)[name], value)
    with pytest.raises(TargetError, match=r"run --emulate`, or load it with tvm_ext\.[\w.]+\.load_hexagon\(folder\)"):
        tvm_ext.load(folder)
    metadata = (folder / "metadata.json").read_text()
    for side, field, value in (
        ("inputs", "dtype", "int32"),
        ("outputs", "shape", [2, 5]),
        ("outputs", "shape", ["x", 5]),
    ):
        edited = json.loads(metadata)
        edited[side][0][field] = value
        (folder / "metadata.json").write_text(json.dumps(edited))
        with pytest.raises(ModelError, match=r"is damaged, inputs and outputs are not those of model\.so"):
            load_hexagon(folder)
    (folder / "metadata.json").write_text(metadata)
    content = bytearray((folder / "model.so").read_bytes())
    content[len(content) // 2] ^= 1
    (folder / "model.so").write_bytes(bytes(content))
    for load in (load_hexagon, tvm_ext.load):
        with pytest.raises(ModelError, match="is damaged"):
            load(str(folder))


@needs_emulator
def test_profile_adds_up() -> None:
    model, inputs = small()
    _, layers = tvm_ext.compile(model, TARGET).profile(inputs)
    total, rows = totals(layers), by_kernel(layers)
    assert total["packets"] == sum(row["packets"] for row in rows) == sum(layer.counts.packets for layer in layers)
    assert sum(row["calls"] for row in rows) == len(layers)
    assert sum(row["share"] for row in rows) == pytest.approx(1)
    assert 0 < total["filled"] <= 1
    assert 0 < total["vector_share"] < 1
    assert rows == sorted(rows, key=lambda row: -row["packets"])


@needs_emulator
def test_inputs_that_do_not_fit() -> None:
    model, inputs = small()
    compiled = tvm_ext.compile(model, TARGET)
    with pytest.raises(InputError):
        compiled.run({"x": inputs["x"][:, :2]})


@needs_emulator
def test_open_extents_are_refused() -> None:
    graph = QdqGraph((1, 3, 6, 6))
    model = graph.model(graph.quantized(graph.conv(graph.quantized("x"), 3, 4)))
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    del model.graph.value_info[:]
    with pytest.raises(UnsupportedOperatorError, match="extents are open: x; fix them with --input-shape"):
        tvm_ext.compile(model, TARGET, input_shapes={"x": ["n", 3, 6, 6]})


@needs_emulator
def test_cycles_of_a_model_without_kernels(commands: Commands, tmp_path: Path) -> None:
    values = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 3]) for name in ("x", "y")]
    graph = onnx.helper.make_graph([onnx.helper.make_node("Identity", ["x"], ["y"])], "same", values[:1], values[1:])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "same.onnx")
    result = commands("hexagon", "profile", tmp_path / "same.onnx", "--cycles")
    assert (result.code, result.stderr) == (0, "")
    assert "0 packets in 0 calls" in result.stdout


@needs_emulator
def test_branches_are_refused() -> None:
    """TVM's name for a branch that became a function was given, and extents were to be fixed."""
    number = onnx.helper.make_tensor_value_info
    kind, node = onnx.TensorProto.FLOAT, onnx.helper.make_node
    branches = [
        onnx.helper.make_graph([node(operator, ["x"], [name])], name, [], [number(name, kind, [3])])
        for operator, name in (("Relu", "yes"), ("Neg", "no"))
    ]
    graph = onnx.helper.make_graph(
        [node("If", ["c"], ["y"], then_branch=branches[0], else_branch=branches[1])], "if",
        [number("x", kind, [3]), number("c", onnx.TensorProto.BOOL, [])], [number("y", kind, [3])],
    )  # fmt: skip
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    with pytest.raises(UnsupportedOperatorError, match=r"needs more than that: branches \(If node .*\); compile it"):
        tvm_ext.compile(model, TARGET)


@needs_emulator
def test_command_line(commands: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = small()
    onnx.save(model, tmp_path / "model.onnx")
    np.save(tmp_path / "x.npy", inputs["x"])
    folder = tmp_path / "out"
    result = commands("compile", tmp_path / "model.onnx", "--target", "hexagon-v67", "-o", folder)
    assert (result.code, result.stderr) == (0, "")
    assert "1 on the scalar core" in result.stdout
    commands("run", folder).error(6, "does not run on this machine; run it with `tvm-ext run --emulate`")
    result = commands("run", folder, "--emulate", "--input", tmp_path / "x.npy", "-o", tmp_path / "y.npz")
    assert (result.code, result.stderr) == (0, "")
    (expected,) = run_fixed_point(model, inputs).values()
    (found,) = np.load(tmp_path / "y.npz").values()
    np.testing.assert_array_equal(found, expected)
    result = commands("hexagon", "profile", folder, "--input", tmp_path / "x.npy", "--picture", tmp_path / "p.png")
    assert (result.code, result.stderr) == (0, "")
    assert "hvx_vrmpy_product" in result.stdout
    assert "p.png: packets of every call, drawn" in result.stdout
    assert (tmp_path / "p.png").read_bytes()[:4] == b"\x89PNG"
    commands("hexagon", "profile", folder, "--picture", tmp_path / "p.txt").error(2, "must end in .png or .svg")
    commands("hexagon", "profile", tmp_path / "model.onnx", "--target", "native").error(6, "is not a Hexagon processor")
    np.save(tmp_path / "wrong.npy", inputs["x"][..., :1])
    with monkeypatch.context() as patched:  # before the model is compiled
        patched.setattr("tvm_ext.compiler.compile", lambda *_, **__: pytest.fail("compiled"))
        result = commands("hexagon", "profile", tmp_path / "model.onnx", "--input", tmp_path / "wrong.npy")
        result.error(5, "input x: ")
    profile = commands("hexagon", "profile", folder, "--target", "hexagon-v68")
    profile.error(6, "is compiled already; leave the option out, or give the model's file")
    commands("hexagon", "profile", folder, "--input-shape", "x:1").error(2, "--input-shape: ", "is compiled already")
    commands("run", tmp_path, "--emulate").error(3, "is not an artifact (it has no metadata.json)")
    commands("run", tmp_path / "gone", "--emulate").error(3, "gone is not a folder")


@needs_emulator
def test_cycles_of_a_model() -> None:
    """Following the packets changes nothing that is counted; every call takes a cycle a packet at least."""
    model, inputs = small()
    compiled = tvm_ext.compile(model, TARGET)
    outputs, plain = compiled.profile(inputs)
    traced_outputs, traced = compiled.profile(inputs, cycles=True)
    for name, value in outputs.items():
        np.testing.assert_array_equal(traced_outputs[name], value)
    assert [layer.kernel for layer in traced] == [layer.kernel for layer in plain]
    assert all(layer.cycles is not None and layer.cycles >= 0.95 * layer.counts.packets for layer in traced)
    assert totals(plain)["cycles"] is None
    assert totals(traced)["cycles"] == sum(row["cycles"] for row in by_kernel(traced))


def _steps_off(model: onnx.ModelProto, inputs: dict[str, np.ndarray], step: float) -> tuple[HexagonModel, np.ndarray]:
    """Compile a model, and say how many steps its result is from onnxruntime's."""
    onnxruntime = pytest.importorskip("onnxruntime")
    (expected,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, inputs)
    compiled = tvm_ext.compile(model, TARGET)
    assert isinstance(compiled, HexagonModel)
    (found,) = compiled.run(inputs).values()
    assert np.unique(expected).size > 20
    return compiled, np.abs(np.rint((found - expected) / step))


@needs_emulator
@pytest.mark.parametrize(("group", "step"), [(1, 0.02), (6, 0.02), (1, 0.001)])
def test_biases_of_floats(group: int, step: float) -> None:
    """Exporters leave biases unquantised; such convolutions ran on the scalar core, as they do where steps are fine."""
    graph = QdqGraph((1, 6, 9, 7))
    data, weight = graph.quantized("x", 0.02, 120), graph.weight((6, 6 // group, 3, 3))
    bias = graph.constant(graph.rng.standard_normal(6).astype("float32") / 3)
    total = graph.node("Relu", graph.node("Conv", data, weight, bias, group=group, pads=[1, 1, 1, 1]))
    model, inputs = graph.model(graph.quantized(total, step, 3)), graph.input()
    compiled, off = _steps_off(model, inputs, step)
    assert off.max() <= 1
    assert off.mean() < 0.01
    kernels = compiled.metadata["decisions"]["hexagon"]["scalar"]
    assert any("conv2d" in name for name in kernels) == (step < 0.01)


@needs_emulator
def test_loops_beyond_the_reach_of_their_instruction() -> None:
    """A convolution and a function of floats are one kernel, whose loops are long; it did not end once."""
    graph = QdqGraph((1, 6, 17, 19))
    total = graph.conv(graph.quantized("x", 0.03, 120), 6, 10, per_channel=False, pads=[0, 0, 0, 0])
    gated = graph.node("Mul", total, graph.node("Sigmoid", total))
    model, inputs = graph.model(graph.quantized(gated, 0.02, 30)), graph.input()
    compiled, off = _steps_off(model, inputs, 0.02)
    assert "loop1(##.L" in compiled.executable.text
    assert off.max() <= 1


def test_what_depends_on_no_input_is_folded() -> None:
    """A quantised constant, and what is convolved of it: this machine, which folds them, has no HVX."""
    graph = QdqGraph((1, 5, 3, 7))
    fixed = graph.quantized(graph.node("Neg", graph.weight((1, 5, 3, 7), per_channel=False)), 0.01, 128)
    convolved = graph.quantized(graph.conv(fixed, 5, 5), 0.02, 128)
    total = graph.quantized(graph.node("Add", graph.quantized("x"), convolved), 0.05, 128)
    mod = import_model(graph.model(total)).mod
    with TARGET:
        mod = tvm.transform.Sequential(HEXAGON.passes("canonicalize", TARGET, PipelineOptions()))(mod)
    kernels = [var.name_hint.rstrip("0123456789") for var, func in mod.functions_items() if isinstance(func, PrimFunc)]
    assert kernels == ["hvx_quantize"] * 2
