"""One size under two names: operands that do not fit each other are refused before a kernel reads past one of them."""

from __future__ import annotations

import numpy as np
import pytest

import tvm_ext
from tests.frontend.onnx.text import graph
from tvm_ext.dynamic import open_dimensions
from tvm_ext.errors import InputError
from tvm_ext.frontend.onnx.operator_graph import operator_graph
from tvm_ext.shapes.propagate import propagate

onnxruntime = pytest.importorskip("onnxruntime")

CONDITIONS = {
    "s = ScatterElements(x, i, u)": ("float[9,3] x, int64[k,3] i, float[a,3] u", {"a == k"}),
    "s = ScatterElements<axis = 1>(x, i, u)": ("float[a,3] x, int64[k,3] i, float[k,3] u", {"k <= a"}),
    "s = GatherElements<axis = -1>(x, i)": ("float[a,b,3] x, int64[a,k,3] i", {"k <= b"}),
    "s = GatherElements(x, i)": ("float[a,3] x, int64[k,3] i", set()),
    "s = GatherND<batch_dims = 1>(x, i)": ("float[a,3] x, int64[k,1] i", {"k == a"}),
    "s = ScatterND(x, i, u)": ("float[9,a] x, int64[k,1] i, float[b,c] u", {"b == k", "c == a"}),
    "s = RoiAlign(x, r, i)": ("float[2,3,9,9] x, float[a,4] r, int64[k] i", {"k == a"}),
    "s = NonMaxSuppression(x, r)": ("float[a,b,4] x, float[k,2,l] r", {"k == a", "l == b"}),
    "s = ReverseSequence<batch_axis = 0, time_axis = 1>(x, i)": ("float[a,9] x, int64[k] i", {"k == a"}),
    "s = GridSample(x, r)": ("float[a,3,9,9] x, float[k,4,4,2] r", {"k == a"}),
    "s = ConvTranspose(x, w, u)": ("float[1,a,9] x, float[k,b,3] w, float[c] u", {"k == a", "c == b"}),
    "s = Conv(x, w, u)": ("float[1,3,9] x, float[b,3,3] w, float[c] u", {"c == b"}),
    "s = Gemm<transA = 1, transB = 1>(x, w, u)": ("float[3,a] x, float[b,3] w, float[k,l] u", {"k == a", "l == b"}),
    "s = Gemm(x, w, u)": ("float[a,3] x, float[3,b] w, float[1,l] u", {"l == b"}),
    "s = LayerNormalization(x, w, u)": ("float[2,a] x, float[k] w, float[1] u", {"k == a"}),
    "s = InstanceNormalization(x, w, u)": ("float[2,a,3] x, float[k] w, float[k] u", {"k == a"}),
    "s = MaxUnpool<kernel_shape = [2]>(x, i)": ("float[1,a,4] x, int64[1,k,4] i", {"k == a"}),
    "s = DequantizeLinear<axis = -2>(x, w, u)": ("uint8[a,3] x, float[k] w, uint8[l] u", {"k == a", "l == k"}),
    's = Einsum<equation = "ki, ij -> kj">(x, w)': ("float[2,a] x, float[k,3] w", {"k == a"}),
    's = Einsum<equation = "...ii -> ...i">(x)': ("float[2,a,k] x", {"k == a"}),
    's = Einsum<equation = "b...i, ib -> ...">(x, w)': ("float[a,9,b] x, float[k,l] w", {"k == b", "l == a"}),
    "s, t = GRU<hidden_size = 4, layout = 1>(x, w, r, , i, u)": (
        "float[a,9,3] x, float[1,12,3] w, float[1,12,4] r, int32[k] i, float[l,1,4] u",
        {"k == a", "l == a"},
    ),
    "s, t = LSTM<hidden_size = 4>(x, w, r, , , h, u)": (
        "float[9,a,3] x, float[1,16,3] w, float[1,16,4] r, float[1,k,4] h, float[1,l,4] u",
        {"k == a", "l == a"},
    ),
}


