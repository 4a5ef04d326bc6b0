"""Quantize and dequantize nodes: taken out, their scales kept."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from tvm import relax

from tests.cpu import LARGEST_WEIGHT
from tests.modules import STOCK
from tvm_ext.backends.vta.config import load_config
from tvm_ext.backends.vta.model.host import HostSpeed
from tvm_ext.backends.vta.model.offload import offload
from tvm_ext.backends.vta.model.quantize import to_integers
from tvm_ext.backends.vta.model.quantized_model import remove_quantization
from tvm_ext.backends.vta.timing.costs import costs_named
from tvm_ext.frontend import import_model


def quantised(scale: float, zero_point: int, dtype: str) -> tvm.IRModule:
    """A sigmoid, quantised and dequantised, and a constant that stands quantised, added to it."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4,), "float32"))
    arguments = relax.const(np.float32(scale)), relax.const(zero_point, dtype)
    weights = relax.const(np.array([1, -2, 3, -4], np.int8))
    with builder.function("main", [x]):
        with builder.dataflow():
            value = builder.emit(relax.op.tanh(x))
            integers = builder.emit(relax.op.quantize(value, *arguments, axis=0, out_dtype=dtype))
            floats = builder.emit(relax.op.dequantize(integers, *arguments, axis=0))
            half = relax.const(np.float32(0.5)), relax.const(0, "int8")
            constant = builder.emit(relax.op.dequantize(weights, *half, axis=0))
            output = builder.emit_output(relax.op.add(floats, constant))
        builder.emit_func_output(output)
    return builder.get()


@pytest.mark.parametrize(
    ("scale", "zero_point", "dtype", "fraction"),
    [
        (2**-4, 0, "int8", 4),
        (2**3, 0, "int8", -3),
        (2**-4, 128, "uint8", 4),
        (2**-5, 0, "uint8", 4),  # up to 255 of its steps, where int8 has 127
        (0.1, 0, "int8", 3),
        (0.01, -128, "int8", 5),
    ],
)
def test_scales(scale: float, zero_point: int, dtype: str, fraction: int) -> None:
    mod, fractions = remove_quantization(quantised(scale, zero_point, dtype))
    assert list(fractions.values()) == [fraction]
    text = mod["main"].script()
    assert "quantize" not in text
    assert ("clip" in text) == (zero_point in (-128, 0) and (dtype, zero_point) != ("int8", 0))


@settings(max_examples=40, deadline=None)
@given(st.floats(1e-4, 10), st.integers(-128, 127))
def test_the_range_fits_int8(scale: float, zero_point: int) -> None:
    _, fractions = remove_quantization(quantised(scale, zero_point, "int8"))
    (fraction,) = fractions.values()
    largest = np.float32(scale) * max((128 + zero_point) * 127 / 128, 127 - zero_point)
    assert largest * 2.0**fraction <= 127.5
    assert largest * 2.0 ** (fraction + 1) > 127.5


@pytest.mark.parametrize(("scale", "zero_point", "dtype"), [(0.002, 0, "uint8"), (0.003, 40, "int8")])
def test_what_a_quantisation_clips(scale: float, zero_point: int, dtype: str) -> None:
    """Tools leave out a ReLU6, too, where the quantisation ends where it would."""
    mod, _ = remove_quantization(quantised(scale, zero_point, dtype))
    executable = tvm.compile(mod, STOCK)
    x = np.array([-3, 0.2, 0.7, 4], np.float32)
    found = relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(x)).numpy()
    info = np.iinfo(dtype)
    limits = scale * (info.min - zero_point), scale * (info.max - zero_point)
    np.testing.assert_allclose(found, np.clip(np.tanh(x), *limits) + np.array([0.5, -1, 1.5, -2]), rtol=1e-5)


