"""Normalisation by mean and variance as exporters write it is one operator with the same values; other graphs stay."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

import tvm_ext
from tests.passes.test_group_norms import GENERATOR, TARGET, check, numbers
from tests.passes.test_group_norms import operators as operators_behind
from tvm_ext.passes.layer_norms import layer_norms

MEAN = "m = ReduceMean<axes = {axes}>(x)"
SQUARE = "d = Sub(x, m) q = Pow(d, two) v = ReduceMean<axes = {axes}>(q)"
ROOT = "e = Add(v, epsilon) r = Sqrt(e)"
BEGIN, WEIGHTED = f"{MEAN} {SQUARE} {ROOT}", "s = Mul(n, w) y = Add(s, b)"
FORMS = {
    "quotient": f"{BEGIN} n = Div(d, r) {WEIGHTED}",
    "bias first": f"{BEGIN} n = Div(d, r) s = Mul(w, n) y = Add(b, s)",
    "no bias": f"{BEGIN} n = Div(d, r) y = Mul(n, w)",
    "neither": f"{BEGIN} y = Div(d, r)",
    "product": f"{BEGIN.replace('Pow(d, two)', 'Mul(d, d)')} n = Div(d, r) {WEIGHTED}",
    "two differences": f"{BEGIN.replace('q = Pow(d, two)', 'c = Sub(x, m) q = Mul(d, c)')} y = Div(d, r)",
    "differences apart": f"{BEGIN} c = Sub(x, m) n = Div(c, r) {WEIGHTED}",
    "inverse": f"{BEGIN} i = Reciprocal(r) n = Mul(d, i) {WEIGHTED}",
    "weights with the root": f"{BEGIN} i = Reciprocal(r) a = Mul(i, w) s = Mul(d, a) y = Add(s, b)",
    "weights divided": f"{BEGIN} a = Div(w, r) s = Mul(d, a) y = Add(s, b)",
    "as TensorFlow": f"{BEGIN} i = Reciprocal(r) a = Mul(i, w) s = Mul(x, a) t = Mul(m, a) z = Sub(b, t) y = Add(s, z)",
}
AXES = {
    "rows": ([3], (7,), "nn.layer_norm"),
    "channels": ([1], (6, 1, 1), "nn.layer_norm"),
    "images": ([2, 3], (6, 1, 1), "nn.instance_norm"),
    "everything": ([1, 2, 3], (1, 6, 1, 1), "nn.group_norm"),
}


def model(
    nodes: str, axes: list[int], weights: tuple[int, ...], x: str = "2,6,5,7", y: str = "2,6,5,7"
) -> onnx.ModelProto:
    nodes = nodes.format(axes=axes).replace(") ", ")\n")
    text = f"""<ir_version: 8, opset_import: ["": 13]> g (float[{x}] x) => (float[{y}] y) {{ {nodes} }}"""
    proto = parser.parse_model(text)
    given = {"two": np.float32(2), "epsilon": np.float32(1e-3), "w": numbers(*weights), "b": numbers(*weights)}
    used = {name for node in proto.graph.node for name in node.input}
    proto.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(value), name) for name, value in given.items() if name in used
    )
    return proto


def operators(proto: onnx.ModelProto) -> list[str]:
    return operators_behind(proto, layer_norms)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("along", AXES)
def test_one_operator(form: str, along: str) -> None:
    axes, weights, operator = AXES[along]
    proto = model(FORMS[form], axes, weights)
    assert operators(proto) == [operator]
    if form in ("quotient", "as TensorFlow"):
        check(proto, (2, 6, 5, 7))


@pytest.mark.parametrize("along", ["rows", "everything"])
def test_open_extents(along: str) -> None:
    axes, weights, operator = AXES[along]
    weights = tuple(4 if extent == 7 else extent for extent in weights)
    proto = model(FORMS["quotient"], axes, weights, "n,6,h,4", "n,6,h,4")
    assert operators(proto) == [operator]
    check(proto, (3, 6, 17, 4), (1, 6, 1, 4))


def test_rows_of_words_and_instances_of_sequences() -> None:
    """Of three axes the last is what the weights lie along: words of a row, or each channel of a sequence."""
    words = model(FORMS["quotient"], [2], (6,), "2,5,6", "2,5,6")
    assert operators(words) == ["nn.layer_norm"]
    check(words, (2, 5, 6))
    channels = model(FORMS["quotient"], [2], (5, 1), "2,5,6", "2,5,6")
    assert operators(channels) == ["nn.instance_norm"]
    check(channels, (2, 5, 6))


OTHERS = {
    "no means of what is squared": f"{BEGIN.replace('Pow(d', 'Pow(x')} y = Div(d, r)",
    "one mean of what is multiplied": f"{BEGIN.replace('Pow(d, two)', 'Mul(d, x)')} y = Div(d, r)",
    "other axes": f"{MEAN} {SQUARE.replace('{axes}', '[2]')} {ROOT} y = Div(d, r)",
    "epsilon behind the root": f"{MEAN} {SQUARE} e = Sqrt(v) r = Add(e, epsilon) y = Div(d, r)",
    "root multiplied": f"{BEGIN} y = Mul(d, r)",
    "divided twice": f"{BEGIN} p = Mul(r, w) y = Div(d, p)",
    "another mean": f"{BEGIN} i = Reciprocal(r) a = Mul(i, w) s = Mul(x, a) t = Mul(d, a) z = Sub(b, t) y = Add(s, z)",
}


@pytest.mark.parametrize("form", OTHERS)
def test_what_is_something_else(form: str) -> None:
    proto = model(OTHERS[form], [3], (7,))
    assert not any(name.startswith("nn.") for name in operators(proto))
    check(proto, (2, 6, 5, 7))


def test_weights_of_another_axis_stay_outside() -> None:
    proto = model(FORMS["quotient"], [3], (5, 1))
    assert sorted(operators(proto)) == ["add", "multiply", "nn.layer_norm"]
    check(proto, (2, 6, 5, 7))


def test_a_weight_that_adds_an_axis() -> None:
    proto = model(FORMS["no bias"], [3], (3, 1, 1, 1, 7), y="3,2,6,5,7")
    assert sorted(operators(proto)) == ["multiply", "nn.layer_norm"]
    check(proto, (2, 6, 5, 7))


def test_a_mean_that_others_read() -> None:
    proto = model(FORMS["quotient"] + " u = Add(y, m) z = Mul(u, d)", [3], (7,))
    proto.graph.output[0].name = "z"
    assert "nn.layer_norm" in operators(proto)
    check(proto, (2, 6, 5, 7))


@pytest.mark.parametrize("axis", [-1, 1])
def test_means_far_larger_than_what_differs(axis: int) -> None:
    proto = model(FORMS["quotient"], [3] if axis == -1 else [1], (7,) if axis == -1 else (6, 1, 1))
    x = (GENERATOR.standard_normal((2, 6, 5, 7)) + 5000).astype("float32")
    (found,) = tvm_ext.compile(proto, TARGET).run([x]).values()
    wide = x.astype("float64")
    left = wide - wide.mean(axis, keepdims=True)
    weight, bias = (numpy_helper.to_array(item) for item in proto.graph.initializer if item.name in ("w", "b"))
    wanted = left / np.sqrt((left**2).mean(axis, keepdims=True) + 1e-3) * weight + bias
    np.testing.assert_allclose(found, wanted, rtol=0, atol=3e-3)
