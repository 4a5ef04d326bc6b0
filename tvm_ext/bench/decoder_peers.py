"""Decoders in other engines: the weights of one model in plain torch, and exported from there to ONNX.

In the exported model the cache is among inputs and outputs and grows with each token, and integer weights are blocks
of ``MatMulNBits``. All of them compute in float32 with the weights that the integers stand for.
"""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

import importlib
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tvm_ext.generation.decoder import Decoder
from tvm_ext.generation.definitions import Transformer
from tvm_ext.generation.quantization import dequantized, quantized
from tvm_ext.schedules.compute.weight_words import WeightFormat

Step = Callable[[np.ndarray], np.ndarray]
"""Takes ids in behind those before, and gives the logits of the next token."""


_FLOATS = ("embed", "router", "shared_gate")
"""Parts of names of matrices that stay floats."""


class _Step(torch.nn.Module):
    """A decoder that takes and gives its cache as separate tensors, as exporters want it."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor, *past: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Compute logits of the last token, and the longer cache."""
        logits, cache = self.model(ids, list(zip(past[::2], past[1::2], strict=True)))
        return (logits[:, -1], *(part for pair in cache for part in pair))


def module_of(decoder: Decoder) -> Transformer:
    """Put weights into a module of torch."""
    model = Transformer(decoder.config, decoder.biases)
    names = model.state_dict()
    given = {name: torch.tensor(np.asarray(decoder.weights[name], "float32")) for name in names}
    model.load_state_dict(given)
    return model.eval()


def rounded(model: Transformer, form: WeightFormat) -> Transformer:
    """Round the weights of products as they are kept when a decoder is compiled; embeddings stay as they are."""
    if not form.is_integer:
        return model
    with torch.no_grad():
        for name, value in model.named_parameters():
            if value.ndim < 2 or any(part in name for part in _FLOATS):
                continue
            for matrix in value if value.ndim == 3 else value[None]:  # of each expert
                meant = dequantized(*quantized(np.ascontiguousarray(matrix.numpy().T), form), form)
                matrix.copy_(torch.tensor(meant.T))
    return model


def exported(model: Transformer, form: WeightFormat, past: int | None, file: Path) -> None:
    """Write a model to ONNX, with integers in blocks of ``MatMulNBits``.

    Parameters
    ----------
    model : Transformer
    form : WeightFormat
    past : int or None
        Tokens in the cache that it takes one more behind; None: any number behind any number.
    file : Path
    """
    config = model.config
    shape = 1, config.kv_heads, 3 if past is None else past, config.head_size
    cache = [torch.randn(shape) for _ in range(2 * config.layers)]
    names = [f"past{number}" for number in range(len(cache))]
    results = [name.replace("past", "present") for name in names]
    axes: dict[str, dict[int, str]] = {}
    if past is None:
        axes = {"ids": {1: "tokens"}, **{name: {2: "past"} for name in names}, **{name: {2: "all"} for name in results}}
    file.parent.mkdir(parents=True, exist_ok=True)
    torch.onnx.export(
        _Step(model), (torch.tensor([[5]] if past is not None else [[5, 6]]), *cache), str(file), dynamo=False,
        opset_version=17, input_names=["ids", *names], output_names=["logits", *results], dynamic_axes=axes,
    )  # fmt: skip
    if form.is_integer:
        onnx = importlib.import_module("onnx")
        quantizer = importlib.import_module("onnxruntime.quantization.matmul_nbits_quantizer")
        settings = quantizer.DefaultWeightOnlyQuantConfig(
            block_size=form.group, is_symmetric=form.symmetric, bits=form.bits, accuracy_level=4
        )
        packed = quantizer.MatMulNBitsQuantizer(onnx.load(file), algo_config=settings)
        packed.process()
        size = sum(len(tensor.raw_data) for tensor in packed.model.model.graph.initializer)
        onnx.save(packed.model.model, file, save_as_external_data=size > 1 << 30)


def torch_decoder(decoder: Decoder, form: WeightFormat, threads: int) -> Callable[[], Step]:
    """Load a decoder into torch; gives what begins a sequence."""
    torch.set_num_threads(threads)
    model = rounded(module_of(decoder), form)

    def begin() -> Step:
        past: Any = None

        @torch.no_grad()
        def step(ids: np.ndarray) -> np.ndarray:
            nonlocal past
            logits, past = model(torch.tensor(ids[None]), past)
            result: np.ndarray = logits[0, -1].numpy()
            return result

        return step

    return begin


def onnxruntime_decoder(decoder: Decoder, form: WeightFormat, threads: int) -> Callable[[], Step]:
    """Load a decoder into onnxruntime; gives what begins a sequence. The cache is handed on without copies."""
    onnxruntime = importlib.import_module("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    with tempfile.TemporaryDirectory(prefix="tvm-ext-bench-") as folder:
        file = Path(folder) / "decoder.onnx"
        exported(module_of(decoder), form, None, file)
        session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_outputs()]
    value_of = onnxruntime.OrtValue.ortvalue_from_numpy

    def begin() -> Step:
        past = {name: value_of(empty) for name, empty in _empty_cache(decoder).items()}

        def step(ids: np.ndarray) -> np.ndarray:
            logits, *cache = session.run_with_ort_values(names, {"ids": value_of(ids[None]), **past})
            past.update(zip(past, cache, strict=True))
            result: np.ndarray = logits.numpy()[0]
            return result

        return step

    return begin


def openvino_decoder(decoder: Decoder, form: WeightFormat, threads: int) -> Callable[[], Step]:
    """Load a decoder into OpenVINO; gives what begins a sequence."""
    openvino = importlib.import_module("openvino")
    with tempfile.TemporaryDirectory(prefix="tvm-ext-bench-") as folder:
        file = Path(folder) / "decoder.onnx"
        exported(module_of(decoder), form, None, file)
        settings = {
            "INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": 1,
            "INFERENCE_PRECISION_HINT": "f32",
        }  # fmt: skip
        compiled = openvino.Core().compile_model(str(file), "CPU", settings)
    request = compiled.create_infer_request()

    def begin() -> Step:
        past: dict[str, Any] = dict(_empty_cache(decoder))

        def step(ids: np.ndarray) -> np.ndarray:
            logits, *cache = request.infer({"ids": ids[None], **past}).values()
            past.update(zip(past, cache, strict=True))
            result: np.ndarray = logits[0]
            return result

        return step

    return begin


def _empty_cache(decoder: Decoder) -> Mapping[str, np.ndarray]:
    config = decoder.config
    empty = np.zeros((1, config.kv_heads, 0, config.head_size), "float32")
    return {f"past{number}": empty for number in range(2 * config.layers)}
