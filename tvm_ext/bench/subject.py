"""The model that is measured: a file every engine can open, and one array for each of its inputs."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tvm_ext.bench.protocol import ModelKind
from tvm_ext.bench.sources import ModuleSource, OnnxSource, Source, TorchSource
from tvm_ext.errors import InputError, ModelError
from tvm_ext.inputs import check_inputs, random_inputs
from tvm_ext.system.cleanup import temporary_folder
from tvm_ext.tensor_spec import TensorSpec


@dataclass(frozen=True)
class Subject:
    """A model and its inputs.

    Attributes
    ----------
    name : str
        What tables and charts call it.
    kind : {"onnx", "pt2", "ir"}
        Kind of the file.
    path : Path
        The file.
    inputs : dict of str to numpy.ndarray
        One array per input, in the order of the model.
    dimensions : dict of str to int
        Value of each symbolic dimension.
    scratch : Path
        Folder for temporary files, deleted with all it holds when the subject is closed.
    notes : tuple of str
        One sentence for each choice that was made for the user.
    """

    name: str
    kind: ModelKind
    path: Path
    inputs: dict[str, np.ndarray]
    dimensions: dict[str, int]
    scratch: Path
    notes: tuple[str, ...] = ()


@contextmanager
def open_subject(
    model: Any,
    *,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    example_inputs: Sequence[Any] | None = None,
    inputs: Mapping[str, np.ndarray] | Sequence[np.ndarray] | None = None,
    seed: int = 0,
) -> Iterator[Subject]:
    """Bring a model into a file, and make its inputs.

    Parameters
    ----------
    model : path, onnx.ModelProto, torch.export.ExportedProgram, torch.nn.Module or tvm.IRModule
        The model; an ``nn.Module`` needs ``example_inputs``.
    input_shapes : mapping of str to sequence of int, optional
        Shapes of inputs whose dimensions the model leaves open.
    example_inputs : sequence of torch.Tensor, optional
        Arguments an ``nn.Module`` is exported with.
    inputs : mapping or sequence of numpy.ndarray, optional
        The arrays to run on. Left out: the examples an exported program carries, else random ones.
    seed : int
        Seed of random inputs.

    Yields
    ------
    Subject
        Its scratch folder, and the file in it if one was made, are deleted afterwards.

    Raises
    ------
    ModelError
        If the file is missing, damaged or in no known format.
    InputError
        If a shape or an array does not fit the model, or a dimension has no value.
    """
    with temporary_folder(Path(tempfile.gettempdir()), "bench") as folder:
        source = _open(model, folder, example_inputs)
        shapes = _shapes(source.declared, inputs) if inputs is not None else dict(input_shapes or {})
        specs, notes = source.bind(shapes)
        if inputs is not None:
            arrays = check_inputs(specs, inputs)
        elif _fit(specs, source.examples):
            arrays = check_inputs(specs, source.examples or [])
        else:
            arrays = random_inputs(specs, seed)
        dimensions = _dimensions(source.declared, specs)
        subject = Subject(source.name, source.kind, source.path, arrays, dimensions, folder, tuple(notes))
        del source  # it may hold all weights, and the engines need the memory
        yield subject


def _open(model: Any, folder: Path, example_inputs: Sequence[Any] | None) -> Source:
    if isinstance(model, str | Path):
        path = Path(model)
        if path.is_dir() or not path.exists():
            raise ModelError(f"{path}: {'is a folder' if path.is_dir() else 'no such file'}; give a model file")
        if path.suffix.lower() == ".onnx":
            return OnnxSource.from_file(path)
        if path.suffix.lower() == ".pt2":
            return TorchSource.from_file(path)
        raise ModelError(f"{path}: bench reads .onnx and .pt2 files; found {path.suffix or 'no suffix'}")
    owner = type(model).__module__.partition(".")[0]
    if owner == "onnx":
        return OnnxSource.from_proto(model, folder)
    if owner == "tvm":
        return ModuleSource.from_module(model, folder)
    if any(base.__module__.startswith("torch.") for base in type(model).__mro__):
        return TorchSource.from_object(model, folder, example_inputs)
    raise ModelError(
        "bench takes a path, an onnx.ModelProto, a torch.export.ExportedProgram, a torch.nn.Module or a tvm.IRModule; "
        f"found {type(model).__name__}"
    )


def _shapes(
    declared: Sequence[TensorSpec], inputs: Mapping[str, np.ndarray] | Sequence[np.ndarray]
) -> dict[str, Sequence[int]]:
    """Shapes of given arrays, by name."""
    if not isinstance(inputs, Mapping):
        if len(inputs) != len(declared):
            raise InputError(f"the model has {len(declared)} inputs; {len(inputs)} arrays were given")
        inputs = dict(zip((spec.name for spec in declared), inputs, strict=True))
    return {name: np.shape(array) for name, array in inputs.items()}


def _fit(specs: Sequence[TensorSpec], examples: Sequence[np.ndarray] | None) -> bool:
    return examples is not None and [spec.shape for spec in specs] == [array.shape for array in examples]


def _dimensions(declared: Sequence[TensorSpec], bound: Sequence[TensorSpec]) -> dict[str, int]:
    """Values of the symbolic dimensions; a name such as ``?`` that stands for several sizes has no value."""
    found: dict[str, set[int]] = {}
    for before, after in zip(declared, bound, strict=True):
        for name, size in zip(before.shape, after.shape, strict=False):
            if isinstance(name, str):
                found.setdefault(name, set()).add(int(size))
    return {name: sizes.pop() for name, sizes in found.items() if len(sizes) == 1}
