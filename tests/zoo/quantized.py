"""Models of the zoo quantised to 8 bits by onnxruntime's own tool, with quantize and dequantize nodes (QDQ)."""

from __future__ import annotations

import logging
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import version_converter

from tests.cpu import RUNTIME_SATURATES
from tests.zoo import get
from tests.zoo.entry import Entry

CALIBRATION_INPUTS = 2
OLDEST_OPSET = 13
"""Quantisation by channel needs it."""


def quantized(name: str, *, per_channel: bool = True, activations: str = "uint8", form: str = "QDQ") -> Entry:
    """Entry of a quantised model; built on first need and kept on disk like the others.

    Parameters
    ----------
    name : str
        Entry of the zoo to quantise. It is calibrated with inputs of seeds 1, 2, ...
    per_channel : bool
        One scale for each output channel of a weight, or one for all.
    activations : str
        "uint8" or "int8"; weights are int8.
    form : str
        "QDQ" or "QOperator".
    """
    entry = get(name)
    label = f"{name}_{activations}{'' if per_channel else '_tensor'}{'' if form == 'QDQ' else '_qop'}"
    build = partial(_quantize, entry, per_channel, activations, form)
    recipe = (*entry.recipe, Path(__file__))
    return replace(
        entry, name=label, build=build, module=None, recipe=recipe, needs=(*entry.needs, "onnxruntime"), draw=entry.draw
    )


class _Calibration:
    """Feeds the calibration inputs, as onnxruntime's tool wants them."""

    def __init__(self, entry: Entry) -> None:
        self._inputs = iter([entry.inputs(seed) for seed in range(1, CALIBRATION_INPUTS + 1)])

    def get_next(self) -> dict[str, np.ndarray] | None:
        """Give the next inputs, None at the end."""
        return next(self._inputs, None)


def _quantize(entry: Entry, per_channel: bool, activations: str, form: str) -> onnx.ModelProto:
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    CalibrationDataReader.register(_Calibration)
    logging.getLogger().setLevel(logging.ERROR)
    types = {"uint8": QuantType.QUInt8, "int8": QuantType.QInt8}
    with tempfile.TemporaryDirectory() as folder:
        original, prepared, result = (Path(folder) / f"{stage}.onnx" for stage in ("original", "prepared", "result"))
        onnx.save(_modern(entry.onnx_model()), original)
        quant_pre_process(str(original), str(prepared), skip_symbolic_shape=True)
        reader: Any = _Calibration(entry)
        quantize_static(
            str(prepared),
            str(result),
            reader,
            quant_format=QuantFormat[form],
            per_channel=per_channel,
            activation_type=types[activations],
            weight_type=QuantType.QInt8,
            reduce_range=RUNTIME_SATURATES,  # weights of 7 bits
        )
        return onnx.load(result)


def _modern(model: onnx.ModelProto) -> onnx.ModelProto:
    """Bring a model to an operator set that has quantisation by channel, and into a form worth quantising.

    Sums of two become additions: onnxruntime's tool does not quantise ``Sum``. A softmax at the end is left out, so
    that the outputs are logits: probabilities of made-up weights are all alike, and a step of 1/255 would hide them.
    """
    if any(item.domain in ("", "ai.onnx") and item.version < OLDEST_OPSET for item in model.opset_import):
        model = version_converter.convert_version(model, 17)
    for node in model.graph.node:
        if node.op_type == "Sum" and len(node.input) == 2:
            node.op_type = "Add"
    last = model.graph.node[-1]
    if last.op_type == "Softmax" and len(model.graph.output) == 1:
        model.graph.output[0].name = last.input[0]
        model.graph.node.remove(last)
    return model