@pytest.mark.parametrize(("bound", "expected"), [(None, (0, 5.1)), ((-1.0, 2.0), (0, 2)), ((1.0, 6.0), (1, 5.1))])
def test_one_clip_is_left(bound: tuple[float, float] | None, expected: tuple[float, float]) -> None:
    """Of a ReLU or a clip, the quantisation of its result, and that of a maximum of it: a layer takes in one."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 3, 4, 4), "float32"))
    arguments = relax.const(np.float32(0.02)), relax.const(0, "uint8")
    with builder.function("main", [x]):
        with builder.dataflow():
            value = builder.emit(relax.op.tanh(x))
            value = builder.emit(relax.op.nn.relu(value) if bound is None else relax.op.clip(value, *bound))
            for _ in range(2):
                integers = builder.emit(relax.op.quantize(value, *arguments, axis=0, out_dtype="uint8"))
                floats = builder.emit(relax.op.dequantize(integers, *arguments, axis=0))
                value = builder.emit(relax.op.nn.max_pool2d(floats, (2, 2)))
            output = builder.emit_output(value)
        builder.emit_func_output(output)
    values = [binding.value for binding in remove_quantization(builder.get())[0]["main"].body.blocks[0].bindings]
    names = [value.op.name.rpartition(".")[2] for value in values if isinstance(value, relax.Call)]
    assert names == ["tanh", "clip", "max_pool2d", "max_pool2d"]
    np.testing.assert_allclose([float(item.value) for item in values[1].args[1:]], expected, rtol=1e-6)


def test_values_are_those_of_the_model() -> None:
    mod, fractions = remove_quantization(quantised(2**-6, 0, "int8"))
    executable = tvm.compile(mod, STOCK)
    x = np.array([-3, -0.2, 0.4, 1], np.float32)
    found = relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(x)).numpy()
    np.testing.assert_allclose(found, np.tanh(x) + np.array([0.5, -1, 1.5, -2]), rtol=1e-5)
    integers = to_integers(np.tanh(x), next(iter(fractions.values())))
    np.testing.assert_array_equal(integers, np.floor(np.tanh(x) * 64 + 0.5))


def saturating_model(as_integers: bool) -> onnx.ModelProto:
    """A residual block whose quantisations have negative values and end within those of their tensors."""
    rng = np.random.default_rng(0)
    constants = {
        "weights": rng.integers(-LARGEST_WEIGHT, LARGEST_WEIGHT + 1, (16, 16, 3, 3)).astype(np.int8),
        "weight_step": np.float32(2**-2 / (LARGEST_WEIGHT + 1)),
        "zero": np.int8(0),
        "step": np.float32(2**-5),
        "point": np.uint8(128),
        "small": np.float32(2**-7),
        "uneven": np.uint8(70),
    }
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "step", "point"], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", "step", "point"], ["xd"]),
        helper.make_node("DequantizeLinear", ["weights", "weight_step", "zero"], ["w"]),
        helper.make_node("Conv", ["xd", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("QuantizeLinear", ["c", "small", "uneven"], ["cq"]),
        helper.make_node("DequantizeLinear", ["cq", "small", "uneven"], ["cd"]),
        helper.make_node("Add", ["cd", "xd"], ["s"]),
        helper.make_node("QuantizeLinear", ["s", "small", "uneven"], ["sq"]),
        helper.make_node("DequantizeLinear", ["sq", "small", "uneven"], ["sd"]),
    ]
    result, kind = ("sq", TensorProto.UINT8) if as_integers else ("sd", TensorProto.FLOAT)
    graph = helper.make_graph(
        nodes[: len(nodes) - as_integers],
        "saturating",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 16, 6, 6))],
        [helper.make_tensor_value_info(result, kind, (1, 16, 6, 6))],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


@pytest.mark.parametrize("as_integers", [False, True])
def test_what_saturates_is_clipped(as_integers: bool) -> None:
    """A convolution, and a sum with what it gave, each with many values beyond the quantisation."""
    onnxruntime = pytest.importorskip("onnxruntime")
    onnx_model = saturating_model(as_integers)
    slow = HostSpeed(macs=1e5, comparisons=1e5, start=1e-7)
    imported = import_model(onnx_model)
    model = offload(imported.mod, load_config("sim"), costs_named("chisel"), host=slow)
    assert len(model.partition.on_vta) == 2
    x = np.random.default_rng(1).standard_normal((1, 16, 6, 6)).astype(np.float32)
    executable = tvm.compile(model.mod, STOCK)
    found = relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(x)).numpy()
    (wanted,) = onnxruntime.InferenceSession(onnx_model.SerializeToString()).run(None, {"x": x})
    step = 1.0 if as_integers else 2**-7
    assert found.dtype == wanted.dtype
    assert np.isin(wanted, [wanted.min(), wanted.max()]).mean() > 0.4
    # For the range of the uneven ones VTA has steps of 2 ** -6: half of one, and half of the model's, for each result.
    assert np.abs(found - wanted.astype(np.float64)).max() <= 3 * step
