"""Whole models: what runs on VTA is exact, what is compiled is what was simulated, and accuracy is kept."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tvm
from onnx import TensorProto, helper, numpy_helper
from tvm import relax

from tests.frontend.onnx.text import graph as onnx_graph
from tests.vta.integer_reference import run_network
from tvm_ext.backends.vta.config import load_config
from tvm_ext.backends.vta.model.forms import from_form, to_form
from tvm_ext.backends.vta.model.offload import offload, prepare
from tvm_ext.backends.vta.model.relax_layers import read_graph
from tvm_ext.backends.vta.model.vta_model import VTAModel
from tvm_ext.backends.vta.timing.costs import costs_named
from tvm_ext.compiler import compile
from tvm_ext.errors import InputError, OptionError
from tvm_ext.frontend import import_model

COSTS = costs_named("chisel")
TARGET = "tvm-ext/vta-1x16x16"


class Emitter:
    """Writes a function of convolutions and more, with random weights."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.builder = relax.BlockBuilder()

    def constant(self, *shape: int) -> relax.Expr:
        values = self.rng.standard_normal(shape) / np.sqrt(max(1, np.prod(shape[1:])))
        return relax.const(values.astype(np.float32))

    def conv(self, data: Any, channels: int, kernel: int = 3, stride: int = 1, groups: int = 1) -> Any:
        inputs = int(data.ty.shape[1]) // groups
        padding = kernel // 2
        call = relax.op.nn.conv2d(
            data, self.constant(channels, inputs, kernel, kernel), strides=stride, padding=padding, groups=groups
        )
        return self.emit(relax.op.add(self.emit(call), self.constant(1, channels, 1, 1)))

    def emit(self, expr: relax.Expr) -> relax.Var:
        return self.builder.emit(expr)

    def relu(self, data: Any) -> Any:
        return self.emit(relax.op.nn.relu(data))

    def module(self, shape: tuple[int, ...], body: Callable[[Emitter, Any], Any]) -> tvm.IRModule:
        x = relax.Var("x", relax.TensorType(shape, "float32"))
        with self.builder.function("main", [x]):
            with self.builder.dataflow():
                result = body(self, x)
                output = self.builder.emit_output(relax.Tuple(result) if isinstance(result, list) else result)
            self.builder.emit_func_output(output)
        return self.builder.get()


def residual_block(e: Emitter, x: Any) -> Any:
    """Two convolutions; their sum with the first one's input; another branch with a stride, added as well."""
    stem = e.relu(e.conv(x, 24))
    inner = e.relu(e.conv(stem, 24))
    first = e.relu(e.emit(relax.op.add(e.conv(inner, 24), stem)))
    main = e.conv(e.relu(e.conv(first, 40, stride=2)), 40)
    return e.relu(e.emit(relax.op.add(main, e.conv(first, 40, 1, 2))))


def pooled(e: Emitter, x: Any) -> Any:
    """Pooling, a grouped and a depthwise convolution, a sum of two tensors, an average, and a classifier."""
    first = e.relu(e.conv(x, 32))
    pool = e.emit(relax.op.nn.max_pool2d(first, (3, 3), (2, 2), (1, 1, 1, 1)))
    depthwise = e.emit(relax.op.clip(e.conv(pool, 32, groups=32), 0, 6))
    grouped = e.conv(pool, 32, groups=4)
    total = e.relu(e.emit(relax.op.add(depthwise, grouped)))
    mean = e.emit(relax.op.mean(total, [2, 3], keepdims=True))
    flat = e.emit(relax.op.reshape(mean, (int(x.ty.shape[0]), 32)))
    return e.emit(relax.op.add(e.emit(relax.op.matmul(flat, e.constant(32, 10))), e.constant(10)))


