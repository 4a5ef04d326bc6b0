"""Imports an ONNX model: load, prepare, convert, and check that what came out can be lowered."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import onnx

from tvm_ext.dynamic import OpenDimension
from tvm_ext.errors import ModelError
from tvm_ext.frontend.imported import ImportedModel
from tvm_ext.frontend.index_limits import with_limits
from tvm_ext.frontend.onnx.converter_types import converter_types
from tvm_ext.frontend.onnx.importer import OnnxImporter
from tvm_ext.frontend.onnx.model import OnnxModel, load_onnx
from tvm_ext.frontend.onnx.open_batch import SAMPLES, open_name, sample_shapes, with_open_batch
from tvm_ext.frontend.onnx.operator_graph import known_constants, operator_graph
from tvm_ext.frontend.onnx.prepare import prepare
from tvm_ext.frontend.onnx.support import UnsupportedNode, is_supported, unsupported_error
from tvm_ext.frontend.onnx.values import partial_shape
from tvm_ext.frontend.onnx.verify import verify_prepared
from tvm_ext.frontend.relax.check import origin_of, unlowered_calls
from tvm_ext.frontend.relax.module import output_specs
from tvm_ext.frontend.relax.ranges import with_ranges
from tvm_ext.shapes.decisions import decides_by_size
from tvm_ext.shapes.propagate import propagate
from tvm_ext.tensor_spec import TensorSpec


def import_onnx(
    model: str | os.PathLike[str] | bytes | onnx.ModelProto,
    input_shapes: Mapping[str, Sequence[int | str]] | None = None,
    verify: bool = False,
    dynamic: Mapping[str, OpenDimension] | None = None,
) -> ImportedModel:
    """Import an ONNX model.

    Parameters
    ----------
    model : path, bytes or onnx.ModelProto
    input_shapes : mapping from input name to shape, optional
        Values for dimensions that the model leaves open; a name in place of a number keeps it open.
    verify : bool
        Compare the prepared model with the original in onnxruntime, on random inputs.
    dynamic : mapping from name to OpenDimension, optional
        Dimensions that stay open, with their ranges.

    Raises
    ------
    ModelError
        If the file is missing, not ONNX, damaged, or breaks the rules of ONNX.
    UnsupportedOperatorError
        If nodes cannot be imported; all of them are listed.
    InputError
        If ``input_shapes`` does not fit the model, or leaves dimensions open.
    CheckError
        If ``verify`` finds that preparing changed the results.
    MissingPackageError
        If ``verify`` is asked for and onnxruntime is not installed.
    """
    source = "ModelProto" if isinstance(model, onnx.ModelProto) else "bytes" if isinstance(model, bytes) else str(model)
    try:
        loaded = load_onnx(model)
        names = {dim for shape in (input_shapes or {}).values() for dim in shape if isinstance(dim, str)}
        if not dynamic and len(names) > 1:
            dynamic = {name: OpenDimension(name, 0) for name in sorted(names)}
        if dynamic:
            return _import_open(loaded, input_shapes, verify, dynamic)
        name = open_name(input_shapes, source)
        if name is None or input_shapes is None:
            return _import(loaded, input_shapes, verify)
        asked = {name: OpenDimension(name, 0)}
        if _decides_by_size(loaded, input_shapes, asked):
            return _import_open(loaded, input_shapes, verify, asked)
        # Kernels would keep the two from being joined.
        first, second = (
            _import(loaded, sample_shapes(input_shapes, images), verify, checks_values=False) for images in SAMPLES
        )
        return with_open_batch(first, second, name)
    except UnicodeDecodeError:  # protobuf looks at the bytes of a name when it is first read
        raise ModelError(f"{source}: a name in the model is not valid text; the file is damaged") from None
    except RecursionError:
        raise ModelError(f"{source}: graphs are nested too deeply in each other; the file is damaged") from None
    except MemoryError:
        raise ModelError(f"{source}: not enough memory to import the model") from None


def _decides_by_size(
    loaded: OnnxModel, input_shapes: Mapping[str, Sequence[int | str]], asked: Mapping[str, OpenDimension]
) -> bool:
    """Whether two samples of a size would not tell what the model does for all others."""
    prepared = prepare(loaded, input_shapes, is_supported, converter_types, asked)
    graph = operator_graph(prepared.skeleton, asked, known_constants(prepared.constants))
    return decides_by_size(propagate(graph))


def _import_open(
    loaded: OnnxModel,
    input_shapes: Mapping[str, Sequence[int | str]] | None,
    verify: bool,
    dynamic: Mapping[str, OpenDimension],
) -> ImportedModel:
    """Import a model some of whose dimensions stay open; what it computes from them become expressions of them."""
    imported = _import(loaded, input_shapes, verify, dynamic)
    symbols = {
        dim: limits
        for spec in imported.inputs
        for dim, limits in zip(spec.shape, spec.ranges or (None,) * len(spec.shape), strict=True)
        if isinstance(dim, str) and limits is not None
    }
    return replace(imported, mod=with_ranges(imported.mod, symbols))


def _import(
    loaded: OnnxModel,
    input_shapes: Mapping[str, Sequence[Any]] | None,
    verify: bool,
    dynamic: Mapping[str, OpenDimension] | None = None,
    checks_values: bool = True,
) -> ImportedModel:
    prepared = prepare(loaded, input_shapes, is_supported, converter_types, dynamic)
    if verify:
        verify_prepared(loaded, prepared)
    importer = OnnxImporter(prepared, loaded.source, checks_values)
    mod = importer.run()
    faults = [
        UnsupportedNode(origin_of(call.variable, mod), "", f"its Relax operator {call.operator}: {call.reason}")
        for call in unlowered_calls(mod)
    ]
    if faults:
        raise unsupported_error(loaded.source, faults, prepared.unfolded)
    declared = prepared.skeleton.graph.output
    found = output_specs(mod, [value.name for value in declared], loaded.source)
    outputs = (
        tuple(found)
        if importer.has_open_dimensions
        else tuple(_with_open_dimensions(spec, value.type) for spec, value in zip(found, declared, strict=True))
    )
    inputs = with_limits(prepared.inputs, importer.index_limits)
    return ImportedModel(mod, inputs, outputs, loaded.source, (*prepared.notes, *importer.notes), importer.conditions)


def _with_open_dimensions(spec: TensorSpec, type_proto: onnx.TypeProto) -> TensorSpec:
    """Leave open what depends on values by ONNX's inference; some converters of TVM give the largest extent instead."""
    dims = partial_shape(type_proto)
    if dims is None or len(dims) != len(spec.shape):
        return spec
    shape = tuple(
        f"{spec.name}_{axis}" if dim is None and isinstance(found, int) else found
        for axis, (dim, found) in enumerate(zip(dims, spec.shape, strict=True))
    )
    return TensorSpec(spec.name, shape, spec.dtype)
