"""Numbers that several kernels read are stored, so that what reads them is not merged around them."""

from __future__ import annotations

import warnings

import numpy as np
import onnxruntime
import pytest
import tvm
from onnx import TensorProto, helper, numpy_helper
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

import tvm_ext
from tests.cpu import LARGEST_WEIGHT
from tvm_ext.errors import PerformanceWarning
from tvm_ext.passes.shared_numbers import shared_numbers


def annotated(module: tvm.IRModule) -> tvm.IRModule:
    passes = [relax.transform.LegalizeOps(), relax.transform.AnnotateTIROpPattern()]
    return tvm.transform.Sequential(passes)(module)


def apart(module: tvm.IRModule) -> list[str]:
    """Names of what calls a kernel that is not fused."""
    names = []
    for block in shared_numbers()(annotated(module))["main"].body.blocks:
        for binding in block.bindings:
            if binding.value.args[0].name_hint.endswith("_apart"):
                names.append(binding.var.name)
    return names


@I.ir_module
class Products:
    @R.function
    def main(n: R.Tensor((), "float32"), x: R.Tensor((4, 8), "float32"), y: R.Tensor((4, 8), "float32")):
        with R.dataflow():
            first = R.exp(n)
            shared = R.negative(first)
            a = R.multiply(x, shared)
            b = R.multiply(y, shared)
            c = R.add(a, b)
            R.output(c)
        return c


@I.ir_module
class Numbers:
    @R.function
    def main(n: R.Tensor((), "float32"), x: R.Tensor((4, 8), "float32")):
        with R.dataflow():
            first = R.exp(n)
            square = R.multiply(first, first)
            other = R.negative(first)
            met = R.add(square, other)
            c = R.multiply(x, met)
            R.output(c)
        return c


@I.ir_module
class Chains:
    @R.function
    def main(n: R.Tensor((), "float32"), x: R.Tensor((4, 8), "float32"), y: R.Tensor((4, 8), "float32")):
        with R.dataflow():
            first = R.exp(n)
            one = R.negative(first)
            two = R.sqrt(first)
            a = R.multiply(x, one)
            b = R.multiply(y, two)
            c = R.add(a, b)
            R.output(c)
        return c


def test_a_number_that_two_tensors_read_is_stored() -> None:
    assert apart(Products) == ["shared"]


def test_numbers_that_meet_in_a_number_are_fused() -> None:
    assert apart(Numbers) == []


def test_the_last_number_in_front_of_two_chains_is_stored() -> None:
    assert apart(Chains) == ["first"]


@pytest.mark.parametrize("rows", [1, 7, 61])
def test_two_products_of_dynamically_quantised_data_have_their_kernels(rows: int) -> None:
    """A gate and what it multiplies, as in the feed-forward layers of T5 and Llama."""
    rng = np.random.default_rng(0)
    weights = {name: rng.integers(-LARGEST_WEIGHT, LARGEST_WEIGHT + 1, (64, 96)).astype("int8") for name in ("w", "v")}
    nodes = [helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"])]
    for name in weights:
        nodes += [
            helper.make_node("MatMulInteger", ["q", name, "z"], [f"{name}_sum"]),
            helper.make_node("Cast", [f"{name}_sum"], [f"{name}_float"], to=TensorProto.FLOAT),
            helper.make_node("Mul", ["s", f"{name}_scale"], [f"{name}_step"]),
            helper.make_node("Mul", [f"{name}_float", f"{name}_step"], [f"{name}_value"]),
        ]
    nodes += [
        helper.make_node("Sigmoid", ["w_value"], ["gate"]),
        helper.make_node("Mul", ["gate", "v_value"], ["y"]),
    ]
    constants = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    constants += [numpy_helper.from_array(np.float32(0.01), f"{name}_scale") for name in weights]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, (2, rows, 64))]
    graph = helper.make_graph(nodes, "g", inputs, [helper.make_empty_tensor_value_info("y")], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    x = rng.standard_normal((2, rows, 64)).astype("float32")
    with warnings.catch_warnings():
        warnings.simplefilter("error", PerformanceWarning)  # of a kernel that its rule failed at
        compiled = tvm_ext.compile(model)
    (expected,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    (found,) = compiled.run({"x": x}).values()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
