"""Trained models from wheels: text recognition (PP-OCRv4) and voice detection (silero-vad)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from tests.zoo import inputs
from tests.zoo.entry import Entry, Family
from tests.zoo.wheels import RAPIDOCR, SILERO, Wheel

Inputs = dict[str, np.ndarray]
# One frame of silero-vad at 16 kHz: 64 samples of the frame before, then 512 new ones.
_FRAME, _STATE = 576, (2, 1, 128)


def _detection(rng: np.random.Generator) -> Inputs:
    return {"x": inputs.page_of_digits(rng, 320, 320)[None]}


def _line(width: int, rng: np.random.Generator) -> Inputs:
    return {"x": inputs.digits_line(rng, 48, width)[0][None]}


def _frame(rng: np.random.Generator) -> Inputs:
    return {
        "input": inputs.speech(rng, _FRAME)[None],
        "state": rng.normal(0, 0.3, _STATE).astype(np.float32),
    }


def _frame_and_rate(rng: np.random.Generator) -> Inputs:
    return {**_frame(rng), "sr": np.array(16000, np.int64)}


def _frame_rate_state(rng: np.random.Generator) -> Inputs:
    drawn = _frame_and_rate(rng)
    return {name: drawn[name] for name in ("input", "sr", "state")}


def _frames(rng: np.random.Generator) -> Inputs:
    sound = inputs.speech(rng, 64 + 8 * 512)
    return {
        "input": np.stack([sound[start : start + _FRAME] for start in range(0, 8 * 512, 512)]),
        "h": rng.normal(0, 0.3, (1, 1, 128)).astype(np.float32),
        "c": rng.normal(0, 0.3, (1, 1, 128)).astype(np.float32),
    }


def _entry(
    name: str,
    family: Family,
    wheel: Wheel,
    file: str,
    draw: Callable[[np.random.Generator], Inputs],
    tolerance: float = 1e-4,
) -> Entry:
    return Entry(
        name, family, "trained", build=None, draw=draw, files=(partial(wheel.path, file),), tolerance=tolerance
    )


ENTRIES = [
    _entry("ppocr_det", "cnn", RAPIDOCR, "ch_PP-OCRv4_det_infer.onnx", _detection, tolerance=2e-3),
    # Nearly all of its 265,000 outputs are 0 and a few are 1: the deviation, 0.012, is small next to rounding errors.
    _entry("ppocr_rec", "cnn", RAPIDOCR, "ch_PP-OCRv4_rec_infer.onnx", partial(_line, 320), tolerance=3e-3),
    _entry("ppocr_cls", "cnn", RAPIDOCR, "ch_ppocr_mobile_v2.0_cls_infer.onnx", partial(_line, 192)),
    _entry("silero_vad", "audio", SILERO, "silero_vad.onnx", _frame_and_rate),
    _entry("silero_vad_op15", "audio", SILERO, "silero_vad_16k_op15.onnx", _frame_and_rate),
    _entry("silero_vad_sequence", "audio", SILERO, "silero_vad_16k_sequence.onnx", _frames),
    _entry("silero_vad_half", "audio", SILERO, "silero_vad_half.onnx", _frame),
    _entry("silero_vad_ifless", "audio", SILERO, "silero_vad_op18_ifless.onnx", _frame_rate_state),
    _entry("silero_vad_openvino", "audio", SILERO, "silero_vad_openvino_16k.onnx", _frame),
]
