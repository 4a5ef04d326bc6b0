"""Where a model comes from: for each format the file it is kept in, its inputs, and how open dimensions get values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
import onnx

from tvm_ext.bench.protocol import ModelKind
from tvm_ext.errors import InputError, MissingPackageError, ModelError
from tvm_ext.frontend.onnx.inputs import bind_inputs, model_inputs
from tvm_ext.frontend.onnx.model import load_onnx
from tvm_ext.inputs import describe
from tvm_ext.system.files import require_regular
from tvm_ext.tensor_spec import TensorSpec

Shapes = Mapping[str, Sequence[int]]


class Source(Protocol):
    """A model in a file.

    Attributes
    ----------
    kind : {"onnx", "pt2", "ir"}
        Format of the file.
    name : str
        What tables and charts call the model.
    path : Path
        The file.
    declared : tuple of TensorSpec
        Inputs as the model declares them; a string in a shape is a symbolic dimension.
    examples : list of numpy.ndarray or None
        Inputs that travel with the model.
    """

    kind: ClassVar[ModelKind]

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def path(self) -> Path: ...  # noqa: D102
    @property
    def declared(self) -> tuple[TensorSpec, ...]: ...  # noqa: D102
    @property
    def examples(self) -> list[np.ndarray] | None: ...  # noqa: D102

    def bind(self, shapes: Shapes) -> tuple[list[TensorSpec], list[str]]:
        """Give every dimension a value; returns the inputs and a note for each choice made.

        Raises
        ------
        InputError
            If a shape does not fit the model, or a dimension is left without a value.
        """


@dataclass(frozen=True)
class OnnxSource:
    """An ONNX file."""

    kind: ClassVar[ModelKind] = "onnx"
    name: str
    path: Path
    proto: onnx.ModelProto = field(repr=False)
    origin: str
    examples: None = None

    @classmethod
    def from_file(cls, path: Path) -> OnnxSource:
        """Read a file, external data included, to find damage here and not in every engine."""
        return cls(path.stem, path, load_onnx(path).proto, str(path))

    @classmethod
    def from_proto(cls, model: onnx.ModelProto, folder: Path) -> OnnxSource:
        """Write a model to a file in ``folder``."""
        proto = load_onnx(model).proto
        path = folder / "model.onnx"
        try:
            path.write_bytes(proto.SerializeToString())
        except ValueError:
            # One protobuf message holds 2 GB at most: weights to a file beside it. The caller's model stays as it is.
            copy = onnx.ModelProto()
            copy.CopyFrom(proto)
            onnx.save(copy, path, save_as_external_data=True, location="model.data")
        return cls(proto.graph.name or "model", path, proto, "ModelProto")

    @property
    def declared(self) -> tuple[TensorSpec, ...]:
        """Inputs as the file declares them."""
        specs = []
        for value in model_inputs(self.proto.graph):
            tensor = value.type.tensor_type
            shape = tuple(
                dim.dim_value if dim.dim_value > 0 else dim.dim_param or f"{value.name}.{axis}"
                for axis, dim in enumerate(tensor.shape.dim)
            )
            specs.append(TensorSpec(value.name, shape, onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type).name))
        return tuple(specs)

    def bind(self, shapes: Shapes) -> tuple[list[TensorSpec], list[str]]:
        """Bind as the importer does, so that all engines get what the TVM rows are compiled for."""
        return bind_inputs(self.proto.graph, shapes, self.origin)


@dataclass(frozen=True)
class TorchSource:
    """A saved ``torch.export.ExportedProgram``."""

    kind: ClassVar[ModelKind] = "pt2"
    name: str
    path: Path
    declared: tuple[TensorSpec, ...]
    examples: list[np.ndarray] | None = field(repr=False)

    @classmethod
    def from_file(cls, path: Path) -> TorchSource:
        """Read a file that ``torch.export.save`` wrote."""
        try:
            import torch
        except ImportError:
            raise MissingPackageError(f"{path}: reading a .pt2 file needs torch: pip install torch") from None
        require_regular(path, ModelError)
        try:
            program = torch.export.load(path)
        except Exception as error:  # zip, pickle and schema errors of every kind
            first = next(iter(str(error).splitlines()), type(error).__name__)
            raise ModelError(f"{path} is not a program that torch.export.save wrote, or is damaged: {first}") from None
        return cls._from_program(path.stem, path, program)

    @classmethod
    def from_object(cls, model: Any, folder: Path, example_inputs: Sequence[Any] | None) -> TorchSource:
        """Export a module if it is one, and write the program to a file in ``folder``."""
        import torch

        name = type(model).__name__
        if isinstance(model, torch.nn.Module):
            if example_inputs is None:
                raise InputError(f"torch module {name}: give example_inputs, the arguments it is exported with")
            model = torch.export.export(model.eval(), tuple(example_inputs))
        path = folder / "program.pt2"
        torch.export.save(model, path)
        return cls._from_program(name, path, model)

    @classmethod
    def _from_program(cls, name: str, path: Path, program: Any) -> TorchSource:
        from torch.utils import _pytree as pytree

        placeholders = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
        specs = []
        for user_input in program.graph_signature.user_inputs:
            value = placeholders.get(user_input)
            if value is None or not hasattr(value, "shape"):
                raise InputError(f"{name}: input {user_input!r} is not a tensor; export the program with tensors only")
            shape = tuple(size if isinstance(size, int) else str(size) for size in value.shape)
            specs.append(TensorSpec(user_input, shape, str(value.dtype).removeprefix("torch.")))
        examples = None
        if program.example_inputs is not None:
            examples = [tensor.detach().numpy() for tensor in pytree.tree_leaves(program.example_inputs)]
        return cls(name, path, tuple(specs), examples)

    def bind(self, shapes: Shapes) -> tuple[list[TensorSpec], list[str]]:
        """Take the shapes given; without any, those of the examples."""
        if not shapes and self.examples is not None:
            names = [spec.name for spec in self.declared]
            shapes = {name: array.shape for name, array in zip(names, self.examples, strict=True)}
        return bind_dimensions(self.declared, shapes), []


@dataclass(frozen=True)
class ModuleSource:
    """A Relax module as TVM's JSON."""

    kind: ClassVar[ModelKind] = "ir"
    name: str
    path: Path
    declared: tuple[TensorSpec, ...]
    examples: None = None

    @classmethod
    def from_module(cls, model: Any, folder: Path) -> ModuleSource:
        """Write a module to a file in ``folder``."""
        import tvm
        from tvm import relax

        if not isinstance(model, tvm.IRModule) or "main" not in [name.name_hint for name in model.get_global_vars()]:
            raise ModelError("bench needs an IRModule with a Relax function main; found none")
        specs = []
        for variable in model["main"].params:
            annotation = variable.ty
            if not isinstance(annotation, relax.TensorType) or annotation.shape is None:
                raise InputError(f"parameter {variable.name} of main is not a tensor of known shape")
            shape = tuple(int(size) if isinstance(size, tvm.tirx.IntImm) else str(size) for size in annotation.shape)
            specs.append(TensorSpec(variable.name, shape, str(annotation.dtype)))
        path = folder / "module.json"
        path.write_text(tvm.ir.save_json(model), encoding="utf-8")
        return cls("module", path, tuple(specs))

    def bind(self, shapes: Shapes) -> tuple[list[TensorSpec], list[str]]:
        """Take the shapes given."""
        return bind_dimensions(self.declared, shapes), []


