"""Fourier transforms along open axes against NumPy in double precision."""

from __future__ import annotations

import numpy as np
import pytest

import tvm_ext
from tests.frontend.onnx.text import graph

SIZES = (1, 2, 3, 7, 17, 31, 33, 127)


@pytest.mark.parametrize("inverse", [0, 1])
def test_complex_samples(inverse: int) -> None:
    model = graph(
        "g (float[n,t,2] x) => (float[n,t,2] y, float[n,t,2] z) "
        f"{{ y = DFT<axis = 1, inverse = {inverse}>(x) z = DFT<axis = 0, inverse = {inverse}>(x) }}"
    )
    compiled = tvm_ext.compile(model, dynamic="*")
    transform = np.fft.ifft if inverse else np.fft.fft
    for count, length in zip((1, 3, 2, 5, 1, 17, 33, 2), SIZES, strict=True):
        x = np.random.default_rng(length).standard_normal((count, length, 2)).astype("float32")
        samples = x[..., 0].astype("complex128") + 1j * x[..., 1]
        for axis, found in zip((1, 0), compiled.run([x]).values(), strict=True):
            wanted = transform(samples, axis=axis)
            np.testing.assert_allclose(
                found[..., 0] + 1j * found[..., 1], wanted, rtol=2e-6, atol=2e-5, err_msg=str((axis, length))
            )


def test_real_samples() -> None:
    model = graph(
        "g (float[n,t,1] x) => (float[n,t,2] y, float[n,k,2] o, float[n,16,2] f) "
        "{ y = DFT<axis = 1>(x) o = DFT<axis = 1, onesided = 1>(x) f = DFT<axis = 1>(x, sixteen) }",
        sixteen=np.array(16),
    )
    compiled = tvm_ext.compile(model, dynamic="*")
    for length in SIZES:
        x = np.random.default_rng(length).standard_normal((2, length, 1)).astype("float32")
        samples = x[..., 0].astype("float64")
        wanted = (np.fft.fft(samples), np.fft.rfft(samples), np.fft.fft(samples, 16))
        for found, want in zip(compiled.run([x]).values(), wanted, strict=True):
            np.testing.assert_allclose(found[..., 0] + 1j * found[..., 1], want, atol=2e-5, err_msg=str(length))


def test_back_to_real_samples() -> None:
    model = graph("g (float[n,k,2] x) => (float[n,t,1] y) { y = DFT<inverse = 1, onesided = 1>(x) }", opset=20)
    compiled = tvm_ext.compile(model, dynamic="n=1..,k=2..")
    for frequencies in (2, 3, 7, 17, 64):
        x = np.random.default_rng(frequencies).standard_normal((3, frequencies, 2)).astype("float32")
        wanted = np.fft.irfft(x[..., 0].astype("complex128") + 1j * x[..., 1])
        (found,) = compiled.run([x]).values()
        np.testing.assert_allclose(found[..., 0], wanted, atol=2e-6)
