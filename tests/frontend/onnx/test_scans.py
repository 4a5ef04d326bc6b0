"""Scans that stay in the compiled module, against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest

import tvm_ext
from tests.frontend.onnx.test_loops import TARGET, check, check_compiled, draw, no_unrolling  # noqa: F401
from tests.frontend.onnx.text import graph
from tvm_ext.errors import InputError


@pytest.mark.parametrize("opset", [9, 11, 13, 17])
def test_scan(opset: int) -> None:
    text = """g (float[2] h0, float[2,6] a, float[6] b) => (float[2] h, float[2,6] ys, float[6] zs) {
      h, ys, zs = Scan <num_scan_inputs = 2, scan_input_axes = [1, 0], scan_input_directions = [0, 1],
        scan_output_axes = [1, 0], scan_output_directions = [0, 1],
        body = step (float[2] s, float[2] x, float w) => (float[2] t, float[2] y, float z) {
          p = Mul (s, w)
          t = Add (p, x)
          y = Identity (t)
          z = Neg (w)
        }> (h0, a, b)
    }"""
    check(graph(text, opset), {"h0": draw(2), "a": draw(2, 6), "b": draw(6)})


def test_scan_with_a_batch_axis() -> None:
    text = """g (float[3,2] h0, float[3,5,2] xs) => (float[3,2] h, float[3,5,2] ys) {
      h, ys = Scan <num_scan_inputs = 1, body = step (float[2] s, float[2] x) => (float[2] t, float[2] y) {
          t = Add (s, x)
          y = Mul (t, s)
        }> (, h0, xs)
    }"""
    check(graph(text, 8), {"h0": draw(3, 2), "xs": draw(3, 5, 2)})


OPEN_SCAN = """g (float[2] h0, float[2,n] a, float[n] b) => (float[2] h, float[2,n] ys, float[n] zs) {
      h, ys, zs = Scan <num_scan_inputs = 2, scan_input_axes = [1, 0], scan_input_directions = [0, 1],
        scan_output_axes = [1, 0], scan_output_directions = [0, 1],
        body = step (float[2] s, float[2] x, float w) => (float[2] t, float[2] y, float z) {
          p = Mul (s, w)
          t = Add (p, x)
          y = Identity (t)
          z = Neg (w)
        }> (h0, a, b)
    }"""


@pytest.mark.parametrize("limits", ["n=0..130", pytest.param("n=0..", marks=pytest.mark.slow)])
def test_scan_of_open_length(limits: str) -> None:
    model = graph(OPEN_SCAN, 17)
    compiled = tvm_ext.compile(model, TARGET, dynamic=limits)
    for length in (1, 2, 3, 17, 31, 127, 128):
        check_compiled(compiled, model, {"h0": draw(2), "a": draw(2, length) / 8, "b": draw(length)})
    empty = compiled.run({"h0": draw(2), "a": draw(2, 0), "b": draw(0)})
    np.testing.assert_array_equal(empty["h"], draw(2))
    assert [empty[name].shape for name in ("ys", "zs")] == [(2, 0), (0,)]


def test_scan_of_lengths_that_differ() -> None:
    model = graph(OPEN_SCAN.replace("float[n] b", "float[m] b"), 17)
    compiled = tvm_ext.compile(model, TARGET, dynamic="n=1..20,m=1..20")
    check_compiled(compiled, model, {"h0": draw(2), "a": draw(2, 5), "b": draw(5)})
    with pytest.raises(InputError):
        compiled.run({"h0": draw(2), "a": draw(2, 5), "b": draw(7)})
