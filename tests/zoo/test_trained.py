"""The trained models do what they were trained for, on the inputs of the zoo."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.zoo import ZOO, inputs, need, trained


def _session(name: str, *, optimised: bool = True) -> Any:
    onnxruntime = pytest.importorskip("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if not optimised:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(str(need(name).onnx_path()), options, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("seed", range(3))
def test_recogniser_reads_the_digits(seed: int) -> None:
    session = _session("ppocr_rec")
    image, text = inputs.digits_line(np.random.default_rng(seed), 48, 320)
    (scores,) = session.run(None, {"x": image[None]})
    characters = ["", *session.get_modelmeta().custom_metadata_map["character"].split("\n")]
    best = scores[0].argmax(axis=-1)
    read = "".join(characters[now] for before, now in zip([0, *best], best, strict=False) if now != before)
    assert len(text) == 8
    assert read == text


def test_detector_finds_the_lines() -> None:
    page = need("ppocr_det").inputs()["x"]
    (found,) = _session("ppocr_det").run(None, {"x": page})
    assert found.shape == (1, 1, 320, 320)
    text_rows = (found[0, 0].max(axis=1) > 0.6).astype(int)
    line_starts = np.flatnonzero(np.diff(text_rows) == 1)
    assert len(line_starts) == 3
    inked = page[0].mean(axis=0) < 0
    assert found[0, 0][inked].mean() > 5 * found.mean()


def test_direction_classifier_sees_a_line_upside_down() -> None:
    session = _session("ppocr_cls")
    upright, _ = inputs.digits_line(np.random.default_rng(0), 48, 192, text="4347")
    turned = np.ascontiguousarray(upright[:, ::-1, ::-1])
    (probability,) = session.run(None, {"x": np.stack([upright, turned])})
    np.testing.assert_allclose(probability.sum(axis=1), 1, atol=1e-5)
    assert np.abs(probability[0] - probability[1]).max() > 0.5


def test_voice_detectors_hear_more_voice_in_speech_than_in_silence() -> None:
    session = _session("silero_vad_openvino")
    speech, silence = inputs.speech(np.random.default_rng(0), 64 + 16 * 512), np.zeros(64 + 16 * 512, np.float32)
    heard = []
    for sound in (speech, silence):
        state, last = np.zeros((2, 1, 128), np.float32), 0.0
        for start in range(0, 16 * 512, 512):
            output, state = session.run(None, {"input": sound[None, start : start + 576], "state": state})
            last = max(last, float(output[0, 0]))
        heard.append(last)
    assert heard[0] > 2 * heard[1]


@pytest.mark.parametrize("name", [entry.name for entry in trained.ENTRIES if entry.tolerance > 1e-4])
def test_a_wide_tolerance_is_the_models_own_rounding_noise(name: str) -> None:
    drawn = need(name).inputs()
    (one,) = _session(name).run(None, drawn)
    (other,) = _session(name, optimised=False).run(None, drawn)
    noise = np.abs(one - other).max() / one.std()
    assert 1e-4 < noise < ZOO[name].tolerance
