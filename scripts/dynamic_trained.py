"""Trained models with the dimensions open that they are used with, and with ranges that one meets."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

import onnx

from tests.shapes.dynamic_model import DynamicModel
from tests.zoo.wheels import MINILM, RAPIDOCR, SILERO, Wheel

Limits = Mapping[str, tuple[int, int]]


def _named(
    wheel: Wheel, file: str, shapes: Mapping[str, Sequence[int | str]], limits: Limits, step: Mapping[str, int]
) -> DynamicModel:
    """Read a model, and give the dimensions of its inputs names."""
    model = onnx.load(wheel.path(file))
    for value in model.graph.input:
        for dim, extent in zip(value.type.tensor_type.shape.dim, shapes.get(value.name, ()), strict=False):
            if isinstance(extent, str):
                dim.dim_param = extent
            else:
                dim.dim_value = extent
    return DynamicModel(file, model, limits, shapes, {}, step)


def text_detector() -> DynamicModel:
    """PP-OCRv4: pictures of any size whose sides are multiples of 32."""
    limits = {"n": (1, 2), "h": (32, 224), "w": (32, 320)}
    shapes = {"x": ["n", 3, "h", "w"]}
    return _named(RAPIDOCR, "ch_PP-OCRv4_det_infer.onnx", shapes, limits, {"h": 32, "w": 32})


def text_recogniser() -> DynamicModel:
    """PP-OCRv4: lines of any width."""
    limits = {"n": (1, 3), "w": (32, 320)}
    return _named(RAPIDOCR, "ch_PP-OCRv4_rec_infer.onnx", {"x": ["n", 3, 48, "w"]}, limits, {"w": 8})


def voice_detector() -> DynamicModel:
    """silero-vad: any number of frames."""
    shapes = {"input": ["steps", 576], "h": [1, 1, 128], "c": [1, 1, 128]}
    return _named(SILERO, "silero_vad_16k_sequence.onnx", shapes, {"steps": (1, 40)}, {})


def sentence_encoder() -> DynamicModel:
    """MiniLM: sentences of any length, as PyTorch exports it."""
    import torch

    from tests.zoo.nets.full import trained_sentence_encoder

    module = trained_sentence_encoder(MINILM.path("model.safetensors"))
    names = ("input_ids", "attention_mask", "token_type_ids")
    examples = tuple(torch.full((1, 17), value) for value in (5, 1, 0))
    length = torch.export.Dim("length", min=2, max=128)
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    program = torch.onnx.export(
        module, examples, input_names=names, dynamo=True, dynamic_shapes=({1: length},) * 3, verbose=False
    )
    assert program is not None
    shapes = dict.fromkeys(names, (1, "length"))
    whole = {"input_ids": 30522, "attention_mask": 2, "token_type_ids": 2}
    return DynamicModel("minilm", program.model_proto, {"length": (2, 128)}, shapes, whole, {})


TRAINED_CASES: Mapping[str, tuple[Wheel, str, Callable[[], DynamicModel]]] = {
    "ppocr_det": (RAPIDOCR, "ch_PP-OCRv4_det_infer.onnx", text_detector),
    "ppocr_rec": (RAPIDOCR, "ch_PP-OCRv4_rec_infer.onnx", text_recogniser),
    "silero_vad_sequence": (SILERO, "silero_vad_16k_sequence.onnx", voice_detector),
    "minilm": (MINILM, "model.safetensors", sentence_encoder),
}
"""By name: the wheel and the file that have to be there, and what makes the case."""

TRAINED = {
    "ppocr_det": (RAPIDOCR, "ch_PP-OCRv4_det_infer.onnx", {"x": ["n", 3, "h", "w"]}),
    "ppocr_rec": (RAPIDOCR, "ch_PP-OCRv4_rec_infer.onnx", {"x": ["n", 3, 48, "w"]}),
    "ppocr_cls": (RAPIDOCR, "ch_ppocr_mobile_v2.0_cls_infer.onnx", {"x": ["n", 3, 48, "w"]}),
    "silero_vad_sequence": (SILERO, "silero_vad_16k_sequence.onnx", {"input": ["n", 576]}),
    "silero_vad_half": (SILERO, "silero_vad_half.onnx", {"input": ["n", 576], "state": [2, "n", 128]}),
    "silero_vad": (SILERO, "silero_vad.onnx", {"input": ["n", 576], "state": [2, "n", 128]}),
}
"""By name: the wheel, the file, and the shapes of the inputs, of models of whose shapes it is counted what is known."""
