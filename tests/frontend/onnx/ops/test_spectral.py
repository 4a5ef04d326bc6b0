"""Fourier transforms, windows and mel weights against numpy, onnxruntime and the onnx package's stored results."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.frontend.onnx.ops.harness import (
    check_stored,
    check_with_onnxruntime,
    import_with_converters,
    node_model,
    run_module,
    stored_cases,
)
from tvm_ext.errors import ModelError, UnsupportedOperatorError
from tvm_ext.frontend.onnx.ops import spectral

pytest.importorskip("onnxruntime")

CASES = [
    (case, after)
    for modules, after in (
        (["dft", "stft"], 1),
        (["hannwindow", "hammingwindow", "blackmanwindow", "melweightmatrix"], 0),
    )
    for case in stored_cases(modules)
    if not case.model_name.endswith("_expanded")
]


@pytest.mark.parametrize(("case", "constants_after"), CASES, ids=lambda value: getattr(value, "model_name", ""))
def test_stored_result(case, constants_after):
    check_stored(case, constants_after)


def complex_parts(spectrum):
    return np.stack([spectrum.real, spectrum.imag], -1)


def dft(x, axis, length=None, opset=20, **attributes):
    values = {"input": x, "dft_length": None if length is None else np.int64(length), "axis": np.int64(axis)}
    if opset < 20:
        attributes["axis"] = int(values.pop("axis"))
    model = node_model("DFT", values, ["output"], attributes, ("dft_length", "axis"), opset=opset)
    return model, values


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_dft_agrees_with_numpy(data):
    shape = data.draw(st.lists(st.sampled_from([1, 2, 7, 8, 9, 31, 33]), min_size=1, max_size=3), "shape")
    axis = data.draw(st.integers(0, len(shape) - 1), "axis")
    length = data.draw(st.sampled_from([None, 1, 6, 17, 40]), "length")
    inverse = data.draw(st.booleans(), "inverse")
    kind = data.draw(st.sampled_from(["real", "complex", "onesided"]), "kind")
    real = kind == "real" or (kind == "onesided" and not inverse)
    random = np.random.default_rng(0)
    x = random.standard_normal((*shape, 1 if real else 2)).astype("float32")
    signal = x[..., 0] if real else x[..., 0] + 1j * x[..., 1]
    if kind == "onesided":
        if inverse and length is None and shape[axis] == 1:
            return
        function = np.fft.irfft if inverse else np.fft.rfft
    else:
        function = np.fft.ifft if inverse else np.fft.fft
    expected = function(signal, length, axis)
    expected = expected[..., None] if kind == "onesided" and inverse else complex_parts(expected)
    model, _ = dft(x, axis, length, inverse=int(inverse), onesided=int(kind == "onesided"))
    found = run_module(import_with_converters(model), [x])[0]
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * max(1.0, np.abs(expected).max()))


@pytest.mark.parametrize("opset", [17, 20])
def test_dft_agrees_with_onnxruntime(opset):
    x = np.random.default_rng(0).standard_normal((2, 12, 2)).astype("float32")
    model, values = dft(x, 1, opset=opset, inverse=1)
    check_with_onnxruntime(model, values)


@pytest.mark.parametrize(("length", "parts"), [(2 * 3 * 5, 1), (64, 2), (7 * 11, 2), (2 * 13, 1)])
@pytest.mark.parametrize("inverse", [0, 1])
def test_long_transforms_are_split(length, parts, inverse, monkeypatch):
    """The limit is lowered so that small lengths take the path of the large ones."""
    monkeypatch.setattr(spectral, "_SPLIT_ABOVE", 100)
    x = np.random.default_rng(1).standard_normal((3, length, parts)).astype("float32")
    model, _ = dft(x, 1, inverse=inverse)
    found = run_module(import_with_converters(model), [x])[0]
    signal = x[..., 0] if parts == 1 else x[..., 0] + 1j * x[..., 1]
    expected = complex_parts((np.fft.ifft if inverse else np.fft.fft)(signal, axis=1))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_real_long_transform_keeps_its_half(monkeypatch):
    monkeypatch.setattr(spectral, "_SPLIT_ABOVE", 100)
    x = np.random.default_rng(1).standard_normal((1, 60, 1)).astype("float32")
    model, _ = dft(x, 1, onesided=1)
    found = run_module(import_with_converters(model), [x])[0]
    np.testing.assert_allclose(found, complex_parts(np.fft.rfft(x[..., 0])), rtol=1e-4, atol=1e-4)


def test_large_prime_is_refused(monkeypatch):
    monkeypatch.setattr(spectral, "_SPLIT_ABOVE", 100)
    monkeypatch.setattr(spectral, "_REFUSE_ABOVE", 1000)
    model, _ = dft(np.zeros((1, 101, 1), "float32"), 1)
    with pytest.raises(UnsupportedOperatorError, match=r"prime length 101 is too large"):
        import_with_converters(model)


def test_onesided_complex_input_is_named():
    model, _ = dft(np.zeros((1, 8, 2), "float32"), 1, onesided=1)
    with pytest.raises(ModelError, match=r"needs a real input, the last dimension is 2"):
        import_with_converters(model)


@pytest.mark.parametrize("onesided", [0, 1])
@pytest.mark.parametrize(
    ("samples", "length", "step", "window"), [(100, 16, 8, True), (33, 9, 4, False), (20, 20, 1, True)]
)
def test_stft_agrees_with_onnxruntime(onesided, samples, length, step, window):
    random = np.random.default_rng(2)
    values = {
        "signal": random.standard_normal((2, samples, 1)).astype("float32"),
        "frame_step": np.int64(step),
        "window": random.random(length).astype("float32") if window else None,
        "frame_length": np.int64(length),
    }
    constants = ("frame_step", "window", "frame_length")
    model = node_model("STFT", values, ["output"], {"onesided": onesided}, constants)
    check_with_onnxruntime(model, values, rtol=1e-3, atol=1e-4)


def test_stft_of_a_complex_signal():
    random = np.random.default_rng(3)
    x = random.standard_normal((1, 30, 2)).astype("float32")
    values = {"signal": x, "frame_step": np.int64(5), "window": None, "frame_length": np.int64(10)}
    model = node_model("STFT", values, ["output"], {"onesided": 0}, ("frame_step", "frame_length"))
    found = run_module(import_with_converters(model), [x])[0]
    signal = x[0, :, 0] + 1j * x[0, :, 1]
    expected = np.stack([np.fft.fft(signal[begin : begin + 10]) for begin in range(0, 21, 5)])
    np.testing.assert_allclose(found[0], complex_parts(expected), rtol=1e-4, atol=1e-4)


def test_stft_frame_longer_than_the_signal_is_named():
    values = {"signal": np.zeros((1, 8, 1), "float32"), "frame_step": np.int64(2), "window": np.ones(9, "float32")}
    model = node_model("STFT", values, ["output"], constants=("frame_step",))
    with pytest.raises(ModelError, match=r"frames of 9 every 2 samples do not fit a signal of 8"):
        import_with_converters(model)


@pytest.mark.parametrize("operator", ["HannWindow", "HammingWindow", "BlackmanWindow"])
@pytest.mark.parametrize("periodic", [0, 1])
@pytest.mark.parametrize("size", [2, 7, 400])
def test_windows_agree_with_onnxruntime(operator, periodic, size):
    values = {"size": np.int64(size)}
    model = node_model(operator, values, ["y"], {"periodic": periodic}, ("size",), output_types=[np.float32])
    check_with_onnxruntime(model, values)


@pytest.mark.parametrize(
    "sizes", [(8, 64, 8000, 0.0, 4000.0), (40, 400, 16000, 20.0, 7600.0), (80, 512, 22050, 0.0, 8000.0)]
)
def test_mel_weights_agree_with_onnxruntime(sizes):
    names = ("num_mel_bins", "dft_length", "sample_rate", "lower_edge_hertz", "upper_edge_hertz")
    values = {
        name: np.asarray(value, "float32" if isinstance(value, float) else "int64")
        for name, value in zip(names, sizes, strict=True)
    }
    model = node_model("MelWeightMatrix", values, ["y"], constants=names, output_types=[np.float32])
    check_with_onnxruntime(model, values, atol=1e-6)


def test_computed_size_is_refused():
    model = node_model("HannWindow", {"size": np.int64(4)}, ["y"], output_types=[np.float32])
    with pytest.raises(UnsupportedOperatorError, match=r"input size is computed in the graph, a constant is needed"):
        import_with_converters(model)