def decoder(e: Emitter, x: Any) -> Any:
    """Transposed convolutions, one of them in groups, windows that are no squares, an average over parts."""
    first = e.relu(e.emit(relax.op.nn.conv2d_transpose(x, e.constant(16, 20, 4, 4), strides=2, padding=1)))
    flat = e.emit(relax.op.nn.conv2d(first, e.constant(20, 20, 1, 5), padding=(0, 2, 0, 2)))
    tall = e.relu(e.emit(relax.op.nn.conv2d(flat, e.constant(16, 20, 3, 1), strides=(2, 1), padding=(1, 0, 1, 0))))
    grouped = e.emit(
        relax.op.nn.conv2d_transpose(
            tall, e.constant(16, 4, 3, 3), strides=2, padding=1, output_padding=(1, 1), groups=4
        )
    )
    return e.emit(relax.op.nn.avg_pool2d(e.relu(grouped), (2, 4), (2, 4)))


def two_regions(e: Emitter, x: Any) -> Any:
    """A sigmoid between convolutions, which VTA cannot run, beside a path without it; two results."""
    first = e.relu(e.conv(x, 16))
    gate = e.emit(relax.op.sigmoid(e.conv(first, 16)))
    beside = e.relu(e.conv(first, 16))
    gated = e.emit(relax.op.multiply(gate, beside))
    return [e.relu(e.conv(gated, 16)), e.conv(beside, 16)]


def perceptron(e: Emitter, x: Any) -> Any:
    """Products of matrices, more rows than a batch."""
    first = e.relu(e.emit(relax.op.add(e.emit(relax.op.matmul(x, e.constant(24, 40))), e.constant(40))))
    return e.emit(relax.op.matmul(first, e.constant(40, 20)))


def scaled(e: Emitter, x: Any) -> Any:
    """Factors and biases of channels before convolutions, as in DenseNet, one factor negative."""
    factors = np.linspace(-0.5, 2, 24, dtype=np.float32).reshape(24, 1, 1)
    data = e.relu(e.conv(x, 24))
    for _ in range(2):
        normed = e.emit(relax.op.add(e.emit(relax.op.multiply(data, relax.const(factors))), e.constant(24, 1, 1)))
        data = e.conv(e.relu(normed), 24)
    return data


MODELS = {
    "residual": ((1, 3, 6, 6), residual_block),
    "pooled": ((1, 3, 8, 8), pooled),
    "decoder": ((1, 16, 3, 4), decoder),
    "regions": ((1, 8, 6, 6), two_regions),
    "perceptron": ((5, 24), perceptron),
    "batch": ((3, 3, 8, 8), pooled),
    "scaled": ((1, 3, 6, 6), scaled),
}


def forced_offload(mod: tvm.IRModule, config: str, samples: np.ndarray) -> VTAModel:
    """Everything on VTA that can run there, whatever is faster."""
    chosen = load_config(config)
    layers = read_graph(prepare(mod)[0]["main"], chosen.batch).layers
    return offload(mod, chosen, COSTS, {"x": samples}, forced={layer.name: "vta" for layer in layers})


def run(mod: tvm.IRModule, inputs: np.ndarray) -> list[np.ndarray]:
    with tvm.target.Target("llvm"):
        executable = tvm.compile(mod, tvm.target.Target("llvm"), relax_pipeline="tvm_ext")
    result = relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(inputs))
    return [result.numpy()] if hasattr(result, "numpy") else [value.numpy() for value in result]


