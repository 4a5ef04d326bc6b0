"""Reads an ONNX graph as the plain data that rank and dimension propagation works on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tvm_ext.dynamic import ALL, OpenDimension
from tvm_ext.frontend.onnx.graph import domain_of, node_label, topological_order
from tvm_ext.frontend.onnx.values import Value, element_type
from tvm_ext.graph.symbolic import symbol
from tvm_ext.shapes.lattice import LARGEST_VALUE, NOT_CONSTANT, UNKNOWN, Element, Fact, symbols_in
from tvm_ext.shapes.operator_graph import Graph, Limits, Operator


def operator_graph(
    model: onnx.ModelProto,
    dynamic: Mapping[str, OpenDimension] | None = None,
    constants: Mapping[str, np.ndarray | tuple[int, ...]] | None = None,
) -> Graph:
    """Read the main graph of a model.

    Parameters
    ----------
    model : onnx.ModelProto
        Sound; functions of its own are operators that nothing is known of.
    dynamic : mapping from name to OpenDimension, optional
        Ranges of open dimensions, by the names that the model has for them.
    constants : mapping from str to numpy.ndarray or tuple of int, optional
        Values of constants, or shapes, that the model is without.

    Returns
    -------
    Graph
        An open dimension is a symbol of its name, or of the input's name and the axis.
    """
    asked = dict(dynamic or {})
    every = asked.pop(ALL, None)
    limits: dict[str, Limits] = {name: item.limits for name, item in asked.items()}
    graph = _graph(model.graph, limits, frozenset(constants or {}))
    graph = replace(graph, constants={**(constants or {}), **graph.constants})
    if every is not None:
        for fact in graph.inputs.values():
            for name in symbols_in(fact.shape):
                limits.setdefault(name, every.limits)
    return graph


def known_constants(constants: Mapping[str, Value]) -> dict[str, np.ndarray | tuple[int, ...]]:
    """Give the values of small constants of a prepared model, and the shapes of the others."""
    return {
        name: value.decode() if value.size <= LARGEST_VALUE else value.shape
        for name, value in constants.items()
        if value.shape is not None and value.size is not None and element_type(value.type) != onnx.TensorProto.STRING
    }


def _graph(graph: onnx.GraphProto, limits: Mapping[str, Limits], seen: frozenset[str], fed: bool = True) -> Graph:
    constants: dict[str, np.ndarray | tuple[int, ...]] = {
        tensor.name: _constant(tensor) for tensor in graph.initializer
    }
    inputs = {value.name: _fact(value, fed) for value in graph.input if value.name not in constants}
    operators = []
    visible = seen | set(constants) | set(inputs)
    for node in topological_order(graph.node, set(visible))[0]:
        if node.op_type == "Constant" and domain_of(node) == "":
            value = _constant_node(node)
            if value is not None:
                constants[node.output[0]] = value
                visible |= {node.output[0]}
                continue
        operators.append(_operator(node, limits, frozenset(visible)))
        visible |= set(node.output)
    outputs = tuple(value.name for value in graph.output)
    return Graph(tuple(operators), inputs, constants, outputs, limits)


def _operator(node: onnx.NodeProto, limits: Mapping[str, Limits], seen: frozenset[str]) -> Operator:
    attributes: dict[str, Any] = {}
    bodies = {}
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            bodies[attribute.name] = _graph(attribute.g, limits, seen, fed=False)
        elif attribute.type == onnx.AttributeProto.TENSOR:
            attributes[attribute.name] = numpy_helper.to_array(attribute.t)
        elif attribute.type in (onnx.AttributeProto.INTS, onnx.AttributeProto.FLOATS, onnx.AttributeProto.INT,
                                onnx.AttributeProto.FLOAT, onnx.AttributeProto.STRING):  # fmt: skip
            value = helper.get_attribute_value(attribute)
            attributes[attribute.name] = tuple(value) if not isinstance(value, int | float | bytes) else value
    return Operator(
        node.op_type, tuple(node.input), tuple(node.output), attributes, domain_of(node), node_label(node), bodies
    )


def _fact(value: onnx.ValueInfoProto, fed: bool) -> Fact:
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return UNKNOWN
    dims: list[Element] = []
    for axis, dim in enumerate(tensor.shape.dim):
        # Some exporters write an open dimension of what is fed as 0 or -1.
        if dim.HasField("dim_value") and (dim.dim_value > 0 or (dim.dim_value == 0 and not fed)):
            dims.append(dim.dim_value)
        else:
            dims.append(symbol(dim.dim_param or f"{value.name}:{axis}"))
    return Fact(tuple(dims), NOT_CONSTANT)


def _constant(tensor: onnx.TensorProto) -> np.ndarray | tuple[int, ...]:
    shape = tuple(tensor.dims)
    if int(np.prod(shape, dtype="int64")) > LARGEST_VALUE or tensor.data_type == onnx.TensorProto.STRING:
        return shape
    return numpy_helper.to_array(tensor)


def _constant_node(node: onnx.NodeProto) -> np.ndarray | tuple[int, ...] | None:
    if len(node.attribute) != 1:
        return None
    value = helper.get_attribute_value(node.attribute[0])
    if isinstance(value, onnx.TensorProto):
        return _constant(value)
    kind = node.attribute[0].name
    if kind in ("value_int", "value_ints"):
        return np.asarray(value, "int64")
    return np.asarray(value, "float32") if kind in ("value_float", "value_floats") else None
