"""What the parent of a benchmark and its workers say to each other.

Everything crosses the pipe as plain dictionaries, lists, strings, numbers and numpy arrays, so that a worker can answer
without importing this package.
"""

from __future__ import annotations

from typing import Any, Literal, Protocol, TypedDict

import numpy as np

ModelKind = Literal["onnx", "pt2", "ir"]


class Job(TypedDict):
    """What an engine is asked to prepare.

    Attributes
    ----------
    model : str
        Path of the model file.
    kind : {"onnx", "pt2", "ir"}
        ONNX, a saved ``torch.export.ExportedProgram``, or a Relax module as TVM's JSON.
    inputs : dict of str to numpy.ndarray
        One array per model input, in the order of the model.
    dimensions : dict of str to int
        Value of each symbolic dimension that has a name; of none that stays open.
    importing : dict
        Keyword arguments of :func:`tvm_ext.frontend.import_model`; read by the TVM engines only.
    ranges : dict of str to list
        For inputs with open extents, for each axis the least and the largest extent (None for no limit), or None where
        it has the extent of the array. Empty where every engine compiles for the shapes of the arrays.
    threads : int
        Threads to compute with, the calling thread included.
    target : str
        TVM target as JSON; read by the TVM engines only.
    device : {"cpu", "cuda"}
        Where to compute.
    options : dict
        Options of the engine: keyword arguments of ``tvm_ext.compile`` for ``tvm_ext``, what its row says for others.
    """

    model: str
    kind: ModelKind
    inputs: dict[str, np.ndarray]
    dimensions: dict[str, int]
    importing: dict[str, Any]
    ranges: dict[str, list[tuple[int, int | None] | None]]
    threads: int
    target: str
    device: str
    options: dict[str, Any]


class Facts(TypedDict, total=False):
    """What an engine can say about a model it has prepared (seconds, bytes, counts)."""

    import_seconds: float
    compile_seconds: float
    planned_bytes: int
    kernels: int
    kernel_calls: int
    notes: list[str]


class Engine(Protocol):
    """A prepared model: what the class ``Engine`` of each file in ``engines/`` provides.

    The inputs are already in the engine's own tensors, and a run leaves the outputs there, so that conversions are
    part of no engine's time.
    """

    facts: Facts

    def __init__(self, job: Job) -> None: ...

    def run(self) -> None:
        """Run the model once, and return when the outputs are ready."""

    def outputs(self) -> list[np.ndarray]:
        """Return the outputs of the latest run, in the order of the model."""


class Answer(TypedDict, total=False):
    """What a worker replies; exactly ``error`` is set when the request failed.

    ``seconds`` are the timed runs in the order they were made.
    """

    error: str
    version: str
    facts: Facts
    outputs: list[np.ndarray]
    seconds: list[float]
