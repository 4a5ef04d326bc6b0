"""Types of the outputs of nodes that ``onnx`` has no schema of: those that their converters to Relax give them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import tvm
from onnx import helper
from tvm import relax
from tvm.relax.frontend.onnx import onnx_frontend

from tvm_ext.frontend.onnx.importer import attribute_value
from tvm_ext.frontend.onnx.support import find_converter
from tvm_ext.frontend.onnx.values import Value, element_type


def converter_types(node: onnx.NodeProto, inputs: Sequence[Value | None], opset: int) -> list[onnx.TypeProto | None]:
    """Convert a node on its own, in a function that is thrown away, and look at what comes out.

    Without these types, shapes that a model computes behind such a node could not be folded.

    Parameters
    ----------
    node : onnx.NodeProto
    inputs : sequence of Value or None
        None for an optional input that is left out.
    opset : int
        Version of the node's domain.

    Returns
    -------
    list of onnx.TypeProto or None
        None where nothing can be said: inputs without a known shape, or a node that cannot be converted, of which the
        importer tells later.
    """
    unknown: list[onnx.TypeProto | None] = [None] * len(node.output)
    if any(value is not None and value.constant is None and value.shape is None for value in inputs):
        return unknown
    builder = relax.BlockBuilder()
    with builder.function("main", params=[]):
        try:
            arguments = onnx_frontend.onnx_input()
            arguments.extend(None if value is None else _expression(value) for value in inputs)
            attributes: dict[str, Any] = {item.name: attribute_value(item) for item in node.attribute}
            attributes["tvm_custom"] = {"name": node.name, "num_outputs": len(node.output)}
            result = find_converter(node).get_converter(opset)(builder, arguments, attributes, [{}, {}])
            found = _types(builder.normalize(result))
        except Exception:  # converters raise whatever Python or TVM's C++ side threw at them
            return unknown
        finally:
            builder.emit_func_output(relax.Tuple([]))
    return [*found, *unknown][: len(node.output)]


def _expression(value: Value) -> Any:
    if value.constant is not None:
        return relax.const(tvm.runtime.tensor(np.ascontiguousarray(value.decode())))
    dtype = helper.tensor_dtype_to_np_dtype(element_type(value.type)).name
    return relax.Var(value.name or "input", relax.TensorType(value.shape, dtype))


def _types(result: Any) -> list[onnx.TypeProto | None]:
    fields = result.ty.fields if isinstance(result.ty, relax.TupleType) else [result.ty]
    return [_type_proto(field) for field in fields]


def _type_proto(ty: Any) -> onnx.TypeProto | None:
    if not isinstance(ty, relax.TensorType) or ty.shape is None or not ty.dtype:
        return None
    if not all(isinstance(dim, tvm.tirx.IntImm) for dim in ty.shape):
        return None
    element = helper.np_dtype_to_tensor_dtype(np.dtype(str(ty.dtype)))
    return helper.make_tensor_type_proto(element, [int(dim) for dim in ty.shape])
