"""The model that is measured: a file every engine can open, and one array for each of its inputs."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tvm_ext.bench.peers.tvm_runtime import read_model
from tvm_ext.bench.protocol import ModelKind
from tvm_ext.bench.sources import ModuleSource, OnnxSource, Source, TorchSource
from tvm_ext.conditions import limits_of_symbols
from tvm_ext.errors import InputError, ModelError, OptionError
from tvm_ext.frontend.imported import ImportedModel
from tvm_ext.inputs import check_inputs, random_inputs
from tvm_ext.sizes import all_extents, spelled
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
        Value of each symbolic dimension; of none that stays open.
    importing : dict
        What the TVM engines import the model with: keyword arguments of :func:`tvm_ext.frontend.import_model`.
    ranges : dict of str to list
        Ranges of open extents, as in :class:`tvm_ext.bench.protocol.Job`.
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
    importing: dict[str, Any]
    ranges: dict[str, list[tuple[int, int | None] | None]]
    scratch: Path
    notes: tuple[str, ...] = ()


@contextmanager
def open_subject(
    model: Any,
    *,
    input_shapes: Mapping[str, Sequence[int | str]] | None = None,
    example_inputs: Sequence[Any] | None = None,
    inputs: Mapping[str, np.ndarray] | Sequence[np.ndarray] | None = None,
    dynamic: Any = None,
    size: Mapping[str, int] | None = None,
    seed: int = 0,
) -> Iterator[Subject]:
    """Bring a model into a file, and make its inputs.

    Parameters
    ----------
    model : path, onnx.ModelProto, torch.export.ExportedProgram, torch.nn.Module or tvm.IRModule
        The model; an ``nn.Module`` needs ``example_inputs``.
    input_shapes : mapping of str to sequence of int, optional
        Shapes of inputs whose dimensions the model leaves open. For ONNX a name in place of the batch keeps it open.
    example_inputs : sequence of torch.Tensor, optional
        Arguments an ``nn.Module`` is exported with.
    inputs : mapping or sequence of numpy.ndarray, optional
        The arrays to run on. Left out: the examples an exported program carries, else random ones.
    dynamic : str, or mapping from name of a dimension to range, optional
        Dimensions that every engine keeps open (see :mod:`tvm_ext.dynamic`); those that a program of PyTorch or a
        module leaves open stay open without it.
    size : mapping of str to int, optional
        Extents of the open dimensions in the runs, by the names that the imported model has for them.
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
    OptionError
        If ``dynamic`` or ``size`` does not fit the model.
    """
    with temporary_folder(Path(tempfile.gettempdir()), "bench") as folder:
        source = _open(model, folder, example_inputs)
        importing = _importing(source, input_shapes, dynamic)
        opened = None if importing is None else _import(source, importing)
        if size is not None and opened is None:
            raise OptionError("option size: all extents are fixed; keep some open with dynamic, or leave it out")
        notes: list[str] = []
        shapes: dict[str, Sequence[int]]
        if inputs is not None:
            shapes = _shapes(source.declared, inputs)
        elif opened is not None and (size is not None or source.kind == "onnx"):
            extents = _extents(source.name, opened, size or {})
            shapes = {spec.name: [int(extents.get(dim, dim)) for dim in spec.shape] for spec in opened.inputs}
            notes = [f"every engine is compiled for open sizes, and runs with {spelled(extents)}"]
        else:
            shapes = {name: [int(dim) for dim in shape] for name, shape in (input_shapes or {}).items()}
        specs, more = source.bind(shapes)
        if inputs is not None:
            arrays = check_inputs(specs if opened is None else opened.inputs, inputs)
        elif _fit(specs, source.examples):
            arrays = check_inputs(specs, source.examples or [])
        else:
            arrays = random_inputs(specs, seed)
        ranges = {} if opened is None else _ranges(opened)
        subject = Subject(
            source.name,
            source.kind,
            source.path,
            arrays,
            _dimensions(source.declared, specs, ranges),
            {"input_shapes": {name: array.shape for name, array in arrays.items()}} if importing is None else importing,
            ranges,
            folder,
            tuple(more if opened is None else notes),
        )
        del source, opened  # they may hold all weights, and the engines need the memory
        yield subject


def _importing(
    source: Source, input_shapes: Mapping[str, Sequence[int | str]] | None, dynamic: Any
) -> dict[str, Any] | None:
    """Give what the TVM engines import a model with; None of one that is imported for the shapes of its arrays."""
    names = [dim for shape in (input_shapes or {}).values() for dim in shape if isinstance(dim, str)]
    if source.kind != "onnx":
        if names:
            raise OptionError(
                f"option input_shapes: {names[0]!r} is no number; names keep batches of ONNX models open, and "
                "a program keeps open what it was exported with"
            )
        return {"dynamic": dynamic}
    return {"input_shapes": input_shapes, "dynamic": dynamic} if names or dynamic is not None else None


def _import(source: Source, importing: Mapping[str, Any]) -> ImportedModel | None:
    """Import a model as the TVM engines will; None where all its extents are fixed then."""
    if source.kind != "onnx" and importing["dynamic"] is None and not any(map(_is_open, source.declared)):
        return None
    imported = read_model(source.kind, source.path, importing)
    return imported if any(map(_is_open, imported.inputs)) else None


def _is_open(spec: TensorSpec) -> bool:
    return any(isinstance(dim, str) for dim in spec.shape)


def _extents(name: str, opened: ImportedModel, size: Mapping[str, int]) -> dict[Any, int]:
    """Give the extent of every open dimension in the runs; a benchmark does not choose any."""
    extents = all_extents(size, opened.inputs, opened.conditions)
    wanted = list(limits_of_symbols(opened.inputs)[0])
    if any(dim not in size for dim in wanted):
        given = ",".join(f"{dim}={size.get(dim, '...')}" for dim in wanted)
        raise InputError(f"{name}: dimensions stay open, and the runs need a size of each: --size {given}")
    return dict(extents)


def _ranges(opened: ImportedModel) -> dict[str, list[tuple[int, int | None] | None]]:
    """Give the ranges of open extents by input and axis."""
    ranges: dict[str, list[tuple[int, int | None] | None]] = {}
    for spec in opened.inputs:
        known = spec.ranges or (None,) * len(spec.shape)
        ranges[spec.name] = [
            (limits or (0, None)) if isinstance(dim, str) else None
            for dim, limits in zip(spec.shape, known, strict=True)
        ]
    return ranges


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


def _dimensions(
    declared: Sequence[TensorSpec],
    bound: Sequence[TensorSpec],
    ranges: Mapping[str, Sequence[tuple[int, int | None] | None]],
) -> dict[str, int]:
    """Values of the symbolic dimensions; a name such as ``?`` that stands for several sizes has no value."""
    found: dict[str, set[int]] = {}
    kept: set[str] = set()
    for before, after in zip(declared, bound, strict=True):
        for axis, (name, size) in enumerate(zip(before.shape, after.shape, strict=False)):
            if isinstance(name, str):
                found.setdefault(name, set()).add(int(size))
                if before.name in ranges and ranges[before.name][axis] is not None:
                    kept.add(name)
    return {name: sizes.pop() for name, sizes in found.items() if len(sizes) == 1 and name not in kept}
