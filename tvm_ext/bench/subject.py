"""The model that is measured: a file every engine can open, and one array for each of its inputs."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tvm_ext.bench.protocol import ModelKind
from tvm_ext.errors import InputError, MissingPackageError, ModelError
from tvm_ext.frontend.imported import TensorSpec
from tvm_ext.frontend.onnx_model import load_onnx
from tvm_ext.inputs import check_inputs, describe, random_inputs

SUFFIXES: dict[str, ModelKind] = {".onnx": "onnx", ".pt2": "pt2"}


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
    with tempfile.TemporaryDirectory(prefix="tvm-ext-bench-") as folder:
        name, kind, path, specs, examples = _open(model, Path(folder), example_inputs)
        if inputs is not None:
            notes: list[str] = []
            arrays = check_inputs(specs, inputs)
        else:
            bound, notes = _bind(specs, input_shapes or {}, examples)
            if examples is not None and all(
                array.shape == spec.shape for spec, array in zip(bound, examples, strict=True)
            ):
                arrays = {spec.name: np.ascontiguousarray(array) for spec, array in zip(bound, examples, strict=True)}
            else:
                arrays = random_inputs(bound, seed)
        yield Subject(name, kind, path, arrays, _dimensions(specs, arrays), Path(folder), tuple(notes))


_Opened = tuple[str, ModelKind, Path, list[TensorSpec], list[np.ndarray] | None]


def _open(model: Any, folder: Path, example_inputs: Sequence[Any] | None) -> _Opened:
    if isinstance(model, str | Path):
        path = Path(model)
        kind = SUFFIXES.get(path.suffix.lower())
        if kind is None and path.is_file():
            raise ModelError(f"{path}: bench reads .onnx and .pt2 files; found {path.suffix or 'no suffix'}")
        if not path.is_file() or kind is None:
            raise ModelError(f"{path}: {'is a folder' if path.is_dir() else 'no such file'}; give a model file")
        if kind == "onnx":
            return path.stem, kind, path, _graph_inputs(load_onnx(path).proto, str(path)), None
        return path.stem, kind, path, *_torch_specs(_load_program(path))
    owner = type(model).__module__.partition(".")[0]
    if owner == "onnx":
        return _save_onnx(model, folder)
    if owner == "tvm":
        return _save_module(model, folder)
    if any(base.__module__.startswith("torch.") for base in type(model).__mro__):
        return _save_torch(model, folder, example_inputs)
    raise ModelError(
        "bench takes a path, an onnx.ModelProto, a torch.export.ExportedProgram, a torch.nn.Module or a tvm.IRModule; "
        f"found {type(model).__name__}"
    )


def _bind(
    specs: Sequence[TensorSpec], shapes: Mapping[str, Sequence[int]], examples: Sequence[np.ndarray] | None
) -> tuple[list[TensorSpec], list[str]]:
    """Give every dimension a value: from ``shapes``, else from the examples, else 1 for a leading (batch) dimension."""
    names = [spec.name for spec in specs]
    for name in shapes:
        if name not in names:
            raise InputError(f"the model has no input {name!r}; its inputs are {', '.join(map(describe, specs))}")
    values: dict[str, int] = {}
    notes, bound = [], []
    for spec in specs:
        if spec.name in shapes:
            _match(spec, shapes[spec.name], values)
    if examples is not None and not shapes:
        for spec, array in zip(specs, examples, strict=True):
            _match(spec, array.shape, values)
    for spec in specs:
        shape = list(shapes.get(spec.name, spec.shape))
        if shape and isinstance(shape[0], str) and shape[0] not in values:
            values[shape[0]] = 1
            notes.append(f"dimension 0 of input {spec.name} is open and was set to 1")
        shape = [values.get(size, size) if isinstance(size, str) else int(size) for size in shape]
        bound.append(replace(spec, shape=tuple(shape)))
    open_ones = [spec for spec in bound if any(isinstance(size, str) for size in spec.shape)]
    if open_ones:
        words = " ".join(
            f"--input-shape {spec.name}:{','.join('N' if isinstance(size, str) else str(size) for size in spec.shape)}"
            for spec in open_ones
        )
        raise InputError(
            f"the model leaves dimensions open: {', '.join(map(describe, open_ones))}; give numbers for N in {words}"
        )
    return bound, notes


def _match(spec: TensorSpec, shape: Sequence[int], values: dict[str, int]) -> None:
    if len(shape) != len(spec.shape):
        raise InputError(f"input {describe(spec)} has {len(spec.shape)} dimensions; the shape given has {len(shape)}")
    for axis, (declared, given) in enumerate(zip(spec.shape, shape, strict=True)):
        expected = values.setdefault(declared, int(given)) if isinstance(declared, str) else declared
        if expected != given:
            raise InputError(f"input {describe(spec)}: dimension {axis} must be {expected}, found {given}")


def _dimensions(specs: Sequence[TensorSpec], arrays: Mapping[str, np.ndarray]) -> dict[str, int]:
    return {
        size: int(extent)
        for spec in specs
        for size, extent in zip(spec.shape, arrays[spec.name].shape, strict=True)
        if isinstance(size, str)
    }


def _graph_inputs(model: Any, source: str) -> list[TensorSpec]:
    import onnx

    weights = {tensor.name for tensor in model.graph.initializer}
    weights |= {tensor.values.name for tensor in model.graph.sparse_initializer}
    specs = []
    for value in model.graph.input:
        if value.name in weights:
            continue
        tensor = value.type.tensor_type
        if not value.type.HasField("tensor_type") or tensor.elem_type in (0, onnx.TensorProto.STRING):
            raise InputError(f"{source}: input {value.name!r} is not a tensor of numbers, so bench cannot make it up")
        shape = [
            size.dim_value if size.HasField("dim_value") else size.dim_param or f"{value.name}.{axis}"
            for axis, size in enumerate(tensor.shape.dim)
        ]
        dtype = str(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
        specs.append(TensorSpec(value.name, tuple(shape), dtype))
    return specs


def _save_onnx(model: Any, folder: Path) -> _Opened:
    import onnx

    path = folder / "model.onnx"
    name = model.graph.name or "model"
    try:
        path.write_bytes(model.SerializeToString())
    except ValueError:
        # One protobuf message holds 2 GB at most: weights to a file beside it. The caller's model stays as it is.
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        onnx.save(copy, path, save_as_external_data=True, location="model.data")
    return name, "onnx", path, _graph_inputs(model, name), None


def _save_module(model: Any, folder: Path) -> _Opened:
    import tvm
    from tvm import relax

    if not isinstance(model, tvm.IRModule) or "main" not in [str(name.name_hint) for name in model.get_global_vars()]:
        raise ModelError("bench needs an IRModule with a Relax function main; found none")
    specs = []
    for variable in model["main"].params:
        annotation = variable.ty
        if not isinstance(annotation, relax.TensorType) or annotation.shape is None:
            raise InputError(f"parameter {variable.name} of main is not a tensor of known rank")
        shape = [int(size) if isinstance(size, tvm.tirx.IntImm) else str(size) for size in annotation.shape]
        specs.append(TensorSpec(variable.name, tuple(shape), str(annotation.dtype)))
    path = folder / "module.json"
    path.write_text(tvm.ir.save_json(model), encoding="utf-8")
    return "module", "ir", path, specs, None


def _save_torch(model: Any, folder: Path, example_inputs: Sequence[Any] | None) -> _Opened:
    import torch

    name = type(model).__name__
    if isinstance(model, torch.nn.Module):
        if example_inputs is None:
            raise InputError(f"torch module {name}: give example_inputs, the arguments it is exported with")
        model = torch.export.export(model.eval(), tuple(example_inputs))
    path = folder / "program.pt2"
    torch.export.save(model, path)
    return name, "pt2", path, *_torch_specs(model)


def _load_program(path: Path) -> Any:
    try:
        import torch
    except ImportError:
        raise MissingPackageError(f"{path}: reading a .pt2 file needs torch: pip install torch") from None
    try:
        return torch.export.load(path)
    except Exception as error:  # zip, pickle and schema errors of every kind
        first = next(iter(str(error).splitlines()), type(error).__name__)
        raise ModelError(f"{path} is not a program that torch.export.save wrote, or is damaged: {first}") from None


def _torch_specs(program: Any) -> tuple[list[TensorSpec], list[np.ndarray] | None]:
    from torch.utils import _pytree as pytree

    placeholders = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
    specs = []
    for name in program.graph_signature.user_inputs:
        value = placeholders.get(name)
        if value is None or not hasattr(value, "shape"):
            raise InputError(f"input {name!r} of the torch program is not a tensor; export it with tensors only")
        shape = tuple(size if isinstance(size, int) else str(size) for size in value.shape)
        specs.append(TensorSpec(name, shape, str(value.dtype).removeprefix("torch.")))
    if program.example_inputs is None:
        return specs, None
    return specs, [tensor.detach().numpy() for tensor in pytree.tree_leaves(program.example_inputs)]
