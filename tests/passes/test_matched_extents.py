"""Extents that folding finds get their values; those that a caller or a run tells keep their names."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from onnx import TensorProto, helper, numpy_helper
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

import tvm_ext
from tvm_ext.passes.matched_extents import matched_extents


def test_known_extents() -> None:
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor(("n", 4), "float32"), count: R.Tensor((1,), "int64")) -> R.Tensor(ndim=1, dtype="float32"):
            n, m, k, q = T.int64(), T.int64(), T.int64(), T.int64()
            with R.dataflow():
                first = R.shape([n * 2, 3])
                _ = R.match_cast(first, R.Shape([m, k]))
                told = R.tensor_to_shape(count)
                _1 = R.match_cast(told, R.Shape([q]))
                out = R.full(R.shape([m + k + q]), R.const(1, "float32"))
                R.output(out)
            return out

    function = matched_extents()(Before)["main"]
    found = {binding.var.name: binding for binding in function.body.blocks[0].bindings}
    extent = found["out"].var.ty.shape.values[0]
    assert sorted(variable.name for variable in tvm.tirx.analysis.undefined_vars(extent)) == ["n", "q"]
    assert isinstance(found["_1"], relax.MatchCast)
    assert [str(param.ty) for param in function.params] == [str(param.ty) for param in Before["main"].params]


def test_named_by_the_caller() -> None:
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor(("n",), "float32")) -> R.Tensor(("n",), "float32"):
            n = T.int64()
            with R.dataflow():
                shape = R.shape([2])
                _ = R.match_cast(shape, R.Shape([n]))
                y = R.abs(x)
                R.output(y)
            return y

    tvm.ir.assert_structural_equal(matched_extents()(Before), Before)


@pytest.mark.filterwarnings("ignore::tvm_ext.errors.PerformanceWarning")
def test_slices_of_known_and_open_axes() -> None:
    names, bounds = ["starts", "ends", "axes", "steps"], [[-2, -3], [-4, -1], [1, -1], [-1, 1]]
    graph = helper.make_graph(
        [helper.make_node("Slice", ["x", *names], ["y"])],
        "slices",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, "s", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.array(values), name) for name, values in zip(names, bounds, strict=True)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    compiled = tvm_ext.compile(model, dynamic={"s": (2, None)})
    for size in (2, 3, 7, 31):
        x = np.random.default_rng(size).standard_normal((3, size, 4)).astype("float32")
        np.testing.assert_array_equal(compiled.run({"x": x})["y"], x[:, -2:-4:-1, -3:-1])
