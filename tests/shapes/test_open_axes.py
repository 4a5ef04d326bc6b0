"""Operators of open axes that a run could change the rank of, and pictures of open size made of windows and maps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tvm_ext
from tests.frontend.onnx.text import graph
from tests.shapes.test_open_operators import check
from tvm_ext.errors import InputError

onnxruntime = pytest.importorskip("onnxruntime")

SIZES = ((1, 1, 3, 3), (2, 3, 7, 9), (3, 2, 17, 8), (1, 5, 31, 33), (7, 1, 4, 5))


def agree(model: Any, *feeds: dict[str, np.ndarray], dynamic: str | None = "*") -> tvm_ext.CompiledModel:
    """Compare for inputs whose values matter."""
    compiled = tvm_ext.compile(model, dynamic=dynamic)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for given in feeds:
        for want, got in zip(session.run(None, given), compiled.run(given).values(), strict=True):
            assert (want.shape, want.dtype) == (got.shape, got.dtype)
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    return compiled


@pytest.mark.parametrize("opset", [11, 17])
def test_squeezing_without_axes_keeps_open_dimensions(opset: int) -> None:
    model = graph("g (float[n,1,4] x) => (float y) { a = Squeeze(x) y = Neg(a) }", opset)
    compiled = agree(model, *({"x": np.ones((n, 1, 4), "float32")} for n in (2, 3, 33)), dynamic="n=1..40")
    with pytest.raises(InputError, match=r"input x: n = 1 where .* n != 1"):
        compiled.run({"x": np.ones((1, 1, 4), "float32")})
    imported = tvm_ext.import_model(model, dynamic="n=1..40")
    assert any("sizes with n == 1 are refused" in note for note in imported.notes)
    assert not tvm_ext.import_model(model, dynamic="n=2..40").conditions
    named = tvm_ext.compile(model, input_shapes={"x": ["n", 1, 4]})
    assert named.run({"x": np.ones((5, 1, 4), "float32")})["y"].shape == (5, 4)
    with pytest.raises(InputError, match="n != 1"):
        named.run({"x": np.ones((1, 1, 4), "float32")})


@pytest.mark.parametrize("shape", ["n", "8"])
def test_squeezing_what_only_a_run_counts(shape: str) -> None:
    model = graph(f"g (float[{shape}] x) => (int64 y) {{ a = NonZero(x) y = Squeeze(a) }}")
    given = np.array([0, 1, 2, 0, 3, 0, 0, 0], "float32")
    compiled = agree(model, {"x": given}, {"x": 0 * given}, dynamic="*" if shape == "n" else None)
    with pytest.raises(InputError, match="a dimension of its input 'a' is 1 in this run"):
        compiled.run({"x": np.eye(8, dtype="float32")[0]})


def test_squeezing_an_open_axis_wants_it_to_be_one() -> None:
    model = graph("g (float[n,m,4] x) => (float[n,4] y) { a = Squeeze(x, one) y = Neg(a) }", one=np.array([1]))
    check(model, {"x": (1, 1, 4)}, {"x": (7, 1, 4)})
    with pytest.raises(InputError, match="m == 1"):
        tvm_ext.compile(model, dynamic="*").run({"x": np.ones((3, 2, 4), "float32")})


@pytest.mark.parametrize("attributes", ["", "pads = [1, 1, 1, 1], ceil_mode = 1, ", "storage_order = 1, "])
def test_places_of_maxima_in_open_pictures(attributes: str) -> None:
    model = graph(
        "g (float[n,c,h,w] x) => (float[n,c,p,q] y, int64[n,c,p,q] i) "
        f"{{ y, i = MaxPool<{attributes}kernel_shape = [3, 3], strides = [2, 1]>(x) }}"
    )
    rng = np.random.default_rng(0)
    agree(model, *({"x": np.round(rng.standard_normal(size)).astype("float32")} for size in SIZES))


def test_unpooling_open_pictures() -> None:
    window = "kernel_shape = [2, 2], strides = [2, 2]"
    model = graph(
        f"g (float[n,2,h,w] x) => (float[n,2,p,q] z) {{ y, i = MaxPool<{window}>(x) z = MaxUnpool<{window}>(y, i) }}"
    )
    check(model, *({"x": (n, 2, 2 * h, 2 * w)} for n, _, h, w in SIZES))


def test_pictures_of_open_columns() -> None:
    model = graph(
        "g (float[n,12,l] x, float[h,w] r) => (float[n,3,h,w] y) "
        "{ s = Shape(r) y = Col2Im<pads = [1, 0, 1, 0]>(x, s, block) }",
        18,
        block=np.array([2, 2]),
    )
    check(model, *({"x": (n, 12, (h + 1) * (w - 1)), "r": (h, w)} for n, _, h, w in SIZES))


@pytest.mark.parametrize("aligned", [0, 1])
def test_maps_of_open_pictures(aligned: int) -> None:
    model = graph(
        "g (float[n,2,3] t, float[n,c,h,w] r) => (float[n,h,w,2] y) "
        f"{{ s = Shape(r) y = AffineGrid<align_corners = {aligned}>(t, s) }}",
        20,
    )
    sizes = (*SIZES, (2, 1, 1, 5), (1, 1, 3, 1))
    check(model, *({"t": (size[0], 2, 3), "r": size} for size in sizes))


def test_transforms_to_a_computed_length() -> None:
    model = graph(
        "g (float[n,t,1] x) => (float[n,f,2] y, float[n,k,1] z) { s = Shape<start = 1, end = 2>(x) l = Squeeze(s) "
        "m = Add(l, three) y = DFT<axis = 1, onesided = 1>(x, m) z = DFT<axis = 1, onesided = 1, inverse = 1>(y, m) }",
        19,
        three=np.array(3),
    )
    compiled = tvm_ext.compile(model, dynamic="*")
    for n, t in ((1, 1), (2, 4), (3, 8), (1, 33)):
        x = np.random.default_rng(t).standard_normal((n, t, 1)).astype("float32")
        y, z = compiled.run({"x": x}).values()
        want = np.fft.rfft(x[..., 0], t + 3)
        np.testing.assert_allclose(y, np.stack([want.real, want.imag], -1), rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(z[..., 0], np.fft.irfft(want, t + 3), rtol=1e-4, atol=1e-5)


def test_padding_what_transforms_give() -> None:
    """As long convolutions do, one after the other: a padding that is computed keeps extents that are known."""
    model = graph(
        "g (float[n,t,1] x) => (float[n,k,2] y) { s = Shape<start = 1, end = 2>(x) l = Squeeze(s) "
        "d = DFT<axis = 1, onesided = 1>(x, l) r = DFT<axis = 1, onesided = 1, inverse = 1>(d, l) "
        "w = Concat<axis = 0>(zero, s) p = Pad(r, w, level, one) v = Pad(x, w, level, one) "
        "f = DFT<axis = 1, onesided = 1>(p) g = DFT<axis = 1, onesided = 1>(v) y = Mul(f, g) }",
        19,
        zero=np.array([0]),
        one=np.array([1]),
        level=np.float32(0),
    )
    compiled = tvm_ext.compile(model, dynamic="*")
    for n, t in ((1, 1), (2, 4), (3, 9)):
        x = np.random.default_rng(t).standard_normal((n, t, 1)).astype("float32")
        (y,) = compiled.run({"x": x}).values()
        want = np.fft.rfft(x[..., 0], 2 * t)
        np.testing.assert_allclose(y, np.stack([want.real, want.imag], -1) ** 2, rtol=1e-3, atol=1e-4)


def test_halves_of_any_image_come_together() -> None:
    """Half of a size, doubled, may be 0 where the size is 1, which no run has."""
    model = graph(
        "g (float[n,4,h,w] x) => (float[n,4,h,w] y) { c = Conv<kernel_shape = [2, 2], strides = [2, 2]>(x, k) "
        "d = DepthToSpace<blocksize = 2>(c) a = Add(x, d) "
        "y = AveragePool<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(a) }",
        k=np.random.default_rng(0).standard_normal((16, 4, 2, 2)).astype("float32"),
    )
    check(model, *({"x": (n, 4, h, w)} for n, h, w in ((1, 8, 6), (3, 2, 4), (2, 32, 18))))
    with pytest.raises(InputError, match="h = 7 where the model needs"):
        tvm_ext.compile(model, dynamic="*").run({"x": np.zeros((1, 4, 7, 8), "float32")})


def test_mel_bands_of_open_length() -> None:
    model = graph(
        "g (float[t] x) => (float[f,20] y) { s = Shape(x) l = Squeeze(s) "
        "y = MelWeightMatrix(bins, l, rate, low, high) }",
        bins=np.array(20),
        rate=np.array(8000),
        low=np.float32(20),
        high=np.float32(4000),
    )
    check(model, *({"x": (t,)} for t in (200, 256, 400, 1024)))
