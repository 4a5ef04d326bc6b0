"""Decoders in other engines: what makes one step of an exported model behind a cache of a fixed number of tokens."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime


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
