"""Rearrangements, norms and resizing by open extents give what onnxruntime gives, at awkward sizes."""

from __future__ import annotations

import numpy as np
import pytest

import tvm_ext
from tests.frontend.onnx.text import graph
from tests.shapes.test_open_operators import check
from tvm_ext.errors import InputError

PAIRS = ((1, 1), (2, 3), (3, 2), (7, 17), (31, 33), (127, 1), (1, 127))


@pytest.mark.parametrize("offset", [0, 2, -1])
def test_diagonals(offset: int) -> None:
    body = f"y = EyeLike<k = {offset}>(x) z = EyeLike<dtype = 7, k = {offset}>(x)"
    check(graph(f"g (float[n,m] x) => (float[n,m] y, int64[n,m] z) {{ {body} }}"), *({"x": pair} for pair in PAIRS))


@pytest.mark.parametrize("axis", [0, 1])
def test_sequences_are_reversed(axis: int) -> None:
    attributes = f"batch_axis = {axis}, time_axis = {1 - axis}"
    model = graph(f"g (float[n,t,2] x, int64[m] l) => (float[n,t,2] y) {{ y = ReverseSequence<{attributes}>(x, l) }}")
    compiled = tvm_ext.compile(model, dynamic="*")
    for pair in PAIRS:
        rng = np.random.default_rng(pair[0])
        x = rng.random((*pair, 2)).astype("float32")
        lengths = rng.integers(0, pair[1 - axis] + 1, pair[axis])
        wanted = np.moveaxis(x.copy(), axis, 0)
        for row, length in zip(wanted, lengths, strict=True):
            row[:length] = row[:length][::-1].copy()
        (found,) = compiled.run([x, lengths]).values()
        np.testing.assert_array_equal(found, np.moveaxis(wanted, 0, axis))


def test_blocks_to_channels() -> None:
    model = graph("g (float[n,3,h,w] x) => (float[n,12,p,q] y) { y = SpaceToDepth<blocksize = 2>(x) }")
    check(model, *({"x": (n, 3, 2 * h, 2 * w)} for n, h, w in ((1, 1, 1), (2, 3, 7), (1, 17, 31), (3, 2, 127))))
    with pytest.raises(InputError, match="do not fit together"):
        tvm_ext.compile(model, dynamic="*").run([np.zeros((1, 3, 5, 4), "float32")])


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_the_largest_of_an_axis(axis: int) -> None:
    model = graph(f"g (float[n,m] x) => (float[n,m] y) {{ y = Hardmax<axis = {axis}>(x) }}")
    check(model, *({"x": pair} for pair in PAIRS))
    old = graph(f"g (float[n,m,3] x) => (float[n,m,3] y) {{ y = Hardmax<axis = {max(axis, 0)}>(x) }}", opset=11)
    check(old, *({"x": (*pair, 3)} for pair in PAIRS))


def test_norms_over_open_axes() -> None:
    model = graph(
        "g (float[n,6,h,w] x) => (float[n,6,h,w] y, float[n,1,1,1] m, float[n,1,1,1] i, float[n,6,h,w] z) "
        "{ y, m, i = LayerNormalization<axis = 1>(x, s, b) z = LayerNormalization<axis = -1>(x, s, b) }",
        s=np.array([1.5], "float32"),
        b=np.array([-0.25], "float32"),
    )
    check(model, *({"x": (n, 6, h, w)} for n, h, w in ((1, 1, 2), (2, 3, 7), (1, 17, 31), (3, 127, 2))))


@pytest.mark.parametrize("coordinates", ["half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel"])
def test_cubic_resizing(coordinates: str) -> None:
    attributes = f'mode = "cubic", coordinate_transformation_mode = "{coordinates}"'
    model = graph(
        "g (float[n,2,h,w] x, float[2,p,q] like) => (float[n,2,a,b] y, float[n,2,c,d] z) {"
        " nc = Shape<end = 2>(x) pq = Shape<start = 1>(like) to = Concat<axis = 0>(nc, pq)"
        f" y = Resize<{attributes}, cubic_coeff_a = -0.5>(x, , , to) z = Resize<{attributes}>(x, , scales) }}",
        opset=18,
        scales=np.array([1, 1, 1.5, 2], "float32"),
    )
    sizes = ((1, 1, 1, 1, 1), (2, 2, 3, 7, 5), (1, 17, 31, 33, 7), (3, 5, 4, 2, 127))
    check(model, *({"x": (n, 2, h, w), "like": (2, p, q)} for n, h, w, p, q in sizes))


def test_window_functions() -> None:
    names = ("HannWindow", "HammingWindow", "BlackmanWindow")
    body = "".join(f" w{k} = {name}<periodic = {k % 2}>(c) y{k} = Mul(x, w{k})" for k, name in enumerate(names))
    model = graph(f"g (float[n] x) => (float[n] y0, float[n] y1, float[n] y2) {{ s = Shape(x) c = Squeeze(s){body} }}")
    check(model, *({"x": (n,)} for n in (2, 3, 7, 17, 31, 33, 127)))


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_cubic_sampling_of_open_pictures(padding: str) -> None:
    attributes = f'mode = "cubic", padding_mode = "{padding}"'
    model = graph(
        f"g (float[n,2,h,w] x, float[n,p,q,2] at) => (float[n,2,p,q] y) {{ y = GridSample<{attributes}>(x, at) }}", 20
    )
    sizes = ((1, 1, 1, 1, 1), (2, 2, 3, 1, 2), (1, 17, 31, 33, 2), (7, 3, 3, 5, 5))
    check(model, *({"x": (n, 2, h, w), "at": (n, p, q, 2)} for n, h, w, p, q in sizes))


@pytest.mark.parametrize("end", [2**63 - 1, 2**62, 2**31, 2**31 - 1])
def test_slices_to_the_end(end: int) -> None:
    bounds = {"start": np.array([5]), "end": np.array([end]), "axis": np.array([1])}
    model = graph("g (float[n,s,8] x) => (float[n,t,8] y) { y = Slice(x, start, end, axis) }", **bounds)
    check(model, *({"x": (2, length, 8)} for length in (1, 5, 6, 17, 127)))
