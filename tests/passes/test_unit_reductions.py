"""Reductions over one element are that element, and other reductions stay."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from onnx import TensorProto, helper, numpy_helper
from tvm.script import tirx as T

from tests.cuda.whole_model import EmulatedModel
from tvm_ext.frontend import import_model
from tvm_ext.passes.unit_reductions import unit_reductions


@T.prim_func(private=True, s_tir=True)
def before(x: T.Buffer((7, 1), "float32"), y: T.Buffer((7,), "float32")) -> None:
    for i, k in T.grid(7, 1):
        with T.sblock("y"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                y[vi] = T.float32(0)
            y[vi] = y[vi] + x[vi, vk] * T.float32(2)


@T.prim_func(private=True, s_tir=True)
def expected(x: T.Buffer((7, 1), "float32"), y: T.Buffer((7,), "float32")) -> None:
    for i, k in T.grid(7, 1):
        with T.sblock("y"):
            vi, vk = T.axis.remap("SS", [i, k])
            y[vi] = x[vi, vk] * T.float32(2)


@T.prim_func(private=True, s_tir=True)
def two_elements(x: T.Buffer((7, 2), "float32"), y: T.Buffer((7,), "float32")) -> None:
    for i, k in T.grid(7, 2):
        with T.sblock("y"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                y[vi] = T.float32(0)
            y[vi] = y[vi] + x[vi, vk]


@T.prim_func(private=True, s_tir=True)
def decaying(x: T.Buffer((7, 1), "float32"), y: T.Buffer((7,), "float32")) -> None:
    for i, k in T.grid(7, 1):
        with T.sblock("y"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                y[vi] = T.float32(1)
            y[vi] = y[vi] * y[vi] + x[vi, vk]


def test_one_element() -> None:
    found = unit_reductions()(tvm.IRModule({"main": before}))
    tvm.ir.assert_structural_equal(found["main"], expected)


@pytest.mark.parametrize("func", [two_elements, decaying, expected])
def test_what_stays(func: tvm.tirx.PrimFunc) -> None:
    mod = tvm.IRModule({"main": func})
    tvm.ir.assert_structural_equal(unit_reductions()(mod), mod)


def test_a_bias_behind_one_tap_over_open_images_is_added_once() -> None:
    rng = np.random.default_rng(0)
    weight, bias = rng.standard_normal((5, 1, 1, 1)).astype("float32"), rng.standard_normal(5).astype("float32")
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w", "b"], ["y"], group=5)],
        "taps",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 5, "h", "w"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(weight, "w"), numpy_helper.from_array(bias, "b")],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    model = EmulatedModel(import_model(proto, dynamic="*").mod)
    for height, width in ((1, 1), (7, 3), (17, 33)):
        x = rng.standard_normal((1, 5, height, width)).astype("float32")
        np.testing.assert_allclose(model(x)[0], x * weight[:, 0] + bias[:, None, None], rtol=1e-5, atol=1e-6)
    assert not model.faults


@pytest.mark.parametrize("rows", [1, 3])
def test_softmax_over_one_element(rows: int) -> None:
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["a", "b"], ["c"]), helper.make_node("Softmax", ["c"], ["y"], axis=-1)],
        "certain",
        [
            helper.make_tensor_value_info("a", TensorProto.FLOAT, [2, rows, 8]),
            helper.make_tensor_value_info("b", TensorProto.FLOAT, [2, 8, 1]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    model = EmulatedModel(import_model(proto).mod, fuse="mapping-type", rewrite="fast")
    ones = [np.ones((2, rows, 8), "float32"), np.ones((2, 8, 1), "float32")]
    np.testing.assert_array_equal(model(*ones)[0], np.ones((2, rows, 1), "float32"))
