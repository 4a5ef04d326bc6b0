"""Models on disk: the file, its inputs, and how it is compiled; small enough to be a test."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from scripts.fuzz.options import Options


def save(
    folder: Path, name: str, model: onnx.ModelProto, feeds: Mapping[str, np.ndarray], about: Mapping[str, Any]
) -> Path:
    """Write ``NAME.onnx``, with inputs as constants of metadata, and give its path.

    Parameters
    ----------
    folder : Path
    name : str
    model : onnx.ModelProto
    feeds : mapping from input name to array
    about : mapping
        ``options`` (of :class:`Options`, as a dictionary), and what else a reader should know; JSON.
    """
    folder.mkdir(parents=True, exist_ok=True)
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    del copy.metadata_props[:]
    tensors = {item: numpy_helper.from_array(array, item).SerializeToString().hex() for item, array in feeds.items()}
    for key, value in (("about", dict(about)), ("inputs", tensors)):
        copy.metadata_props.add(key=key, value=json.dumps(value, sort_keys=True))
    path = folder / f"{name}.onnx"
    path.write_bytes(copy.SerializeToString())
    return path


def load(path: Path) -> tuple[onnx.ModelProto, dict[str, np.ndarray], Options, dict[str, Any]]:
    """Read what :func:`save` wrote: model, inputs, options, and all that is said about it."""
    model = onnx.load(path)
    metadata = {item.key: json.loads(item.value) for item in model.metadata_props}
    del model.metadata_props[:]
    feeds = {}
    for name, text in metadata["inputs"].items():
        tensor = onnx.TensorProto()
        tensor.ParseFromString(bytes.fromhex(text))
        feeds[name] = numpy_helper.to_array(tensor)
    about = metadata["about"]
    return model, feeds, Options(**about["options"]), about


def about(options: Options, **more: Any) -> dict[str, Any]:
    """Make what :func:`save` writes about a model."""
    return {"options": asdict(options), **more}
