"""Nodes whose result needs no computing: constants, ``Shape`` and ``Size``, and those that hand their input on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx

from tvm_ext.frontend.onnx.values import Value, element_type, known_shape, partial_shape

# Equal shapes mean equal contents: these rearrange nothing but dimensions of extent one.
SAME_IF_SHAPE_IS_SAME = frozenset(["Reshape", "Flatten", "Squeeze", "Unsqueeze", "Expand", "Tile"])


def constant_attribute(node: onnx.NodeProto) -> np.ndarray | onnx.TensorProto | None:
    """Value of a Constant node, None for a kind that cannot be used as an initializer (strings, sparse tensors)."""
    if len(node.attribute) != 1 or not node.output:
        return None
    attribute = node.attribute[0]
    match attribute.name:
        case "value":
            return attribute.t
        case "value_float":
            return np.asarray(attribute.f, "float32")
        case "value_floats":
            return np.asarray(attribute.floats, "float32")
        case "value_int":
            return np.asarray(attribute.i, "int64")
        case "value_ints":
            return np.asarray(attribute.ints, "int64")
    return None


def shape_value(node: onnx.NodeProto, inputs: Sequence[Value | None]) -> np.ndarray | None:
    """Give the result of a ``Shape`` or ``Size`` node whose input has the dimensions it asks for; None otherwise."""
    if node.domain or node.op_type not in ("Shape", "Size") or not inputs or inputs[0] is None:
        return None
    if node.op_type == "Size":
        return None if inputs[0].size is None else np.asarray(inputs[0].size, "int64")
    dims = partial_shape(inputs[0].type)
    if dims is None:
        return None
    bounds = {attribute.name: attribute.i for attribute in node.attribute}
    wanted = dims[slice(bounds.get("start"), bounds.get("end"))]
    known = [dim for dim in wanted if dim is not None]
    return np.asarray(known, "int64") if len(known) == len(wanted) else None


def passed_through(
    node: onnx.NodeProto, inputs: Sequence[Value | None], types: Sequence[onnx.TypeProto | None]
) -> Value | None:
    """Input that a node hands on unchanged, None when it does something."""
    if node.domain or not inputs or inputs[0] is None or any(node.output[1:]):
        return None
    source = inputs[0]
    attributes = {attribute.name: attribute for attribute in node.attribute}
    unchanged = False
    match node.op_type:
        case "Identity":
            unchanged = True
        case "Dropout":
            training = inputs[2] if len(inputs) > 2 else None
            unchanged = training is None or (training.array is not None and not training.array.any())
        case "Cast":
            unchanged = "to" in attributes and element_type(source.type) == attributes["to"].i
        case "Transpose":
            unchanged = "perm" in attributes and list(attributes["perm"].ints) == sorted(attributes["perm"].ints)
        case "Concat" | "Sum" | "Max" | "Min" | "Mean":
            unchanged = len(inputs) == 1
        case "Pad":
            unchanged = _pads_nothing(inputs, attributes)
        case operator if operator in SAME_IF_SHAPE_IS_SAME:
            unchanged = source.shape is not None and bool(types) and known_shape(types[0]) == source.shape
    return source if unchanged else None


def _pads_nothing(inputs: Sequence[Value | None], attributes: dict[str, onnx.AttributeProto]) -> bool:
    if "pads" in attributes:
        return not any(attributes["pads"].ints)
    pads = inputs[1] if len(inputs) > 1 else None
    return pads is not None and pads.array is not None and not pads.array.any()