def bind_dimensions(declared: Sequence[TensorSpec], shapes: Shapes) -> list[TensorSpec]:
    """Put given shapes into declared ones; a symbolic dimension has one value wherever it appears.

    Raises
    ------
    InputError
        If a name or shape does not fit, or a dimension is left without a value.
    """
    by_name = {spec.name: spec for spec in declared}
    values: dict[str, int] = {}
    for name, shape in shapes.items():
        if name not in by_name:
            raise InputError(f"the model has no input {name!r}; its inputs are {', '.join(map(describe, declared))}")
        spec = by_name[name]
        if len(shape) != len(spec.shape):
            raise InputError(f"input {describe(spec)} has {len(spec.shape)} dimensions, {len(shape)} were given")
        for axis, (size, given) in enumerate(zip(spec.shape, shape, strict=True)):
            expected = values.setdefault(size, int(given)) if isinstance(size, str) else size
            if expected != given:
                raise InputError(f"input {describe(spec)}: dimension {axis} must be {expected}, found {given}")
    bound = [
        replace(spec, shape=tuple(values.get(size, size) if isinstance(size, str) else size for size in spec.shape))
        for spec in declared
    ]
    unbound = [spec for spec in bound if any(isinstance(size, str) for size in spec.shape)]
    if unbound:
        options = " ".join(f"--input-shape {spec.name}:{','.join(map(_number, spec.shape))}" for spec in unbound)
        raise InputError(
            f"the model leaves dimensions open: {', '.join(map(describe, unbound))}; give their sizes: {options} "
            "with a number for each ..."
        )
    return bound


def _number(size: int | str) -> str:
    return "..." if isinstance(size, str) else str(size)
