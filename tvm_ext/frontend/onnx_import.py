"""Imports an ONNX model: load, prepare, convert, and check that what came out can be lowered."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import onnx
import tvm
from tvm import relax

from tvm_ext.errors import ModelError
from tvm_ext.frontend.imported import ImportedModel, TensorSpec
from tvm_ext.frontend.onnx_importer import OnnxImporter
from tvm_ext.frontend.onnx_model import load_onnx
from tvm_ext.frontend.onnx_prepare import prepare
from tvm_ext.frontend.onnx_support import is_supported


def import_onnx(
    model: str | os.PathLike[str] | bytes | onnx.ModelProto,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    verify: bool = False,
) -> ImportedModel:
    loaded = load_onnx(model)
    prepared = prepare(loaded, input_shapes, is_supported)
    importer = OnnxImporter(prepared, loaded.source)
    mod = importer.run()
    outputs = output_specs(mod, [value.name for value in prepared.proto.graph.output], loaded.source)
    return ImportedModel(mod, prepared.inputs, outputs, loaded.source, prepared.notes)


def output_specs(mod: tvm.IRModule, names: Sequence[str], source: str) -> tuple[TensorSpec, ...]:
    """Describe what ``main`` returns."""
    returned = mod["main"].ret_ty
    fields = list(returned.fields) if isinstance(returned, relax.TupleType) else [returned]
    specs = []
    for name, field in zip(names, fields, strict=True):
        if not isinstance(field, relax.TensorType) or field.shape is None:
            raise ModelError(f"{source}: output {name!r} is not a tensor of known rank: {field}")
        shape = tuple(int(dim) if isinstance(dim, tvm.tirx.IntImm) else str(dim) for dim in field.shape)
        specs.append(TensorSpec(name, shape, str(field.dtype)))
    return tuple(specs)