def references(model: VTAModel, tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Integers of all layers, from the floats of what comes from the CPU."""
    given = {
        name: to_form(model.network.integers(name, tensors[name]), region.shapes[name])
        for region in model.regions
        for name in region.inputs
        if name in tensors
    }
    return run_network(model.network, given)


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("perceptron", "sim"),
        ("pooled", "sim"),
        *(
            pytest.param(name, config, marks=pytest.mark.slow)
            for name, config in [
                ("regions", "sim"),
                ("decoder", "sim"),
                ("residual", "sim"),
                ("scaled", "sim"),
                ("batch", "sim"),
                *((name, "sim_2x16") for name in MODELS),
                *((name, "sim_4x8") for name in MODELS),
            ]
        ),
    ],
)
def test_models(name: str, config: str) -> None:
    """Layers on the simulator are those of numpy to the bit, and near the floats; so is the compiled module."""
    shape, body = MODELS[name]
    mod = Emitter().module(shape, body)
    samples = np.random.default_rng(1).standard_normal((4, *shape)).astype(np.float32)
    model = forced_offload(mod, config, samples)
    apart = name == "regions" or (name == "batch" and shape[0] > load_config(config).batch)  # rows are reshaped there
    assert len(model.regions) == (2 if apart else 1)
    assert not model.graph.refused
    outputs, tensors = model.observed.run({"x": samples[0]})
    found = model.run_regions(tensors)
    expected = references(model, tensors)
    for tensor, integers in found.items():
        np.testing.assert_array_equal(integers, expected[tensor], err_msg=tensor)
    compiled = run(model.mod, samples[0])
    for at, (value, floats) in enumerate(zip(compiled, outputs, strict=True)):
        assert value.shape == floats.shape
        noise = np.square(value - floats).mean() / np.square(floats).mean()
        assert noise < 0.02, (at, noise)
    last = model.graph.outputs[-1]
    if len(model.regions) == 1:  # the second one's inputs have other errors where they come from floats
        values = model.network.floats(last, from_form(expected[last], compiled[-1].shape))
        np.testing.assert_allclose(compiled[-1], values, rtol=1e-6)
    report = model.accuracy([{"x": sample} for sample in samples[:1]], [compiled])
    assert len(report.layers) == len(model.network.layers)
    assert all(row.signal_to_noise > 12 for row in report.layers), str(report)
    assert "same answer" in str(report)


def test_the_border_is_crossed_once() -> None:
    """Nothing between the layers of a region is packed, unpacked, or turned into floats."""
    shape, body = MODELS["residual"]
    model = forced_offload(Emitter().module(shape, body), "sim", np.ones(shape, np.float32))
    calls = []
    relax.analysis.post_order_visit(
        model.mod["main"].body, lambda node: calls.append(node) if isinstance(node, relax.Call) else None
    )
    names = [getattr(call.op, "name", "region") for call in calls]
    assert names.count("region") == 1
    assert names.count("relax.astype") == 2
    assert "relax.nn.conv2d" not in names


def test_kernels_and_loops_of_the_model_stay() -> None:
    """What an importer writes as kernels and as functions of its own is there in both modules that are made of it."""
    weights = np.random.default_rng(0).standard_normal((2, 16, 16, 3, 3)).astype(np.float32) / 12
    text = """g (float[1,16,5,6] x) => (float[1,16,h,w] y) {
        a = Conv<pads=[1,1,1,1]>(x, w0)
        pads = Constant<value=int64[8]{0,0,1,2,0,0,2,1}>()
        p = Pad<mode="reflect">(a, pads)
        s = Scan<num_scan_inputs=1, scan_input_axes=[2], scan_output_axes=[2],
                 body=row (float[1,16,9] r) => (float[1,16,9] t) { t = Sin(r) }>(p)
        y = Conv(s, w1) }"""
    model = onnx_graph(text, w0=weights[0], w1=weights[1])
    samples = np.random.default_rng(1).standard_normal((2, 1, 16, 5, 6)).astype(np.float32)
    offloaded = forced_offload(import_model(model).mod, "sim", samples)
    assert len(offloaded.regions) == 2
    assert len(offloaded.floats.functions) > 1
    (expected,), (found,) = offloaded.observed.run({"x": samples[0]})[0], run(offloaded.mod, samples[0])
    np.testing.assert_allclose(expected, compile(model).run({"x": samples[0]})["y"], rtol=1e-4, atol=1e-5)
    assert np.square(found - expected).mean() < 0.01 * np.square(expected).mean()


def save_onnx(path: Path, batch: int | str = 1, dtype: int = TensorProto.FLOAT, operator: str = "Conv") -> Path:
    x = helper.make_tensor_value_info("image", dtype, [batch, 16, 24, 24])
    y = helper.make_tensor_value_info("y", dtype, [batch, 16, 24, 24])
    element = helper.tensor_dtype_to_np_dtype(dtype)
    values = np.random.default_rng(0).standard_normal((16, 16, 3, 3)).astype(element)
    weights = numpy_helper.from_array(values / 12, "w")
    node = helper.make_node("Conv", ["image", "w"], ["y"], pads=[1, 1, 1, 1])
    if operator != "Conv":
        node = helper.make_node(operator, ["image"], ["y"])
    graph = helper.make_graph([node], "g", [x], [y], [weights] if operator == "Conv" else [])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


def test_artifact_runs_without_this_package(tmp_path: Path) -> None:
    """The library and TVM are enough, in a process of its own; the results are those of the model in floats, nearly."""
    samples = np.random.default_rng(0).standard_normal((3, 16, 24, 24)).astype(np.float32)
    compiled = compile(save_onnx(tmp_path / "m.onnx"), TARGET, calibration={"image": samples})
    decided = compiled.metadata["decisions"]["vta"]
    assert decided["regions"] == [["gv"]]
    assert decided["layers"][0]["device"] == "vta"
    compiled.save(tmp_path / "out")
    np.save(tmp_path / "x.npy", samples[:1])
    script = (
        "import sys, numpy, tvm\n"
        "from tvm import relax\n"
        f"m = relax.VirtualMachine(tvm.runtime.load_module({str(tmp_path / 'out' / 'model.so')!r}), tvm.cpu())\n"
        f"y = m['main'](tvm.runtime.tensor(numpy.load({str(tmp_path / 'x.npy')!r}))).numpy()\n"
        f"numpy.save({str(tmp_path / 'y.npy')!r}, y)\n"
        "assert not any(name.startswith('tvm_ext.backends.vta') for name in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120, env=None)
    found = np.load(tmp_path / "y.npy")
    np.testing.assert_array_equal(found, compiled.run({"image": samples[:1]})["y"])
    floats = compile(tmp_path / "m.onnx").run({"image": samples[:1]})["y"]
    assert np.square(found - floats).mean() < 1e-3 * np.square(floats).mean()


def test_nothing_for_vta_compiles_for_the_cpu(tmp_path: Path) -> None:
    path = save_onnx(tmp_path / "m.onnx", operator="Sigmoid")
    compiled = compile(path, TARGET)
    assert any("nothing in this model runs on VTA" in note for note in compiled.metadata["decisions"]["import"])
    x = np.ones((1, 16, 24, 24), np.float32)
    np.testing.assert_allclose(compiled.run({"image": x})["y"], 1 / (1 + np.exp(-x)), rtol=1e-5)


def test_unsupported_dtypes_stay_on_the_cpu(tmp_path: Path) -> None:
    compiled = compile(save_onnx(tmp_path / "m.onnx", dtype=TensorProto.FLOAT16), TARGET)
    assert any("dtype float16" in note for note in compiled.metadata["decisions"]["import"])


def test_open_dimensions_are_refused() -> None:
    extent = tvm.tirx.Var("n", "int64")
    mod = Emitter().module((1, 16, extent, 8), lambda e, x: e.relu(e.conv(x, 16)))
    message = r"input 'x' has the shape \[1, 16, n, 8\] .*--input-shape x:1.* leave --dynamic"
    with pytest.raises(InputError, match=message):
        offload(mod, load_config("sim"), COSTS, {"x": np.ones((1, 16, 8, 8), np.float32)})


@pytest.mark.parametrize(
    ("calibration", "message"),
    [
        (None, "tensor '.*' goes through VTA .* give calibration data"),
        ({"picture": np.ones((1, 16, 24, 24), np.float32)}, "names the input 'picture'; the model has image"),
        ({}, "nothing for input 'image'"),
        ({"image": np.ones((1, 16, 24, 24))}, "input 'image' is float64; expected float32"),
        ({"image": np.ones((1, 16, 24, 25), np.float32)}, r"shape \[1, 16, 24, 25\]; expected \[1, 16, 24, 24\]"),
        ({"image": np.ones((0, 16, 24, 24), np.float32)}, "no sample"),
        ({"image": np.full((1, 16, 24, 24), np.nan, np.float32)}, "not finite"),
        ({"image": np.float32(3)}, r"shape \[\]; expected"),
        ({"image": np.full((1, 16, 24, 24), 3e38, np.float32)}, r"tensor '\w+' of the model in floats is .* give data"),
    ],
)
def test_bad_calibration_data(tmp_path: Path, calibration: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        compile(save_onnx(tmp_path / "m.onnx"), TARGET, calibration=calibration)


def test_huge_calibration_data() -> None:
    """What is too large for integers costs accuracy; it is no warning, and no error."""
    mod = Emitter().module((1, 16, 4, 4), lambda e, x: e.conv(e.relu(e.conv(x, 16)), 16))
    samples = np.random.default_rng(1).standard_normal((2, 1, 16, 4, 4)).astype(np.float32) * np.float32(1e30)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        model = forced_offload(mod, "sim", samples)
        report = model.accuracy([{"x": samples[0]}], [run(model.mod, samples[0])])
    assert model.output_error is not None
    assert model.output_error > 0.5
    assert np.isfinite([row.largest_error for row in (*report.layers, *report.outputs)]).all()


def test_calibration_is_for_vta(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="calibration data is for VTA targets"):
        compile(save_onnx(tmp_path / "m.onnx"), "llvm", calibration={"image": np.ones(1)})


@pytest.mark.parametrize(
    ("per_channel", "activations"), [(True, "uint8"), (False, "int8")], ids=["uint8 by channel", "int8 by tensor"]
)
def test_quantised_models_need_no_calibration(per_channel: bool, activations: str) -> None:
    pytest.importorskip("onnxruntime")
    from tests.zoo.quantized import quantized
    from tvm_ext.verify import onnxruntime_outputs

    entry = quantized("tiny_mlp", per_channel=per_channel, activations=activations)
    model = entry.build()
    imported = import_model(model)
    floats, fractions = prepare(imported.mod)
    assert len(fractions) >= 4
    forced = {layer.name: "vta" for layer in read_graph(floats["main"], 1).layers}  # far too small to pay otherwise
    offloaded = offload(imported.mod, load_config("sim"), COSTS, forced=forced)
    assert offloaded.regions
    inputs = entry.inputs(0)
    (found,), expected = run(offloaded.mod, *inputs.values()), onnxruntime_outputs(model, inputs)[0]
    assert np.square(found - expected).mean() < 0.01 * np.square(expected).mean()


def test_digits_keep_their_accuracy() -> None:
    """Trained here: the same network in int8 on VTA is right as often, within a percentage point."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    from tests.vta.digits import accuracy, digits, relax_module, trained_network

    train, _, pictures, classes = digits()
    network = trained_network()
    mod = relax_module(network)
    layers = read_graph(prepare(mod)[0]["main"], 1).layers
    forced = {layer.name: "vta" for layer in layers}
    model = offload(mod, load_config("sim"), COSTS, {"input": train[:100]}, forced=forced)
    assert len(model.network.layers) == 6
    executable = tvm.compile(model.mod, tvm.target.Target("llvm"), relax_pipeline="tvm_ext")
    machine = relax.VirtualMachine(executable, tvm.cpu())
    answers = [machine["main"](tvm.runtime.tensor(picture[None])) for picture in pictures]
    rows = np.concatenate([(answer if hasattr(answer, "numpy") else answer[0]).numpy() for answer in answers])
    with torch.no_grad():
        floats = network(torch.from_numpy(pictures)).numpy()
    first = model.observed.run({"input": pictures[:1]})[0][0]
    np.testing.assert_allclose(first, floats[:1], rtol=1e-3, atol=1e-4)
    assert accuracy(floats, classes) > 0.94
    assert accuracy(rows, classes) > accuracy(floats, classes) - 0.01
