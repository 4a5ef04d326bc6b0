"""The forms in which the file of a network comes: floats, an open batch, or quantised by onnxruntime in four ways."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx

FORMS = ("float32", "float32", "open", "float16", "qdq", "qdq", "qoperator", "dynamic")

_SAMPLES = 3


def in_form(
    form: str, model: onnx.ModelProto, feeds: Mapping[str, np.ndarray], rng: np.random.Generator
) -> onnx.ModelProto:
    """Give a network in another form.

    Raises
    ------
    Exception
        Whatever onnxruntime's quantiser raises for a network that it cannot quantise.
    """
    if form == "open":
        return _with_open_batch(model)
    if form in ("qdq", "qoperator"):
        return _quantised(model, feeds, rng, operators=form == "qoperator")
    if form == "dynamic":
        return _dynamic(model, rng)
    return model


def _with_open_batch(model: onnx.ModelProto) -> onnx.ModelProto:
    batch = model.graph.input[0].type.tensor_type.shape.dim[0].dim_value
    for item in (*model.graph.input, *model.graph.output):
        first = item.type.tensor_type.shape.dim[0]
        if first.dim_value == batch:
            first.dim_param = "batch"
    return model


class _Samples:
    """Inputs to calibrate with: the one that is compared later, and others like it."""

    def __init__(self, feeds: Mapping[str, np.ndarray], rng: np.random.Generator) -> None:
        samples = [
            {name: rng.permutation(array.reshape(-1)).reshape(array.shape) for name, array in feeds.items()}
            for _ in range(_SAMPLES - 1)
        ]
        self._rest = iter([dict(feeds), *samples])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._rest, None)


def _quantised(
    model: onnx.ModelProto, feeds: Mapping[str, np.ndarray], rng: np.random.Generator, *, operators: bool
) -> onnx.ModelProto:
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static

    signed = bool(rng.random() < 0.5)
    extra: dict[str, Any] = {
        "ActivationSymmetric": bool(signed and rng.random() < 0.4),
        "AddQDQPairToWeight": bool(rng.random() < 0.2),
    }
    return _written(
        model,
        lambda source, target: quantize_static(
            source,
            target,
            _Samples(feeds, rng),
            quant_format=QuantFormat.QOperator if operators else QuantFormat.QDQ,
            activation_type=QuantType.QInt8 if signed else QuantType.QUInt8,
            weight_type=QuantType.QInt8 if signed or rng.random() < 0.8 else QuantType.QUInt8,
            per_channel=bool(rng.random() < 0.6),
            extra_options=extra,
        ),
    )


def _dynamic(model: onnx.ModelProto, rng: np.random.Generator) -> onnx.ModelProto:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    per_channel, kind = bool(rng.random() < 0.5), QuantType.QInt8 if rng.random() < 0.6 else QuantType.QUInt8
    return _written(
        model,
        lambda source, target: quantize_dynamic(source, target, per_channel=per_channel, weight_type=kind),
    )


def _written(model: onnx.ModelProto, quantise: Any) -> onnx.ModelProto:
    """Call the quantiser, which reads and writes files."""
    import tempfile
    from pathlib import Path

    level = logging.root.level
    logging.root.setLevel(logging.ERROR)
    try:
        with tempfile.TemporaryDirectory() as folder:
            source, target = Path(folder) / "float.onnx", Path(folder) / "quantised.onnx"
            onnx.save(model, source)
            quantise(source, target)
            return onnx.load(target)
    finally:
        logging.root.setLevel(level)
