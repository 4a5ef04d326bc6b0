"""Bodies of operators that are defined by simpler ones: by ONNX (``Celu``, ``CenterCropPad``, ...) or by the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx
from onnx import helper

from tvm_ext.frontend.onnx.graph import domain_of, subgraphs
from tvm_ext.frontend.onnx.infer import MalformedNodeError
from tvm_ext.frontend.onnx.values import Value


def local_body(
    node: onnx.NodeProto, functions: Mapping[tuple[str, str, str], onnx.FunctionProto], opsets: Mapping[str, int]
) -> onnx.FunctionProto | None:
    """Definition that the model gives of a node's operator, with the node's attributes filled in.

    Parameters
    ----------
    node : onnx.NodeProto
    functions : mapping from (domain, name, overload) to onnx.FunctionProto
        The functions of the model.
    opsets : mapping from str to int
        Version of each operator domain in the model.

    Returns
    -------
    onnx.FunctionProto or None
        None for an operator that is not a function of the model.

    Raises
    ------
    MalformedNodeError
        If the function is written in other operator set versions than the model.
    """
    function = functions.get((domain_of(node), node.op_type, node.overload))
    if function is None:
        return None
    for item in function.opset_import:
        domain = domain_of(item)
        if opsets.get(domain, item.version) != item.version:
            raise MalformedNodeError(
                f"function {function.name!r} uses version {item.version} of the operator set {domain or 'ai.onnx'}, "
                f"the model version {opsets[domain]}"
            )
    body = onnx.FunctionProto()
    body.CopyFrom(function)
    given = {item.name: item for item in (*function.attribute_proto, *node.attribute)}
    for step in body.node:
        _fill_in_attributes(step, given)
    return body


def function_body(
    node: onnx.NodeProto, inputs: Sequence[Value | None], opsets: Mapping[str, int]
) -> onnx.FunctionProto | None:
    """Definition of a node's operator, with the node's attributes filled in.

    Parameters
    ----------
    node : onnx.NodeProto
    inputs : sequence of Value or None
        Some definitions depend on the types of the inputs.
    opsets : mapping from str to int
        Version of each operator domain.

    Returns
    -------
    onnx.FunctionProto or None
        None for an operator without a definition.
    """
    domain = domain_of(node)
    version = opsets.get(domain)
    if version is None or not onnx.defs.has(node.op_type, version, domain):
        return None
    schema = onnx.defs.get_schema(node.op_type, version, domain)
    body = onnx.FunctionProto()
    if schema.has_function:
        known = [number for number in schema.function_opset_versions if number <= version]
        if not known:
            return None
        body.ParseFromString(schema.get_function_with_opset_version(max(known)))
    elif schema.has_context_dependent_function:
        known = [number for number in schema.context_dependent_function_opset_versions if number <= version]
        types = [(value.type if value else None) or onnx.TypeProto() for value in inputs]
        if not known:
            return None
        body.ParseFromString(
            schema.get_context_dependent_function_with_opset_version(
                max(known), node.SerializeToString(), [item.SerializeToString() for item in types]
            )
        )
    else:
        return None
    if not body.node:
        return None
    given = {name: item.default_value for name, item in schema.attributes.items() if item.default_value.name}
    given |= {item.name: item for item in node.attribute}
    for step in body.node:
        _fill_in_attributes(step, given)
    return body


def is_withdrawn(node: onnx.NodeProto, opsets: Mapping[str, int]) -> bool:
    """Whether a node's operator was in a version of the operator set, and ``onnx`` calls it deprecated there since.

    That is group normalisation with one scale for each group. Exporters have written it, and runtimes run it.
    """
    return (domain_of(node), node.op_type) == ("", "GroupNormalization") and opsets.get("") in (18, 19, 20)


def withdrawn_body(
    node: onnx.NodeProto, inputs: Sequence[Value | None], opsets: Mapping[str, int]
) -> onnx.FunctionProto | None:
    """Define a withdrawn operator; None for all others.

    A group is normalised and scaled as a whole, as instance normalisation does it with a channel.
    """
    if not is_withdrawn(node, opsets):
        return None
    given = {item.name: helper.get_attribute_value(item) for item in node.attribute}
    groups, epsilon = int(given.get("num_groups", 1)), float(given.get("epsilon", 1e-5))
    if len(inputs) != 3 or inputs[0] is None or inputs[0].type is None or groups < 1:
        raise MalformedNodeError(f"GroupNormalization of {groups} groups with {len(inputs)} inputs; it has three")
    own, single = inputs[0].type.tensor_type.elem_type, onnx.TensorProto.FLOAT
    narrow = own in (onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)  # the sums would overflow
    wide = single if narrow else own
    steps = [
        helper.make_node("Shape", ["X"], ["shape"]),
        helper.make_node("Constant", [], ["grouped"], value_ints=[0, groups, -1]),
        helper.make_node("Reshape", ["X", "grouped"], ["joined"]),
        *(helper.make_node("Cast", [name], [f"wide_{name}"], to=wide) for name in ("joined", "scale", "bias")),
        helper.make_node(
            "InstanceNormalization", ["wide_joined", "wide_scale", "wide_bias"], ["normal"], epsilon=epsilon
        ),
        helper.make_node("Cast", ["normal"], ["result"], to=own),
        helper.make_node("Reshape", ["result", "shape"], ["Y"]),
    ]
    opset = helper.make_opsetid("", opsets[""])
    return helper.make_function("", node.op_type, ["X", "scale", "bias"], ["Y"], steps, [opset])


def _fill_in_attributes(node: onnx.NodeProto, given: Mapping[str, onnx.AttributeProto]) -> None:
    """Replace attributes that refer to one of the function by its value; drop those that the caller left out."""
    kept = []
    for attribute in node.attribute:
        if not attribute.ref_attr_name:
            kept.append(attribute)
        elif attribute.ref_attr_name in given:
            filled = onnx.AttributeProto()
            filled.CopyFrom(given[attribute.ref_attr_name])
            filled.name = attribute.name
            kept.append(filled)
    kept = [onnx.AttributeProto.FromString(attribute.SerializeToString()) for attribute in kept]
    del node.attribute[:]
    node.attribute.extend(kept)
    for graph in subgraphs(node):
        for inner in graph.node:
            _fill_in_attributes(inner, given)
