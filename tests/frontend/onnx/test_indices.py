"""Constant indices out of range, and constant zeros that divide, are refused by name when a model is imported."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest

import tvm_ext
from tvm_ext.errors import ModelError, TvmExtError


def model_of(signature: str, body: str, constants: str) -> onnx.ModelProto:
    text = f'<ir_version: 8, opset_import: ["" : 17]> g {signature} {constants} {{ {body} }}'
    return onnx.parser.parse_model(text)


def one_node(
    operator: str, shape: str, indices: str, outputs: str = "float[2,2]", updates: str = ""
) -> onnx.ModelProto:
    given, more = (f", {updates} u", ", u") if updates else ("", "")
    return model_of(
        f"(float[3,2] x{given}) => ({outputs} z)",
        f"[picks] z = {operator}(x, i{more})",
        f"<int64{shape} i = {indices}>",
    )


OUTSIDE = {
    "past the end": (one_node("Gather", "[2]", "{0, 3}"), "index 3 .* dimension of 3"),
    "before the beginning": (one_node("Gather", "[2]", "{0, -4}"), "index -4 .* dimension of 3"),
    "a scalar": (one_node("Gather", "", "{7}", "float[2]"), "index 7 .* dimension of 3"),
    "along an axis": (one_node("Gather<axis = 1>", "[2]", "{0, 2}", "float[3,2]"), "index 2 .* dimension of 2"),
    "elements": (one_node("GatherElements", "[1,2]", "{0, 3}", "float[1,2]"), "index 3 .* dimension of 3"),
    "places": (one_node("GatherND", "[1,2]", "{1, 2}", "float[1]"), "index 2 .* dimension of 2"),
    "scattered": (one_node("ScatterND", "[1,2]", "{3, 1}", "float[3,2]", "float[1]"), "index 3 .* dimension of 3"),
    "scattered elements": (
        one_node("ScatterElements", "[1,2]", "{1, -4}", "float[3,2]", "float[1,2]"),
        "index -4 .* dimension of 3",
    ),
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_indices_outside_are_refused(name: str) -> None:
    model, said = OUTSIDE[name]
    with pytest.raises(TvmExtError, match=f"'picks'.*constant {said}"):
        tvm_ext.compile(model)


INSIDE = {
    "Gather": (one_node("Gather", "[2]", "{-3, 2}"), [[0, 1], [4, 5]]),
    "GatherND": (one_node("GatherND", "[1,2]", "{-1, 1}", "float[1]"), [5]),
    "GatherND of rows": (one_node("GatherND", "[2,1]", "{-3, 2}"), [[0, 1], [4, 5]]),
    "nothing": (one_node("Gather", "[0]", "{}", "float[0,2]"), np.zeros((0, 2))),
}


@pytest.mark.parametrize("name", INSIDE)
def test_the_first_and_the_last_index_are_right(name: str) -> None:
    model, expected = INSIDE[name]
    found = tvm_ext.compile(model).run({"x": np.arange(6, dtype="float32").reshape(3, 2)})["z"]
    np.testing.assert_array_equal(found, expected)


def test_a_branch_that_is_not_taken_may_be_wrong() -> None:
    branches = """then_branch = a () => (float[2] p) { p = Gather(x, i) },
        else_branch = b () => (float[2] q) { q = Gather(x, j) }"""
    body = f"z = If<{branches}>(c)"
    model = model_of("(float[3,2] x, bool c) => (float[2] z)", body, "<int64 i = {9}, int64 j = {1}>")
    feeds = {"x": np.arange(6, dtype="float32").reshape(3, 2), "c": np.array(False)}
    np.testing.assert_array_equal(tvm_ext.compile(model).run(feeds)["z"], [2, 3])


@pytest.mark.parametrize("operator", ["Div", "Mod"])
@pytest.mark.parametrize("dividend", ["x", "k"])
def test_constant_zeros_divide_nothing(operator: str, dividend: str) -> None:
    model = model_of(
        "(int32[2] x) => (int32[2] z)",
        f"[parts] y = {operator}({dividend}, i) z = Add(x, y)",
        "<int32[2] i = {0, 3}, int32[2] k = {4, 5}>",
    )
    with pytest.raises(ModelError, match=r"'parts'.*divides integers by zero"):
        tvm_ext.compile(model)
