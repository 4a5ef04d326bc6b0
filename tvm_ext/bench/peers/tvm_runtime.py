"""What both TVM engines share: reading the model and running it in the Relax virtual machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import relax

from tvm_ext.bench.protocol import Job, ModelKind
from tvm_ext.frontend import ImportedModel, import_model


def read(job: Job) -> ImportedModel:
    """Import the model of a job as it says."""
    return read_model(job["kind"], job["model"], job["importing"])


def read_model(kind: ModelKind, path: str | Path, importing: Mapping[str, Any]) -> ImportedModel:
    """Import the file of a model with keyword arguments of :func:`tvm_ext.frontend.import_model`."""
    model = tvm.ir.load_json(Path(path).read_text(encoding="utf-8")) if kind == "ir" else path
    return import_model(model, **importing)


class Machine:
    """A compiled module in the virtual machine, with its arguments."""

    def __init__(self, executable: Any, job: Job) -> None:
        device = tvm.device(job["device"])
        self._main = relax.VirtualMachine(executable, device)["main"]
        self._waits_for = None if job["device"] == "cpu" else device
        self._arguments = [tvm.runtime.tensor(array, device) for array in job["inputs"].values()]
        self._result: Any = None

    def run(self) -> None:
        """Call ``main``; on a GPU wait once, for all of it."""
        self._result = self._main(*self._arguments)
        if self._waits_for is not None:
            self._waits_for.sync()

    def outputs(self) -> list[np.ndarray]:
        """Copy the outputs of the latest run."""
        return [value.numpy() for value in _tensors(self._result)]


def _tensors(value: Any) -> Iterator[Any]:
    if isinstance(value, tvm.runtime.Tensor):
        yield value
    else:
        for item in value:
            yield from _tensors(item)
