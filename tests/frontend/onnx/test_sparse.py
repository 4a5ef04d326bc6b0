"""Sparse initializers and constants: the same as dense ones, or refused where they do not fit."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

import tvm_ext
from tvm_ext.errors import ModelError
from tvm_ext.frontend.onnx.model import load_onnx

SHAPE = (4, 5)
PLACES = [1, 7, 19]
DENSE = np.zeros(20, "float32")
DENSE[PLACES] = [2, -3, 4]
DENSE = DENSE.reshape(SHAPE)
COORDINATES = [[place // 5, place % 5] for place in PLACES]


def sparse(indices: list[int] | list[list[int]], shape: tuple[int, ...] = SHAPE) -> onnx.SparseTensorProto:
    values = helper.make_tensor("w", TensorProto.FLOAT, [3], [2.0, -3.0, 4.0])
    return helper.make_sparse_tensor(values, numpy_helper.from_array(np.asarray(indices, "int64"), "i"), shape)


def model(tensor: onnx.SparseTensorProto, place: str = "initializer") -> onnx.ModelProto:
    branch = """{ y = If (c) <
        then_branch = t () => (float[3,5] a) { a = MatMul(x, w) },
        else_branch = e () => (float[3,5] b) { b = MatMul(x, d) }> }"""
    body = branch if place == "branch" else "{ y = MatMul(x, w) }"
    inputs = "float[3,4] x, bool c, float[4,5] d" if place == "branch" else "float[3,4] x"
    result = parser.parse_model(f'<ir_version: 9, opset_import: ["" : 17]> g ({inputs}) => (float[3,5] y) {body}')
    if place == "initializer":
        result.graph.sparse_initializer.append(tensor)
    elif place == "constant":
        result.graph.node.insert(0, helper.make_node("Constant", [], ["w"], sparse_value=tensor))
    else:
        graph = result.graph.node[0].attribute[0].g
        assert graph.name == "t"
        graph.node.insert(0, helper.make_node("Constant", [], ["w"], sparse_value=tensor))
    return result


@pytest.mark.parametrize("indices", [PLACES, COORDINATES], ids=["places", "coordinates"])
@pytest.mark.parametrize("place", ["initializer", "constant", "branch"])
def test_as_a_dense_tensor(indices: list[int], place: str) -> None:
    proto = model(sparse(indices), place)
    before = proto.SerializeToString(deterministic=True)
    given = {"x": np.random.default_rng(0).standard_normal((3, 4)).astype("float32")}
    if place == "branch":
        given |= {"c": np.asarray(True), "d": np.zeros(SHAPE, "float32")}
    found = tvm_ext.compile(proto).run(given)["y"]
    np.testing.assert_allclose(found, given["x"] @ DENSE, rtol=1e-5, atol=1e-6)
    assert proto.SerializeToString(deterministic=True) == before


def test_none_is_no_copy() -> None:
    proto = parser.parse_model('<ir_version: 9, opset_import: ["" : 17]> g (float[3] x) => (float[3] y) { y = Abs(x) }')
    assert load_onnx(proto).proto is proto


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (sparse([1, 7, 20]), r"'w': its indices, of shape \[3\], do not fit 3 values in shape \[4, 5\]"),
        (sparse([1, -7, 2]), "do not fit"),
        (sparse([1, 7]), "do not fit"),
        (sparse([[0, 1], [1, 5], [2, 2]]), "do not fit"),
        (sparse([[0, 1, 1], [1, 1, 1], [2, 2, 2]]), "do not fit"),
        (sparse([1, 7, 20], (2**40, 5)), "are written out"),
        (sparse([1, 7, 20], (-4, 5)), "are written out"),
    ],
)
def test_what_does_not_fit_is_refused(tensor: onnx.SparseTensorProto, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        tvm_ext.import_model(model(tensor))
