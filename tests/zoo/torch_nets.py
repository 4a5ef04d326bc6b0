"""Nets defined in torch: at the sizes of the papers with made-up weights, and the trained all-MiniLM-L6-v2."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from tests.zoo.entry import Entry, Family
from tests.zoo.inputs import padding_mask, picture, tokens
from tests.zoo.wheels import MINILM

Inputs = dict[str, np.ndarray]
_NETS = Path(__file__).parent / "nets"
_VOCABULARY = 30522


def _image(shape: tuple[int, ...], name: str, rng: np.random.Generator) -> Inputs:
    return {name: picture(rng, shape)}


def _pair(rng: np.random.Generator) -> Inputs:
    """Two sentences in one row, as BERT takes them: token types 0 and 1."""
    types = (np.arange(128) >= rng.integers(20, 60)).astype(np.int64)[None]
    return {**_sentence(rng), "token_type_ids": types}


def _sentence(rng: np.random.Generator) -> Inputs:
    return {"input_ids": tokens(rng, 1, 128, _VOCABULARY), "attention_mask": padding_mask(rng, 1, 128)}


def _one_sentence(rng: np.random.Generator) -> Inputs:
    return {**_sentence(rng), "token_type_ids": np.zeros((1, 128), np.int64)}


def _prompt(rng: np.random.Generator) -> Inputs:
    return {"input_ids": tokens(rng, 1, 64, 50257)}


def _full_net(name: str) -> Any:
    from tests.zoo.nets.full import full_net

    return full_net(name)


def _minilm() -> Any:
    from tests.zoo.nets.full import trained_sentence_encoder

    return trained_sentence_encoder(MINILM.path("model.safetensors"))


def export_onnx(module: Any, inputs: Inputs, outputs: tuple[str, ...]) -> onnx.ModelProto:
    """Export a torch module to ONNX (opset 18, fixed shapes), weights inside.

    Parameters
    ----------
    module : torch.nn.Module
        In evaluation mode.
    inputs : dict of str to numpy.ndarray
        Example inputs in the order of the module's arguments.
    outputs : tuple of str
        Names for the outputs.
    """
    import torch

    examples = tuple(torch.from_numpy(value) for value in inputs.values())
    # The exporter tells of operator libraries that are not installed; none of the nets uses them.
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        program = torch.onnx.export(
            module,
            examples,
            dynamo=True,
            opset_version=18,
            input_names=list(inputs),
            output_names=list(outputs),
            verbose=False,
        )
    assert program is not None
    buffer = io.BytesIO()
    program.save(buffer, external_data=False)
    return onnx.load_from_string(buffer.getvalue())


def _build(
    module: Callable[[], Any], draw: Callable[[np.random.Generator], Inputs], outputs: tuple[str, ...]
) -> onnx.ModelProto:
    return export_onnx(module(), draw(np.random.default_rng(0)), outputs)


def _entry(
    name: str,
    family: Family,
    draw: Callable[[np.random.Generator], Inputs],
    *sources: str,
    outputs: tuple[str, ...] = ("logits",),
    slow: bool = False,
) -> Entry:
    module = partial(_full_net, name)
    return Entry(
        name,
        family,
        "torch",
        build=partial(_build, module, draw, outputs),
        draw=draw,
        module=module,
        needs=("torch", "onnxscript"),
        recipe=(Path(__file__), *(_NETS / f"{source}.py" for source in ("initial", "full", *sources))),
        slow=slow,
    )


_BIG_PICTURE = partial(_image, (1, 3, 224, 224), "image")
_STATES = ("last_hidden_state", "pooler_output")

ENTRIES = [
    _entry("resnet18", "cnn", _BIG_PICTURE, "layers", "resnet", slow=True),
    _entry("mobilenet_v2", "cnn", _BIG_PICTURE, "layers", "mobilenet"),
    _entry("efficientnet_b0", "cnn", _BIG_PICTURE, "layers", "efficientnet"),
    _entry("vgg16", "cnn", _BIG_PICTURE, "vgg", slow=True),
    _entry("unet", "cnn", partial(_image, (1, 3, 256, 256), "image"), "layers", "unet", slow=True),
    _entry("c3d", "cnn", partial(_image, (1, 3, 16, 112, 112), "clip"), "c3d", slow=True),
    _entry("bert_base", "transformer", _pair, "bert", outputs=_STATES, slow=True),
    _entry("tinybert", "transformer", _pair, "bert", outputs=_STATES),
    _entry("distilbert", "transformer", _sentence, "bert", outputs=_STATES[:1], slow=True),
    _entry("gpt2", "transformer", _prompt, "gpt2", slow=True),
    _entry("darts", "irregular", partial(_image, (1, 3, 32, 32), "image"), "darts", slow=True),
    _entry("randwire_er", "irregular", _BIG_PICTURE, "layers", "randwire", slow=True),
    _entry("randwire_ba", "irregular", _BIG_PICTURE, "layers", "randwire", slow=True),
    _entry("randwire_ws", "irregular", _BIG_PICTURE, "layers", "randwire", slow=True),
    Entry(
        "minilm",
        "transformer",
        "trained",
        build=partial(_build, _minilm, _one_sentence, ("sentence_embedding",)),
        draw=_one_sentence,
        module=_minilm,
        needs=("torch", "onnxscript", "safetensors"),
        files=(partial(MINILM.path, "model.safetensors"),),
        recipe=(Path(__file__), _NETS / "full.py", _NETS / "bert.py"),
        slow=True,
    ),
]
