"""Quantised models in integer arithmetic: bit-equal to the integer reference, and near onnxruntime."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import relax

import tvm_ext
from tests.integer_reference import run_integers
from tests.quantized.qdq_graphs import QdqGraph
from tests.zoo.quantized import quantized
from tvm_ext.frontend import import_model
from tvm_ext.quantized.relax.integer_arithmetic import integer_arithmetic

LEVELS = {"native": None, "avx2": {"kind": "llvm", "mcpu": "haswell", "num-cores": 2}}


def operators(model: onnx.ModelProto) -> Counter[str]:
    """Operators with the type of their result, after the pass."""
    mod = tvm.transform.Sequential(
        [relax.transform.CanonicalizeBindings(), integer_arithmetic(), relax.transform.DeadCodeElimination()]
    )(import_model(model).mod)
    found: Counter[str] = Counter()

    def visit(node: relax.Expr) -> None:
        if isinstance(node, relax.Call) and hasattr(node.op, "name") and isinstance(node.ty, relax.TensorType):
            found[f"{node.op.name.removeprefix('relax.')}:{node.ty.dtype}"] += 1

    relax.analysis.post_order_visit(mod["main"], visit)
    return found


def check(model: onnx.ModelProto, inputs: dict[str, np.ndarray], target: Any = None, exact: bool = True) -> None:
    """Compare with the reference bit by bit, and with onnxruntime within two steps of rounding."""
    compiled = tvm_ext.compile(model, target)
    results = compiled.run(inputs)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for (name, value), peer in zip(results.items(), session.run(None, inputs), strict=True):
        if exact:
            np.testing.assert_array_equal(value, run_integers(model, inputs)[name])
        step = max(np.diff(np.unique(peer)).min(initial=np.inf), 1e-6) if peer.size > 1 else 1.0
        assert np.mean(np.abs(value - peer) > 2.01 * step) <= 0.01


@pytest.mark.parametrize("target", LEVELS.values(), ids=LEVELS)
@pytest.mark.parametrize("activations", ["uint8", "int8"])
def test_convolution_chain(activations: str, target: Any) -> None:
    graph = QdqGraph((2, 3, 17, 13), activations)
    first = graph.quantized(graph.node("Relu", graph.conv(graph.quantized("x"), 3, 24)))
    second = graph.quantized(graph.conv(first, 24, 24, group=24, strides=[2, 1]))
    third = graph.quantized(graph.conv(second, 24, 40, 1, per_channel=False))
    model = graph.model(third)
    assert operators(model)["nn.conv2d:int32"] == 3
    check(model, graph.input(), target)


def test_residual_block_shares_its_input() -> None:
    graph = QdqGraph((1, 16, 9, 7))
    start = graph.quantized(graph.node("Relu", graph.conv(graph.quantized("x"), 16, 32)))
    inner = graph.quantized(graph.node("Relu", graph.conv(start, 32, 32)))
    branch = graph.quantized(graph.conv(inner, 32, 32, 1))
    joined = graph.quantized(graph.node("Relu", graph.node("Add", branch, start)))
    model = graph.model(graph.quantized(graph.conv(joined, 32, 8, 1)), joined)
    assert operators(model)["nn.conv2d:float32"] == 0
    check(model, graph.input())


def test_unquantized_result_and_two_uses() -> None:
    """A convolution whose float result is used by two operators, and one that is not quantised again."""
    graph = QdqGraph((1, 8, 9, 9))
    conv = graph.conv(graph.quantized("x"), 8, 16)
    rounded = graph.quantized(conv, 0.05, 100)
    both = graph.node("Add", rounded, graph.node("Sigmoid", conv))
    model = graph.model(both, graph.conv(rounded, 16, 4, 1))
    inputs = graph.input()
    assert operators(model)["nn.conv2d:int32"] == 2
    results = tvm_ext.compile(model).run(inputs)
    peers = onnxruntime.InferenceSession(model.SerializeToString()).run(None, inputs)
    for value, peer in zip(results.values(), peers, strict=True):
        np.testing.assert_allclose(value, peer, atol=0.06)


def test_relu6_stays_exact() -> None:
    graph = QdqGraph((1, 8, 9, 9))
    bounds = [graph.constant(np.float32(bound)) for bound in (0, 1.5)]
    clipped = graph.node("Clip", graph.conv(graph.quantized("x"), 8, 16), *bounds)
    check(graph.model(graph.quantized(clipped, 0.0123, 37)), graph.input())


def test_pooling_average_concatenation_and_product() -> None:
    graph = QdqGraph((1, 16, 12, 12))
    start = graph.quantized(graph.conv(graph.quantized("x"), 16, 16), 0.03, 90)
    pooled = graph.quantized(graph.node("MaxPool", start, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4), 0.03, 90)
    average = graph.quantized(graph.node("GlobalAveragePool", pooled))
    flat = graph.quantized(graph.node("Flatten", average), float(graph.scales[average]), 0)
    weight = graph.weight((16, 10), 1)
    product = graph.node("Gemm", flat, weight, graph.bias(flat, weight, 10))
    model = graph.model(graph.quantized(product))
    found = operators(model)
    assert found["nn.max_pool2d:uint8"] == 1
    assert found["sum:int32"] == 1
    assert found["matmul:float32"] == 0
    check(model, graph.input())


@pytest.mark.parametrize("same", [True, False])
def test_concatenation(same: bool) -> None:
    graph = QdqGraph((1, 16, 6, 5))
    start = graph.quantized("x")
    parts = [
        graph.quantized(graph.conv(start, 16, 32, kernel), 0.03 if same else None, 90 if same else None)
        for kernel in (1, 3)
    ]
    joined = graph.quantized(graph.node("Concat", *parts, axis=1), 0.03, 90)
    model = graph.model(graph.quantized(graph.conv(joined, 64, 8, 1)))
    found = operators(model)
    assert found["concat:uint8"] == 1
    assert found["concat:float32"] == 0
    inputs = graph.input()
    peer = onnxruntime.InferenceSession(model.SerializeToString()).run(None, inputs)[0]
    (result,) = tvm_ext.compile(model).run(inputs).values()
    assert np.mean(result != peer) < 0.01


@pytest.mark.parametrize("rows", [(1,), (7,), (2, 5)])
def test_matrix_product(rows: tuple[int, ...]) -> None:
    graph = QdqGraph((*rows, 33))
    data = graph.quantized("x")
    weight = graph.weight((33, 20), 1)
    total = graph.node("MatMul", data, weight)
    model = graph.model(graph.quantized(graph.node("Add", total, graph.bias(data, weight, 20))))
    assert operators(model)["matmul:float32"] == 0
    inputs = graph.input()
    (result,) = tvm_ext.compile(model).run(inputs).values()
    np.testing.assert_array_equal(result, next(iter(run_integers(model, inputs).values())))


def test_queries_keys_and_values_lay_their_text_out_once() -> None:
    graph = QdqGraph((1, 9, 32))
    text = graph.quantized("x")
    made = [graph.quantized(graph.node("MatMul", text, graph.weight((32, 16), axis=1))) for _ in range(3)]
    model = graph.model(graph.node("Sum", *made))
    compiled = tvm_ext.compile(model, {"kind": "llvm", "opt-level": 1})
    called = re.findall(r"call +(\w+) +in:", compiled.executable.as_text())
    laid_out = [name for name in called if "to_blocked" in name and "conv" not in name]
    assert len(laid_out) == 1, called


def test_what_is_not_integer_stays_float() -> None:
    """A bias between the steps."""
    graph = QdqGraph((1, 8, 7, 7))
    data = graph.quantized("x")
    bias = graph.constant(graph.rng.uniform(-1, 1, 8).astype("float32"))
    uneven = graph.node("Conv", data, graph.weight((8, 8, 1, 1)), bias)
    model = graph.model(graph.quantized(uneven))
    found = operators(model)
    assert found["nn.conv2d:float32"] == 1 or found["nn.conv2d:int32"] == 1
    check(model, graph.input(), exact=False)


@pytest.mark.parametrize(("zero_point", "products"), [(9, 1), (-100, 2)])
def test_weights_with_a_zero_point(zero_point: int, products: int) -> None:
    """Less a zero point near nought they are signed bytes; else a sum of the windows has what they are larger by."""
    graph = QdqGraph((1, 8, 7, 7))
    model = graph.model(graph.quantized(graph.conv(graph.quantized("x"), 8, 16, zero_point=zero_point)))
    assert operators(model)["nn.conv2d:int32"] == products
    check(model, graph.input())


def test_integers_at_the_border() -> None:
    """A model whose input and output are 8-bit integers themselves."""
    for dtype in ("uint8", "int8"):
        graph = QdqGraph((1, 8, 7, 7), dtype)
        conv = graph.conv(graph.quantized("x", 0.02, 3), 8, 16)
        result = graph.quantized(conv, 0.04, -5 if dtype == "int8" else 5)
        model = graph.model(result)
        proto = {"uint8": onnx.TensorProto.UINT8, "int8": onnx.TensorProto.INT8}[dtype]
        first, last = model.graph.node[0], model.graph.node[-1]
        assert (first.op_type, last.op_type) == ("QuantizeLinear", "DequantizeLinear")
        del model.graph.value_info[:]
        model.graph.input[0].type.tensor_type.elem_type = proto
        model.graph.input[0].name = first.output[0]
        model.graph.output[0].name = last.input[0]
        model.graph.output[0].type.tensor_type.elem_type = proto
        model.graph.node.remove(first)
        model.graph.node.remove(last)
        limits = np.iinfo(dtype)
        values = np.random.default_rng(0).integers(limits.min, limits.max + 1, (1, 8, 7, 7)).astype(dtype)
        (result_values,) = tvm_ext.compile(model).run([values]).values()
        peer = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {first.output[0]: values})[0]
        assert result_values.dtype == peer.dtype == np.dtype(dtype)
        assert np.abs(result_values.astype(int) - peer.astype(int)).max() <= 1


@settings(max_examples=8, deadline=None)
@given(
    seed=st.integers(0, 1000),
    activations=st.sampled_from(["uint8", "int8"]),
    channels=st.sampled_from([1, 3, 7, 8, 16, 17, 33]),
    size=st.tuples(st.sampled_from([1, 5, 8, 15, 33]), st.sampled_from([1, 2, 7, 9, 17])),
    steps=st.lists(st.sampled_from(["conv", "depthwise", "relu", "residual", "pool"]), min_size=1, max_size=4),
)
def test_random_networks(seed: int, activations: str, channels: int, size: tuple[int, int], steps: list[str]) -> None:
    graph = QdqGraph((1, channels, *size), activations, seed)
    value = graph.quantized("x")
    for step in steps:
        if step == "conv":
            width = int(graph.rng.choice([1, 8, 9, 16, 24, 33]))
            value = graph.quantized(graph.conv(value, channels, width, int(graph.rng.choice([1, 3]))))
            channels = width
        elif step == "depthwise":
            value = graph.quantized(graph.conv(value, channels, channels, group=channels))
        elif step == "relu":
            value = graph.quantized(graph.node("Relu", graph.conv(value, channels, channels)))
        elif step == "residual":
            branch = graph.quantized(graph.conv(value, channels, channels, 1))
            value = graph.quantized(graph.node("Add", branch, value))
        else:
            value = graph.quantized(
                graph.node("MaxPool", value, kernel_shape=[3, 3], pads=[1] * 4), float(graph.scales[value])
            )
    model = graph.model(value)
    inputs = graph.input()
    (result,) = tvm_ext.compile(model).run(inputs).values()
    np.testing.assert_array_equal(result, run_integers(model, inputs)[value])


@pytest.mark.parametrize("options", [{}, {"activations": "int8"}, {"per_channel": False}])
@pytest.mark.parametrize("target", LEVELS.values(), ids=LEVELS)
def test_tiny_network(options: dict[str, Any], target: Any) -> None:
    entry = quantized("tiny_cnn", **options)
    check(entry.onnx_model(), entry.inputs(), target)


@pytest.mark.parametrize("activations", ["uint8", "int8"])
def test_integer_operators(activations: str) -> None:
    """The same network with QLinearConv and its kin gives the same integers."""
    entry = quantized("tiny_cnn", activations=activations, form="QOperator")
    twin = quantized("tiny_cnn", activations=activations)
    model, inputs = entry.onnx_model(), entry.inputs()
    found = operators(model)
    assert found["nn.conv2d:int32"] == 4  # three convolutions and the product
    assert found["round:float32"] == found["matmul:int32"] == found["subtract:int32"] == 0
    (result,) = tvm_ext.compile(model).run(inputs).values()
    np.testing.assert_array_equal(result, next(iter(run_integers(twin.onnx_model(), inputs).values())))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mobilenet_v2", "resnet50"])
def test_network(name: str) -> None:
    entry = quantized(name)
    check(entry.onnx_model(), entry.inputs())


def test_float_modules_are_left_alone() -> None:
    from tests.zoo import get

    mod = import_model(get("tiny_cnn").onnx_model()).mod
    tvm.ir.assert_structural_equal(integer_arithmetic()(mod), mod)


@pytest.mark.parametrize("size", [(1, 1), (9, 7)])
def test_sigmoid_after_a_convolution(size: tuple[int, int]) -> None:
    """Quantised swish, as it follows convolutions; a picture of one pixel is the inside of squeeze and excitation."""
    graph = QdqGraph((1, 16, *size))
    value = graph.quantized(graph.conv(graph.quantized("x"), 16, 10, 1), 0.03, 100)
    gate = graph.quantized(graph.node("Sigmoid", value), 1 / 255, 0)
    model = graph.model(graph.quantized(graph.node("Mul", value, gate), 0.02, 20))
    check(model, graph.input(), exact=False)
