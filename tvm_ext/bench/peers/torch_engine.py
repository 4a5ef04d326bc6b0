"""PyTorch: the exported program run operator by operator, or compiled by ``torch.compile``; on the CPU in float32."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

if TYPE_CHECKING:
    from tvm_ext.bench.protocol import Facts, Job


def version() -> str:
    """Version of PyTorch."""
    return str(torch.__version__)


class Engine:
    """The module of an exported program with its arguments."""

    def __init__(self, job: Job) -> None:
        torch.set_num_threads(job["threads"])
        torch.set_num_interop_threads(1)
        start = time.perf_counter()
        device = torch.device(job["device"])
        if job["device"] == "cuda" and not torch.cuda.is_available():
            raise RuntimeError("this PyTorch computes on CPUs only; install one that was built for CUDA")
        program = torch.export.load(job["model"])
        if job["device"] == "cuda":
            from torch.export.passes import move_to_device_pass

            program = move_to_device_pass(program, device)
        self._module = program.module()
        if job["options"].get("compiled"):
            mode = "max-autotune" if job["device"] == "cuda" else None
            self._module = torch.compile(self._module, mode=mode, dynamic=True if job["ranges"] else None)
        self._is_on_gpu = job["device"] == "cuda"
        self.facts: Facts = {"import_seconds": time.perf_counter() - start, "compile_seconds": 0.0}
        tensors = [torch.from_numpy(array).to(device) for array in job["inputs"].values()]
        self._arguments, self._keywords = pytree.tree_unflatten(tensors, program.call_spec.in_spec)
        self._result: Any = None

    def run(self) -> None:
        """Call the module."""
        with torch.inference_mode():
            self._result = self._module(*self._arguments, **self._keywords)
        if self._is_on_gpu:
            torch.cuda.synchronize()

    def outputs(self) -> list[np.ndarray]:
        """Copy the outputs of the latest run."""
        return [value.cpu().numpy().copy() for value in pytree.tree_leaves(self._result) if value is not None]
