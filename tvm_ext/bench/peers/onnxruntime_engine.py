"""onnxruntime on the CPU or a GPU, float32, all graph optimisations on (its default); torch goes through torch.onnx.

Its option ``exact`` keeps products of integers from saturating on x86 without VNNI, where they take longer then.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # read at import; it would write to the user's cache, and report
import onnxruntime

if TYPE_CHECKING:
    from tvm_ext.bench.protocol import Facts, Job


def version() -> str:
    """Version of onnxruntime."""
    return str(onnxruntime.__version__)


CUDA = "CUDAExecutionProvider"


class Engine:
    """An inference session with inputs and outputs bound once."""

    def __init__(self, job: Job) -> None:
        is_on_gpu = job["device"] == "cuda"
        if is_on_gpu and CUDA not in onnxruntime.get_available_providers():
            raise RuntimeError("this onnxruntime computes on CPUs only; pip install onnxruntime-gpu in its place")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = job["threads"]
        options.inter_op_num_threads = 1
        options.log_severity_level = 4
        if job["options"].get("exact"):
            options.add_session_config_entry("session.x64quantprecision", "1")
        # Shapes that TVM compiles for are told to the session, which can plan memory and fold shape arithmetic by them.
        for name, value in job["dimensions"].items():
            options.add_free_dimension_override_by_name(name, value)
        start = time.perf_counter()
        with tempfile.TemporaryDirectory(prefix="tvm-ext-bench-") as folder:
            path = job["model"] if job["kind"] == "onnx" else _export(job["model"], Path(folder))
            imported = time.perf_counter()
            self._session = onnxruntime.InferenceSession(
                path, options, providers=[*([CUDA] if is_on_gpu else []), "CPUExecutionProvider"]
            )
        self.facts: Facts = {
            "import_seconds": imported - start,
            "compile_seconds": time.perf_counter() - imported,
        }
        # By position: torch.onnx may rename inputs. An ONNX session lists them as the file does, as the job does.
        names = [value.name for value in self._session.get_inputs()]
        self._binding = self._session.io_binding()
        for name, array in zip(names, job["inputs"].values(), strict=True):
            self._binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(array, job["device"], 0))
        for output in self._session.get_outputs():
            self._binding.bind_output(output.name, job["device"])
        self._is_on_gpu = is_on_gpu

    def run(self) -> None:
        """Run the session."""
        self._session.run_with_iobinding(self._binding)
        if self._is_on_gpu:
            self._binding.synchronize_outputs()

    def outputs(self) -> list[np.ndarray]:
        """Copy the outputs of the latest run."""
        return [np.array(value) for value in self._binding.copy_outputs_to_cpu()]


def _export(path: str, folder: Path) -> str:
    """Write a saved torch program as ONNX."""
    import torch

    target = str(folder / "model.onnx")
    torch.onnx.export(torch.export.load(path), (), target, dynamo=True, verbose=False)
    return target
