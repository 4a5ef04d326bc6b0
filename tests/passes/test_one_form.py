"""Equal extents are written in one form, and what is made of them is fused."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

import tvm_ext
from tests.frontend.onnx.text import graph
from tvm_ext.passes.one_form import one_form

onnxruntime = pytest.importorskip("onnxruntime")


@I.ir_module
class Before:
    @R.function
    def main(x: R.Tensor(("n", "h"), "float32")) -> R.Tensor(("n", "h * 2"), "float32"):
        n, h = T.int64(), T.int64()
        with R.dataflow():
            lv: R.Tensor((n, 2 * h), "float32") = R.concat([x, x], axis=1)
            gv: R.Tensor((n, h + h), "float32") = R.nn.relu(lv)
            R.output(gv)
        return gv


@I.ir_module
class Expected:
    @R.function
    def main(x: R.Tensor(("n", "h"), "float32")) -> R.Tensor(("n", "h * 2"), "float32"):
        n, h = T.int64(), T.int64()
        with R.dataflow():
            lv: R.Tensor((n, h * 2), "float32") = R.concat([x, x], axis=1)
            gv: R.Tensor((n, h * 2), "float32") = R.nn.relu(lv)
            R.output(gv)
        return gv


def test_products_and_sums_take_one_form() -> None:
    tvm.ir.assert_structural_equal(one_form()(Before), Expected)


def test_a_module_in_one_form_is_left_alone() -> None:
    assert one_form()(Expected)["main"].same_as(Expected["main"])


@pytest.mark.parametrize("follower", ["MaxPool<kernel_shape=[3,3],pads=[1,1,1,1]>", "Neg"])
def test_what_follows_a_resize_is_fused(follower: str) -> None:
    name, _, attributes = follower.partition("<")
    model = graph(
        "g (float[n,5,h,w] x) => (float[n,5,p,q] y) { "
        'r = Resize<mode="nearest",coordinate_transformation_mode="asymmetric",nearest_mode="floor">(x, none, scales) '
        f"p = {name}{'<' + attributes if attributes else ''}(r) y = Relu(p) }}",
        scales=np.array([1, 1, 2, 2], "float32"),
        none=np.zeros(0, "float32"),
    )
    compiled = tvm_ext.compile(model, dynamic="n=0..,h=1..,w=1..")
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for shape in ((1, 5, 7, 9), (2, 5, 33, 31), (3, 5, 1, 1), (0, 5, 3, 3)):
        x = np.random.default_rng(0).standard_normal(shape).astype("float32")
        (want,) = session.run(None, {"x": x})
        np.testing.assert_array_equal(compiled.run({"x": x})["y"], want)