@pytest.mark.parametrize("node", CONDITIONS)
def test_what_extents_have_to_do_with_each_other(node: str) -> None:
    inputs, wanted = CONDITIONS[node]
    found = propagate(operator_graph(graph(f"g ({inputs}) => (float[] s) {{ {node} }}"), open_dimensions("*=0..")))
    assert set(found.conditions) == wanted


def test_what_the_ranges_say_is_no_condition() -> None:
    model = graph("g (float[a,3] x, int64[k,2] i) => (float[k,2] s) { s = GatherElements<axis = 1>(x, i) }")
    assert not propagate(operator_graph(model, open_dimensions("a=8..,k=1..8"))).conditions


COMPILED = {
    "scatter": "g (float[5,3] x, int64[k,3] i, float[a,3] u) => (float[5,3] y) { y = ScatterElements(x, i, u) }",
    "gather": "g (float[5,a] x, int64[3,k] i) => (float[3,k] y) { y = GatherElements(x, i) }",
    "einsum": "g (int64[k,3] i, float[a,3] u) => (float[3] y) "
    '{ x = Cast<to = 1>(i) y = Einsum<equation = "kj,kj->j">(x, u) }',
    "branch": "g (bool c, float[5,a] x, int64[3,k] i) => (float[p,q] y) { y = If(c) <"
    "then_branch = t () => (s) { s = GatherElements(x, i) }, else_branch = e () => (r) { r = Cast<to = 1>(i) }> }",
}


@pytest.mark.parametrize("name", COMPILED)
def test_operands_that_do_not_fit_are_refused(name: str) -> None:
    model = graph(COMPILED[name])
    compiled, session = tvm_ext.compile(model, dynamic="*"), onnxruntime.InferenceSession(model.SerializeToString())
    rng = np.random.default_rng(0)
    for a, k in ((3, 3), (1, 1), (17, 17), (3, 4000)):
        sizes = {"a": a, "k": k}
        feeds = {}
        for value in model.graph.input:
            shape = [sizes.get(dim.dim_param, dim.dim_value) for dim in value.type.tensor_type.shape.dim]
            kind = value.type.tensor_type.elem_type
            feeds[value.name] = {
                1: rng.standard_normal(shape).astype("float32"), 7: rng.integers(0, 5, shape), 9: np.array(True)
            }[kind]  # fmt: skip
        if a != k:
            with pytest.raises(InputError):
                compiled.run(feeds)
        else:
            np.testing.assert_allclose(compiled.run(feeds)["y"], session.run(None, feeds)[0], rtol=1e-5, atol=1e-6)
    if name == "branch":  # what is not run need not fit
        np.testing.assert_array_equal(compiled.run({**feeds, "c": np.array(False)})["y"], feeds["i"])


@pytest.mark.parametrize(("dynamic", "asked"), [("n=3..", "k=3"), ("n=2..", "k=-1")])
def test_elements_that_are_always_there_are_picked_without_sorting_all(dynamic: str, asked: str) -> None:
    model = graph(
        "g (float[n,4] x) => (float[3,4] y, int64[3,4] z) { y, z = TopK<axis = 0>(x, three) }", three=np.array([3])
    )
    assert asked in tvm_ext.import_model(model, dynamic=dynamic).mod.script()


def test_more_elements_than_there_are_by_an_open_size() -> None:
    model = graph("g (float[n] x, float[m] o) => (float[m] y, int64[m] z) { k = Shape(o) y, z = TopK(x, k) }")
    compiled = tvm_ext.compile(model, dynamic="*")
    x = np.random.default_rng(0).standard_normal(7).astype("float32")
    np.testing.assert_array_equal(compiled.run({"x": x, "o": x[:5]})["y"], np.sort(x)[:1:-1])
    with pytest.raises(InputError, match="m <= n"):
        compiled.run({"x": x[:5], "o": x})
