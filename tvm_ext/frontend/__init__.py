"""From a model file or a framework object to a Relax module."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvm_ext.dynamic import open_dimensions
from tvm_ext.errors import InputError, ModelError, OptionError
from tvm_ext.system.compile_lock import one_at_a_time

if TYPE_CHECKING:
    from tvm_ext.frontend.imported import ImportedModel
    from tvm_ext.tensor_spec import TensorSpec

__all__ = ["ImportedModel", "TensorSpec", "import_model"]

ACCEPTED = (
    "a path to an .onnx or .pt2 file, an onnx.ModelProto, a torch.export.ExportedProgram, a torch.nn.Module with "
    "example_inputs, or a tvm.IRModule"
)


@one_at_a_time
def import_model(
    model: Any,
    *,
    input_shapes: Mapping[str, Sequence[int | str]] | None = None,
    example_inputs: Sequence[Any] | None = None,
    params: Mapping[str, Any] | None = None,
    verify: bool = False,
    dynamic: Any = None,
) -> ImportedModel:
    """Import a model as a Relax module.

    Parameters
    ----------
    model : path, onnx.ModelProto, torch.export.ExportedProgram, torch.nn.Module or tvm.IRModule
        A path ends in ``.pt2`` for an exported PyTorch program; any other file has to be ONNX.
    input_shapes : mapping from input name to shape, optional
        For ONNX: values of dimensions that the model leaves open; a name in place of the batch keeps it open.
    example_inputs : sequence of torch.Tensor, optional
        For a ``torch.nn.Module``: inputs to trace it with, in call order.
    params : mapping from name to array, optional
        For an IRModule: values for parameters of ``main`` that are weights.
    verify : bool
        For ONNX: compare the prepared model with the original in onnxruntime.
    dynamic : str, or mapping from name of a dimension to range, optional
        Dimensions that stay open, such as ``"batch=1..32,seq=1..512"`` (see :mod:`tvm_ext.dynamic`).

    Returns
    -------
    ImportedModel

    Raises
    ------
    ModelError
        If the model is missing, damaged or of a kind that cannot be imported.
    UnsupportedOperatorError
        If operators in it cannot be imported; every such node is listed.
    InputError
        If shapes or parameters do not fit the model, or dimensions are left open.
    OptionError
        If an option is given that does not apply to this kind of model.
    """
    kind = _kind(model)
    opened = open_dimensions(dynamic)
    given = {"input_shapes": input_shapes, "example_inputs": example_inputs, "params": params, "verify": verify or None}
    for option, value in given.items():
        if value is not None and option not in OPTIONS[kind]:
            applies = " or ".join(name for name, options in OPTIONS.items() if option in options)
            raise OptionError(f"option {option} applies to {applies}, and this is {kind}")
    for option, value in (("input_shapes", input_shapes), ("params", params)):
        if value is not None and not (isinstance(value, Mapping) and all(isinstance(name, str) for name in value)):
            raise OptionError(f"option {option}: {value!r:.200} is not a mapping with names as its keys")
    for name, shape in (input_shapes or {}).items():
        if isinstance(shape, str) or not isinstance(shape, Iterable):
            raise InputError(f"option input_shapes: {shape!r} given for input {name!r} is not a list of dimensions")
    if kind == "an ONNX model":
        from tvm_ext.frontend.onnx.importing import import_onnx

        return import_onnx(model, input_shapes, verify, opened)
    if kind == "an IRModule":
        from tvm_ext.frontend.relax.module import import_module

        return import_module(model, params, opened)
    from tvm_ext.frontend.torch.model import import_torch

    return import_torch(model, example_inputs, dynamic=opened)


# Which options each kind of model takes.
OPTIONS = {
    "an ONNX model": ("input_shapes", "verify"),
    "a PyTorch model": ("example_inputs",),
    "an IRModule": ("params",),
}


def _kind(model: Any) -> str:
    """Tell what a model is without importing the framework that it comes from."""
    if isinstance(model, str | os.PathLike):
        return "a PyTorch model" if Path(model).suffix == ".pt2" else "an ONNX model"
    if isinstance(model, bytes):
        return "an ONNX model"
    classes = {f"{cls.__module__.partition('.')[0]}.{cls.__name__}" for cls in type(model).__mro__}
    if classes & {"onnx.ModelProto", "onnx_ml_pb2.ModelProto"}:
        return "an ONNX model"
    if classes & {"torch.Module", "torch.ExportedProgram"}:
        return "a PyTorch model"
    if "tvm.IRModule" in classes:
        return "an IRModule"
    raise ModelError(f"a {type(model).__module__}.{type(model).__qualname__} cannot be imported; give {ACCEPTED}")


def __getattr__(name: str) -> Any:
    if name in ("ImportedModel", "TensorSpec"):
        from tvm_ext.frontend import imported

        return getattr(imported, name)
    raise AttributeError(f"module 'tvm_ext.frontend' has no attribute {name!r}")
