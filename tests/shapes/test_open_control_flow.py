"""Loops, scans and branches over tensors of open shape give what onnxruntime gives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest

import tvm_ext
from tests.cpu import LARGEST_WEIGHT
from tests.frontend.onnx.text import graph

onnxruntime = pytest.importorskip("onnxruntime")

RNG = np.random.default_rng(3)
WEIGHT = (RNG.standard_normal((4, 4)) / 2).astype("float32")


def floats(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype("float32")


def check(model: onnx.ModelProto, dynamic: str, *feeds: Mapping[str, Any]) -> None:
    """Compare a model with onnxruntime for several inputs."""
    compiled = tvm_ext.compile(model, dynamic=dynamic)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for given in feeds:
        for want, got in zip(session.run(None, given), compiled.run(given).values(), strict=True):
            assert (want.shape, want.dtype) == (got.shape, got.dtype)
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_loop_with_a_state_of_open_shape() -> None:
    model = graph(
        """g (float[n,4] x, int64 count) => (float[n,4] y) {
          y = Loop (count, go, x) <body = b (int64 i, bool c, float[n,4] s) => (bool d, float[n,4] t)
            { d = Identity (c) p = MatMul (s, weight) t = Tanh (p) }>
        }""",
        weight=WEIGHT,
        go=np.asarray(True),
    )
    sizes = ((1, 3), (7, 0), (33, 1), (17, 6))
    check(model, "n=1..40", *({"x": floats(n, 4), "count": np.asarray(count)} for n, count in sizes))


def test_loop_that_stacks_rows_of_open_shape() -> None:
    model = graph(
        """g (float[t,b,k] x, float[b,k] first) => (float[b,k] y, float[t,k,b] rows) {
          shape = Shape <start = 0, end = 1> (x)
          count = Squeeze (shape)
          y, rows = Loop (count, go, first) <body = b (int64 i, bool c, float[b,k] s)
            => (bool d, float[b,k] t, float[k,b] row)
            { d = Identity (c) r = Gather <axis = 0> (x, i) a = Add (s, r) t = Relu (a) row = Transpose (t) }>
        }""",
        go=np.asarray(True),
    )
    sizes = ((1, 1, 1), (3, 2, 5), (17, 1, 3), (9, 7, 2))
    check(model, "t=1..20,b=1..9,k=1..9", *({"x": floats(t, b, k), "first": floats(b, k)} for t, b, k in sizes))


def test_loop_that_ends_by_itself_and_stacks() -> None:
    model = graph(
        """g (float[n,3] x) => (float[n,3] y, float[q,n,3] rows) {
          y, rows = Loop (limit, go, x) <body = b (int64 i, bool c, float[n,3] s)
            => (bool d, float[n,3] t, float[n,3] row)
            { t = Mul (s, half) row = Neg (t) most = ReduceMax <keepdims = 0> (t) d = Greater (most, least) }>
        }""",
        half=np.float32(0.5), least=np.float32(0.05), limit=np.asarray(7), go=np.asarray(True),
    )  # fmt: skip
    check(model, "n=1..40", *({"x": scale * np.abs(floats(n, 3))} for n, scale in ((1, 1), (7, 0.1), (17, 1), (33, 9))))


def test_scan_backwards_with_states_of_open_shape() -> None:
    model = graph(
        """g (float[n,3] first, float[t,n,3] x) => (float[n,3] last, float[t,n,3] y) {
          last, y = Scan <num_scan_inputs = 1, scan_input_directions = [1], scan_output_directions = [1],
            body = b (float[n,3] s, float[n,3] r) => (float[n,3] u, float[n,3] v)
            { a = Add (s, r) u = Tanh (a) v = Mul (u, r) }> (first, x)
        }"""
    )
    sizes = ((1, 1), (3, 7), (17, 2), (5, 20))
    check(model, "n=1..20,t=1..20", *({"first": floats(n, 3), "x": floats(t, n, 3)} for n, t in sizes))


def test_branches_of_different_open_shapes() -> None:
    model = graph(
        """g (float[n,4] x, float[m,4] other) => (float[r,4] z) {
          sum = ReduceSum <keepdims = 0> (x)
          c = Greater (sum, nought)
          y = If (c) <
            then_branch = a () => (float[p,4] t) { t = Slice (x, start, two) },
            else_branch = b () => (float[q,4] e) { e = Concat <axis = 0> (x, other) }
          >
          p = MatMul (y, weight)
          mean = ReduceMean <axes = [0]> (p)
          z = Sub (p, mean)
        }""",
        nought=np.float32(0), start=np.array([0]), two=np.array([2]), weight=WEIGHT,
    )  # fmt: skip
    feeds = [
        {"x": sign * np.abs(floats(n, 4)), "other": floats(m, 4)}
        for n, m in ((1, 1), (3, 7), (17, 2))
        for sign in (1, -1)
    ]
    check(model, "n=1..20,m=1..9", *feeds)


def test_integer_products_of_open_rows() -> None:
    model = graph(
        """g (float[b,s,33] x) => (float[b,s,17] y) {
          q, scale, zero = DynamicQuantizeLinear (x)
          total = MatMulInteger (q, weight, zero)
          f = Cast <to = 1> (total)
          all = Mul (scale, step)
          y = Mul (f, all)
        }""",
        weight=RNG.integers(-LARGEST_WEIGHT, LARGEST_WEIGHT + 1, (33, 17)).astype("int8"), step=np.float32(0.01),
    )  # fmt: skip
    check(model, "b=1..4,s=1..70", *({"x": floats(b, s, 33)} for b, s in ((1, 1), (3, 7), (2, 31), (1, 64))))


@pytest.mark.parametrize(("axis", "opset"), [(1, 15), (-2, 13)])
def test_loop_that_joins_a_tensor_with_a_piece(axis: int, opset: int) -> None:
    """As often as an extent says: the pieces are stacked, and joined behind the loop."""
    model = graph(
        f"""g (float[t,n,4] x) => (float[n,a,4] y, float[n,4] last) {{
          shape = Shape (x)
          steps = Gather (shape, zero)
          first = Gather (x, zero)
          e = Unsqueeze (first, one)
          y, last = Loop (steps, go, e, first) <body = b (int64 i, bool c, float[n,p,4] s, float[n,4] h)
            => (bool d, float[n,q,4] r, float[n,4] k)
            {{ d = Identity (c) v = Gather (x, i) m = MatMul (h, weight) w = Add (m, v) k = Tanh (w)
               u = Unsqueeze (k, one) r = Concat <axis = {axis}> (s, u) }}>
        }}""",
        opset,
        weight=WEIGHT,
        go=np.asarray(True),
        zero=np.array(0),
        one=np.array([1]),
    )
    check(model, "*", *({"x": floats(t, n, 4)} for t, n in ((1, 1), (2, 3), (7, 5), (33, 1), (3, 17))))


def test_loop_that_joins_more_often_than_it_is_unrolled() -> None:
    model = graph(
        """g (float[n,4] x) => (float[m,4] y) {
          y, last = Loop (many, go, x, piece) <body = b (int64 i, bool c, float[p,4] s, float[2,4] h)
            => (bool d, float[q,4] r, float[2,4] k)
            { d = Identity (c) m = MatMul (h, weight) k = Tanh (m) r = Concat <axis = 0> (s, k) }>
        }""",
        weight=WEIGHT,
        go=np.asarray(True),
        many=np.array(300),
        piece=np.ones((2, 4), "float32"),
    )
    check(model, "n=0..9", *({"x": floats(n, 4)} for n in (0, 1, 7)))
