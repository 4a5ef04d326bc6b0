"""OpenVINO on the CPU, tuned for latency, held to float32 (by itself it picks bfloat16 where the CPU has it).

Its option ``precision`` is the value of its own ``INFERENCE_PRECISION_HINT``: ``"f32"`` or ``"bf16"``.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]  # it would report this run from the user's machine
import openvino  # noqa: E402

if TYPE_CHECKING:
    from tvm_ext.bench.protocol import Facts, Job


def version() -> str:
    """Version of OpenVINO."""
    return str(openvino.__version__).partition("-")[0]


class Engine:
    """One inference request on a model compiled for the shapes of the inputs, or for the ranges that they may have."""

    def __init__(self, job: Job) -> None:
        core = openvino.Core()
        start = time.perf_counter()
        model = _read(core, job)
        ports = _ports(model, job)
        model.reshape({port: _extents(array, job["ranges"].get(name)) for port, name, array in ports})
        imported = time.perf_counter()
        settings = {
            "INFERENCE_PRECISION_HINT": job["options"].get("precision", "f32"),
            "INFERENCE_NUM_THREADS": job["threads"],
            "PERFORMANCE_HINT": "LATENCY",
            "NUM_STREAMS": 1,
        }
        compiled = core.compile_model(model, "CPU", settings)
        self.facts: Facts = {
            "import_seconds": imported - start,
            "compile_seconds": time.perf_counter() - imported,
        }
        self._request = compiled.create_infer_request()
        for position, (*_, array) in enumerate(ports):
            self._request.set_input_tensor(position, openvino.Tensor(array))
        self._outputs = len(compiled.outputs)

    def run(self) -> None:
        """Run the request."""
        self._request.infer()

    def outputs(self) -> list[np.ndarray]:
        """Copy the outputs of the latest run."""
        return [np.array(self._request.get_output_tensor(index).data) for index in range(self._outputs)]


def _read(core: Any, job: Job) -> Any:
    if job["kind"] == "onnx":
        return core.read_model(job["model"])
    import torch

    return openvino.convert_model(torch.export.load(job["model"]))


def _ports(model: Any, job: Job) -> list[tuple[Any, str, np.ndarray]]:
    """Pair each input of the model with its name in the job, and its array.

    By name for ONNX, by position for torch, which keeps no names.
    """
    inputs = job["inputs"]
    if job["kind"] == "onnx":
        named = {port: next(name for name in inputs if name in port.names) for port in model.inputs}
    else:
        named = dict(zip(model.inputs, inputs, strict=True))
    return [(port, name, inputs[name]) for port, name in named.items()]


def _extents(array: np.ndarray, ranges: Sequence[tuple[int, int | None] | None] | None) -> Any:
    """Give the shape that a model is compiled for, with ranges for its open extents."""
    if ranges is None:
        return list(array.shape)
    limits = [(extent, extent) if kept is None else kept for extent, kept in zip(array.shape, ranges, strict=True)]
    return openvino.PartialShape([openvino.Dimension(low, -1 if high is None else high) for low, high in limits])
