"""Decision trees against onnxruntime, drawn at random, and what is wrong with some."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tvm_ext
from tvm_ext.errors import TvmExtError, UnsupportedOperatorError

ort = pytest.importorskip("onnxruntime")
INTEGER = TensorProto.INT64
ROWS = np.random.default_rng(0).standard_normal((33, 5)).astype("float32").round(1)


def model_of(operator: str, attributes: dict[str, Any], outputs: dict[str, int], opset: int, real: int) -> Any:
    graph = helper.make_graph(
        [helper.make_node(operator, ["x"], list(outputs), domain="ai.onnx.ml", name="trees", **attributes)],
        "graph",
        [helper.make_tensor_value_info("x", real, ["rows", 5])],
        [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def check(model: onnx.ModelProto, x: np.ndarray, shape: Sequence[int | str] | None = None) -> None:
    compiled = tvm_ext.compile(model, "native", input_shapes={"x": shape or x.shape})
    session = ort.InferenceSession(model.SerializeToString())
    wanted = session.run(None, {"x": x})
    for found, expected in zip(compiled.run({"x": x}).values(), wanted, strict=True):
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def drawn(seed: int, voters: str, targets: int, modes: list[str], trees: int = 5) -> dict[str, Any]:
    """Draw trees of all shapes; some nodes follow NaN, some leaves vote twice."""
    rng = np.random.default_rng(seed)
    nodes: list[list[Any]] = []
    votes: list[list[Any]] = []

    def grow(tree: int, depth: int) -> int:
        number = sum(node[0] == tree for node in nodes)
        node = [tree, number, int(rng.integers(5)), round(float(rng.standard_normal()), 1), "LEAF", 0, 0, 0]
        nodes.append(node)
        if depth == 0 or rng.random() < 0.2:
            for target in rng.permutation(targets)[: rng.integers(1, targets + 1)]:
                votes.append([tree, number, int(target), float(rng.standard_normal())])
        else:
            node[4], node[7] = str(rng.choice(modes)), int(rng.integers(2))
            node[5], node[6] = grow(tree, depth - 1), grow(tree, depth - 1)
        return number

    for tree in range(trees):
        grow(3 * tree, tree)  # the first is a leaf alone
    names = "treeids nodeids featureids values modes truenodeids falsenodeids missing_value_tracks_true".split()
    listed = {f"nodes_{name}": list(column) for name, column in zip(names, zip(*nodes, strict=True), strict=True)}
    columns = zip(*votes, strict=True)
    return listed | {
        f"{voters}_{name}": list(column)
        for name, column in zip(("treeids", "nodeids", "ids", "weights"), columns, strict=True)
    }


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("modes", "more"),
    [
        (["BRANCH_LEQ"], {"n_targets": 1, "base_values": [0.5]}),
        (["BRANCH_LT"], {"n_targets": 3, "aggregate_function": "AVERAGE"}),
        (["BRANCH_GT", "BRANCH_GTE"], {"n_targets": 2, "aggregate_function": "MIN"}),
        (["BRANCH_EQ", "BRANCH_NEQ", "BRANCH_LEQ"], {"n_targets": 2, "aggregate_function": "MAX"}),
        (["BRANCH_LEQ"], {"n_targets": 3, "post_transform": "SOFTMAX", "base_values": [1.0, 2.0, 0.1]}),
        (["BRANCH_LEQ"], {"n_targets": 2, "post_transform": "LOGISTIC"}),
    ],
    ids=str,
)
def test_regressors(seed: int, modes: list[str], more: dict[str, Any]) -> None:
    attributes = drawn(seed, "target", more["n_targets"], modes) | more
    x = ROWS.copy()
    if "BRANCH_NEQ" not in modes:
        x[::7, seed] = np.nan
    check(model_of("TreeEnsembleRegressor", attributes, {"y": TensorProto.FLOAT}, 3, TensorProto.FLOAT), x)


OUTPUTS = {"label": INTEGER, "scores": TensorProto.FLOAT}


@pytest.mark.parametrize("after", ["NONE", "LOGISTIC", "SOFTMAX"])
def test_classifiers(after: str) -> None:
    attributes = drawn(3, "class", 3, ["BRANCH_LEQ"]) | {"classlabels_int64s": [7, -2, 5], "post_transform": after}
    check(model_of("TreeEnsembleClassifier", attributes, OUTPUTS, 3, TensorProto.FLOAT), ROWS)


@pytest.mark.parametrize("after", ["NONE", "LOGISTIC"])
@pytest.mark.parametrize(("voted", "base"), [(0, []), (1, []), (0, [0.1])], ids=str)
@pytest.mark.parametrize("shares", [False, True])
def test_votes_for_one_class_of_two(after: str, voted: int, base: list[float], shares: bool) -> None:
    attributes = drawn(6, "class", 1, ["BRANCH_LEQ"])
    attributes["class_ids"] = [voted] * len(attributes["class_ids"])
    if shares:
        attributes["class_weights"] = [abs(weight) / 5 for weight in attributes["class_weights"]]
    attributes |= {"classlabels_int64s": [4, 9], "post_transform": after} | ({"base_values": base} if base else {})
    check(model_of("TreeEnsembleClassifier", attributes, OUTPUTS, 3, TensorProto.FLOAT), ROWS)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"base_values": [0.1, 0.2]}, "which onnxruntime reads in its own way"),
        ({"post_transform": "SOFTMAX"}, "of two classes of which one is voted for"),
        ({"classlabels_int64s": [1]}, "less than two integers as labels"),
    ],
    ids=str,
)
def test_classifiers_that_are_refused(more: dict[str, Any], message: str) -> None:
    attributes = drawn(6, "class", 1, ["BRANCH_LEQ"]) | {"classlabels_int64s": [4, 9]} | more
    with pytest.raises(UnsupportedOperatorError, match=message):
        check(model_of("TreeEnsembleClassifier", attributes, OUTPUTS, 3, TensorProto.FLOAT), ROWS)


def test_double_precision() -> None:
    attributes = drawn(1, "target", 2, ["BRANCH_LEQ"]) | {"n_targets": 2}
    for name in ("nodes_values", "target_weights"):
        attributes[f"{name}_as_tensor"] = numpy_helper.from_array(np.array(attributes.pop(name)), name)
    model = model_of("TreeEnsembleRegressor", attributes, {"y": TensorProto.FLOAT}, 3, TensorProto.DOUBLE)
    check(model, ROWS.astype("float64"))


def test_any_number_of_rows() -> None:
    attributes = drawn(2, "target", 1, ["BRANCH_LEQ"]) | {"n_targets": 1}
    model = model_of("TreeEnsembleRegressor", attributes, {"y": TensorProto.FLOAT}, 3, TensorProto.FLOAT)
    for count in (1, 7):
        check(model, ROWS[:count], ("rows", 5))


def test_sets_of_members() -> None:
    """As ONNX has it: 1.2 for the members 1 and 2, else by whether the other column is at most 3."""
    tensor = numpy_helper.from_array
    attributes = {
        "n_targets": 2,
        "tree_roots": [0],
        "nodes_modes": tensor(np.array([6, 0], "uint8")),
        "nodes_splits": tensor(np.array([0, 3], "float32")),
        "nodes_featureids": [0, 1],
        "nodes_truenodeids": [0, 1],
        "nodes_trueleafs": [1, 1],
        "nodes_falsenodeids": [1, 2],
        "nodes_falseleafs": [0, 1],
        "leaf_targetids": [0, 1, 1],
        "leaf_weights": tensor(np.array([1.2, 2.5, -3.0], "float32")),
        "membership_values": tensor(np.array([1, 2, np.nan], "float32")),
    }
    model = model_of("TreeEnsemble", attributes, {"y": TensorProto.FLOAT}, 5, TensorProto.FLOAT)
    x = np.zeros((5, 5), "float32")
    x[:, 0], x[:, 1] = [1, 2, 3, np.nan, 0], [9, 9, 3, 4, 2]
    found = tvm_ext.compile(model, "native", input_shapes={"x": x.shape}).run({"x": x})["y"]
    np.testing.assert_array_equal(found, np.array([[1.2, 0], [1.2, 0], [0, 2.5], [0, -3], [0, 2.5]], "float32"))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"nodes_truenodeids": [2, 0, 0]}, "a tree of it has no root, or several"),
        (
            {"nodes_truenodeids": [1, 1, 0], "nodes_modes": ["BRANCH_LT", "BRANCH_LT", "LEAF"]},
            "lead in a circle|no root",
        ),
        ({"nodes_truenodeids": [9, 0, 0]}, "node 0 of tree 0 leads to 9, which is none"),
        ({"nodes_featureids": [8, 0, 0]}, "looks at column 8, and its input has 5"),
        ({"nodes_modes": ["BRANCH_LEQ", "LEAF", "TWIG"]}, "mode of a node is TWIG"),
        ({"target_ids": [0, 1]}, "none of the 1 targets"),
        ({"nodes_values": [0.5]}, "of different lengths"),
        ({"post_transform": "PROBIT"}, "its post_transform is PROBIT"),
        ({"post_transform": "LOGISTIC"}, "LOGISTIC of one target, which onnxruntime leaves out"),
        ({"base_values": [0.1, 0.2]}, "2 base values for 1 targets"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_is_wrong_is_said(changed: dict[str, Any], message: str) -> None:
    attributes = {
        "n_targets": 1,
        "nodes_treeids": [0, 0, 0],
        "nodes_nodeids": [0, 1, 2],
        "nodes_featureids": [1, 0, 0],
        "nodes_values": [0.2, 0.0, 0.0],
        "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
        "nodes_truenodeids": [1, 0, 0],
        "nodes_falsenodeids": [2, 0, 0],
        "target_treeids": [0, 0],
        "target_nodeids": [1, 2],
        "target_ids": [0, 0],
        "target_weights": [1.0, -2.0],
    }
    outputs = {"y": TensorProto.FLOAT}
    model = model_of("TreeEnsembleRegressor", attributes | changed, outputs, 3, TensorProto.FLOAT)
    with pytest.raises(TvmExtError, match=message):
        tvm_ext.compile(model, "native", input_shapes={"x": (2, 5)})
