"""Quantised models for CUDA are computed on integers: what the kernels mean is what the same model gives on a CPU."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from onnx import TensorProto, helper, numpy_helper
from tvm import relax, tirx

import tvm_ext
from scripts.cuda.emulate import compare
from scripts.cuda.kernels import kernels_of
from tests.cuda.whole_model import EmulatedModel
from tests.frontend.onnx.text import graph
from tests.zoo.quantized import quantized
from tvm_ext.backends.cuda.host_part import host_fault
from tvm_ext.compiler import lower
from tvm_ext.frontend import import_model
from tvm_ext.phases import Phase
from tvm_ext.pipeline import checked_options
from tvm_ext.schedules.rule import RULE_ATTRIBUTE
from tvm_ext.target import resolve_target

TARGET = resolve_target({"kind": "cuda", "arch": "sm_80"})


def phases(mod: tvm.IRModule) -> dict[str, tvm.IRModule]:
    found: dict[str, tvm.IRModule] = {}

    def keep(phase: Phase, after: tvm.IRModule) -> None:
        found[phase.name] = tvm.IRModule(dict(after.functions_items()))

    lower(mod, TARGET, checked_options({}), after_phase=keep)
    return found


@pytest.mark.parametrize("activations", ["int8", "uint8"])
def test_a_model_gives_what_it_gives_on_a_cpu(activations: str) -> None:
    entry = quantized("tiny_cnn", activations=activations)
    mod = import_model(entry.onnx_path(), input_shapes=entry.input_shapes()).mod
    modules = phases(mod)
    rules = [
        str(func.attrs[RULE_ATTRIBUTE])
        for _, func in modules["schedule"].functions_items()
        if isinstance(func, tirx.PrimFunc)
    ]
    assert "cuda.tensor_matmul" in rules
    unscheduled = tvm.relax.VirtualMachine(tvm.compile(modules["fuse"], "llvm"), tvm.cpu())
    for seed in range(3):
        inputs = entry.inputs(seed)
        expected = tvm_ext.compile(mod).run(inputs)
        got = unscheduled["main"](*(tvm.runtime.tensor(inputs[name]) for name in inputs))
        got = [got] if isinstance(got, tvm.runtime.Tensor) else list(got)
        for first, second in zip(got, expected.values(), strict=True):
            np.testing.assert_array_equal(first.numpy(), second)


def test_convolutions_add_up_integers() -> None:
    entry = quantized("tiny_cnn", activations="uint8")
    mod = import_model(entry.onnx_path(), input_shapes=entry.input_shapes()).mod
    types: list[str] = []

    def visit(expr: relax.Expr) -> None:
        if isinstance(expr, relax.Call) and getattr(expr.op, "name", "") in ("relax.nn.conv2d", "relax.matmul"):
            types.append(str(expr.ty.dtype))

    for _, func in phases(mod)["canonicalize"].functions_items():
        if isinstance(func, relax.Function):
            relax.analysis.post_order_visit(func.body, visit)
    assert types
    assert set(types) == {"int32"}


def test_a_zero_point_found_at_run_time_is_brought_by_a_thread() -> None:
    """A product's kernel reads it in two blocks, so that none of them takes it in: it was left to the host."""
    weight = np.random.default_rng(0).integers(-127, 128, (33, 17)).astype("int8")
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "scale", "zero"]),
        helper.make_node("MatMulInteger", ["q", "w", "zero"], ["sums"]),
        helper.make_node("Cast", ["sums"], ["wide"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["wide", "scale"], ["y"]),
    ]
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [5, width]) for name, width in (("x", 33), ("y", 17))
    )
    made = helper.make_graph(nodes, "g", [x], [y], [numpy_helper.from_array(weight, "w")])
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    kernels = kernels_of("dynamic", import_model(model).mod, TARGET)
    (product,) = [kernel for kernel in kernels if kernel.scheduled.attrs[RULE_ATTRIBUTE] == "cuda.matmul"]
    assert host_fault(product.scheduled, TARGET) == ""
    assert compare(product, TARGET)[0] == ""


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_what_is_no_number_becomes_the_smallest_integer(dtype: str) -> None:
    x = np.random.default_rng(0).standard_normal((5, 33)).astype("float32")
    x[0, :3], x[1, :4], x[4, -1] = (np.nan, np.inf, -np.inf), np.nan, 1e30
    zero, scale = np.array(3, dtype), np.array(0.02, "float32")
    node = helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["y"])
    constants = [numpy_helper.from_array(value, name) for name, value in (("scale", scale), ("zero", zero))]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)]
    made = helper.make_graph(
        [node],
        "g",
        inputs,
        [helper.make_tensor_value_info("y", TensorProto.DataType.Value(dtype.upper()), x.shape)],
        constants,
    )
    model = EmulatedModel(helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=9))
    limits = np.iinfo(dtype)
    bounded = np.clip(np.round(x / scale) + 3, limits.min, limits.max)
    np.testing.assert_array_equal(model(x)[0], np.where(np.isnan(x), limits.min, bounded).astype(dtype))


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_threads_wait_for_each_other_over_open_windows(dtype: str) -> None:
    text = f"g ({dtype}[n,4,h,w] x) => (float[n,4,p,q] y) "
    text += "{ z = MaxPool<kernel_shape = [3, 2], strides = [2, 1]>(x) y = DequantizeLinear(z, scale, zero) }"
    model = graph(text, scale=np.array(0.5, "float32"), zero=np.array(3, dtype))
    emulated = EmulatedModel(import_model(model, dynamic="*").mod)
    for shape in ((2, 4, 9, 7), (1, 4, 3, 2), (3, 4, 33, 17)):
        limits = np.iinfo(dtype)
        x = np.random.default_rng(0).integers(limits.min, limits.max + 1, shape).astype(dtype)
        windows = np.lib.stride_tricks.sliding_window_view(x, (3, 2), (2, 3))[:, :, ::2].max((4, 5))
        np.testing.assert_array_equal(emulated(x)[0], (windows.astype("float32") - 3) * 0.5)
    assert not emulated.faults


def test_a_convolution_whose_rows_are_no_whole_vectors() -> None:
    """Scaled and shifted behind tensor cores, four elements at a time, over rows of three."""
    rng = np.random.default_rng(0)
    text = "g (float[1,19,8,3] x) => (float[1,18,8,3] y) { q, s, z = DynamicQuantizeLinear(x)"
    text += " t = Mul(s, step) a = ConvInteger<pads = [1, 1, 1, 1]>(q, w, z, zero) b = Cast<to = 1>(a) c = Mul(b, t)"
    text += " y = Add(c, bias) }"
    weight, bias = rng.integers(-127, 128, (18, 19, 3, 3)).astype("int8"), rng.standard_normal((1, 18, 1, 1))
    step, zero = np.array(0.002, "float32"), np.array(0, "int8")
    model = graph(text, w=weight, zero=zero, step=step, bias=bias.astype("float32"))
    x = rng.standard_normal((1, 19, 8, 3)).astype("float32")
    emulated = EmulatedModel(model)
    (found,) = emulated(x)
    np.testing.assert_allclose(found, tvm_ext.compile(model).run({"x": x})["y"], rtol=1e-6, atol=1e-6)
    assert not emulated.faults
