"""Decoders for other engines: torch models exported to ONNX, the cache as inputs and outputs, weights in blocks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from onnxruntime.quantization.matmul_nbits_quantizer import DefaultWeightOnlyQuantConfig, MatMulNBitsQuantizer

from tvm_ext.generation.definitions import Transformer
from tvm_ext.schedules.compute.weight_words import WeightFormat


class _Step(torch.nn.Module):
    """A decoder that takes and gives its cache as separate tensors, as exporters want it."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor, *past: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Compute logits of the last token, and the longer cache."""
        logits, cache = self.model(ids, list(zip(past[::2], past[1::2], strict=True)))
        return (logits[:, -1], *(part for pair in cache for part in pair))


def exported(model: Transformer, form: WeightFormat, past: int, file: Path) -> None:
    """Write a model that takes one token behind ``past`` others; integers in blocks of MatMulNBits."""
    config = model.config
    shape = 1, config.kv_heads, past, config.head_size
    cache = [torch.randn(shape) for _ in range(2 * config.layers)]
    names = [f"past{number}" for number in range(len(cache))]
    file.parent.mkdir(parents=True, exist_ok=True)
    torch.onnx.export(
        _Step(model), (torch.tensor([[5]]), *cache), str(file), dynamo=False, opset_version=17,
        input_names=["ids", *names], output_names=["logits", *(name.replace("past", "present") for name in names)],
    )  # fmt: skip
    if form.is_integer:
        settings = DefaultWeightOnlyQuantConfig(
            block_size=form.group, is_symmetric=form.symmetric, bits=form.bits, accuracy_level=4
        )
        quantizer = MatMulNBitsQuantizer(onnx.load(file), algo_config=settings)
        quantizer.process()
        onnx.save(quantizer.model.model, file)


def peers(file: Path, threads: int) -> dict[str, Callable[[], Any]]:
    """Load a model in each engine; gives what makes one step."""
    import openvino

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(file), options)
    rng = np.random.default_rng(0)
    feeds = {
        given.name: np.array([[5]]) if given.name == "ids" else rng.standard_normal(given.shape).astype("float32")
        for given in session.get_inputs()
    }
    compiled = openvino.Core().compile_model(
        str(file),
        "CPU",
        {
            "INFERENCE_NUM_THREADS": threads,
            "PERFORMANCE_HINT": "LATENCY",
            "NUM_STREAMS": 1,
            "INFERENCE_PRECISION_HINT": "f32",
        },
    )
    request = compiled.create_infer_request()
    request.infer(feeds)
    return {"onnxruntime": lambda: session.run(None, feeds), "openvino": lambda: request.infer()}
