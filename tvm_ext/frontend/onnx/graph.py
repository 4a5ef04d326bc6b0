"""Small questions about ONNX graphs: labels, subgraphs, order, and what a node reads."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence

import onnx


def node_label(node: onnx.NodeProto) -> str:
    """Words that let a person find a node: its name, or what it makes when it has none."""
    operator = node.op_type if node.op_type.isprintable() else repr(node.op_type)
    if node.name:
        return f"{operator} node {node.name!r}"
    output = next((name for name in node.output if name), "")
    return f"{operator} node that makes {output!r}" if output else f"unnamed {operator} node"


def domain_of(item: onnx.NodeProto | onnx.FunctionProto | onnx.OperatorSetIdProto) -> str:
    """Operator domain, with the two spellings of the default one made equal."""
    return "" if item.domain == "ai.onnx" else item.domain


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Graphs that a node carries as attributes (the branches of ``If``, the body of ``Loop``)."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def tensors(proto: onnx.ModelProto) -> Iterator[tuple[str, onnx.TensorProto]]:
    """Every tensor that a model, its subgraphs and its functions hold, with words for where it is."""
    yield from _tensors_of(proto.graph)
    for function in proto.functions:
        for node in function.node:
            yield from _tensors_of_node(node)


def _tensors_of(graph: onnx.GraphProto) -> Iterator[tuple[str, onnx.TensorProto]]:
    for tensor in graph.initializer:
        yield f"initializer {tensor.name!r}", tensor
    for node in graph.node:
        yield from _tensors_of_node(node)


def _tensors_of_node(node: onnx.NodeProto) -> Iterator[tuple[str, onnx.TensorProto]]:
    for attribute in node.attribute:
        if attribute.HasField("t"):
            yield f"attribute {attribute.name!r} of {node_label(node)}", attribute.t
        for tensor in attribute.tensors:
            yield f"attribute {attribute.name!r} of {node_label(node)}", tensor
    for subgraph in subgraphs(node):
        yield from _tensors_of(subgraph)


def outer_reads(graph: onnx.GraphProto) -> set[str]:
    """Names that a subgraph reads from the graphs around it."""
    own = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    own.update(name for node in graph.node for name in node.output)
    read = {name for node in graph.node for name in reads(node)} | {value.name for value in graph.output}
    return {name for name in read - own if name}


def reads(node: onnx.NodeProto) -> set[str]:
    """Names that a node needs, those read inside its subgraphs included."""
    names = {name for name in node.input if name}
    for graph in subgraphs(node):
        names |= outer_reads(graph)
    return names


def topological_order(nodes: Sequence[onnx.NodeProto], available: set[str]) -> tuple[list[onnx.NodeProto], set[str]]:
    """Sort nodes so that each comes after what it reads; nodes already in order stay where they are.

    Parameters
    ----------
    nodes : sequence of onnx.NodeProto
        The nodes of one graph.
    available : set of str
        Names that exist before the first node: inputs, initializers, names of the graphs around.

    Returns
    -------
    tuple
        The sorted nodes, and the names of tensors that lie on a cycle or that nothing makes (empty for a sound graph).
    """
    maker = {name: index for index, node in enumerate(nodes) for name in node.output if name}
    needs = [{maker[name] for name in reads(node) if name in maker} for node in nodes]
    users: list[list[int]] = [[] for _ in nodes]
    for index, sources in enumerate(needs):
        for source in sources:
            users[source].append(index)

    missing = [len(sources) for sources in needs]
    ready = [index for index, count in enumerate(missing) if count == 0]
    heapq.heapify(ready)
    order = []
    while ready:
        index = heapq.heappop(ready)
        order.append(nodes[index])
        for user in users[index]:
            missing[user] -= 1
            if missing[user] == 0:
                heapq.heappush(ready, user)
    stuck = {name for index, node in enumerate(nodes) if missing[index] for name in node.output if name}
    unmade = {name for node in nodes for name in reads(node) if name not in maker and name not in available}
    return order, stuck | unmade


def without_dead(nodes: Sequence[onnx.NodeProto], wanted: set[str], opsets: Mapping[str, int]) -> list[onnx.NodeProto]:
    """Drop the nodes of a sorted graph that no wanted tensor depends on, and optional outputs that nothing reads.

    Parameters
    ----------
    nodes : sequence of onnx.NodeProto
        Changed in place.
    wanted : set of str
        Names of the graph's outputs.
    opsets : mapping from str to int
        Version of each operator domain.
    """
    needed = set(wanted)
    kept = []
    for node in reversed(nodes):
        if needed.intersection(name for name in node.output if name):
            needed |= reads(node)
            _leave_out_unused(node, needed, opsets)
            kept.append(node)
    return kept[::-1]


def _leave_out_unused(node: onnx.NodeProto, needed: set[str], opsets: Mapping[str, int]) -> None:
    version = opsets.get(node.domain)
    if version is None or not onnx.defs.has(node.op_type, version, node.domain):
        return
    declared = onnx.defs.get_schema(node.op_type, version, node.domain).outputs
    optional = onnx.defs.OpSchema.FormalParameterOption.Optional
    for position, name in enumerate(node.output):
        if position < len(declared) and declared[position].option == optional and name not in needed:
            node.output[position] = ""
    while node.output and not node.output[-1]:
        del node.output[-1]
