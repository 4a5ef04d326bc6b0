"""Checks that an ONNX graph is well formed, before anything is computed from it.

``onnx.checker.check_model`` stops at the first fault, needs the whole model in one protobuf message (2 GB at most),
and mistakes an operator it does not know for a broken file. Here the structure is checked by name, and its C++ half is
asked about one node at a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import onnx
from onnx import checker

from tvm_ext.errors import ModelError
from tvm_ext.frontend.onnx.expand import is_withdrawn
from tvm_ext.frontend.onnx.graph import domain_of, node_label, reads, subgraphs, topological_order

LARGE_TENSOR = 2**20
"""Bytes."""

SHOWN = 5
"""Faults of one kind that a message spells out; the rest are counted."""


def check_graph(model: onnx.ModelProto, source: str) -> None:
    """Check names, order and attributes of a model's graph and all its subgraphs.

    Nodes that are merely not sorted pass: preparing the model sorts them.

    Raises
    ------
    ModelError
        Naming the tensors or nodes at fault.
    """
    if not model.graph.output:
        raise ModelError(f"{source}: the graph has no outputs; the model is damaged or was cut apart wrongly")
    context = checker.C.CheckerContext()
    context.ir_version = model.ir_version
    context.opset_imports = {domain_of(item): item.version for item in model.opset_import}
    faults: list[str] = []
    _check_functions(model, source)
    _check_names(model.graph, set(), source)
    _check_nodes(model.graph, context, faults)
    if faults:
        raise ModelError(f"{source}: the model breaks the rules of ONNX: {listed(faults)}")


def listed(faults: Sequence[str], separator: str = "; ") -> str:
    """Join the first few faults and count the others."""
    rest = len(faults) - SHOWN
    return separator.join(islice(faults, SHOWN)) + (f"{separator}and {rest} more" if rest > 0 else "")


def _check_functions(model: onnx.ModelProto, source: str) -> None:
    """Refuse functions that call themselves, also by way of others: ONNX has none, and they have no end."""
    calls = {
        (function.domain, function.name, function.overload): {
            (node.domain, node.op_type, node.overload) for node in _all_nodes(function.node)
        }
        for function in model.functions
    }
    while ends := [name for name, called in calls.items() if not called & calls.keys()]:
        for name in ends:
            del calls[name]
    if calls:
        raise ModelError(
            f"{source}: function {listed([repr(name) for _, name, _ in sorted(calls)], ', ')} calls itself, perhaps by "
            "way of others, which ONNX does not allow; export the model again"
        )


def _all_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    for node in nodes:
        yield node
        for graph in subgraphs(node):
            yield from _all_nodes(graph.node)


def _check_names(graph: onnx.GraphProto, outer: set[str], source: str) -> None:
    where = f"{source}: " if not outer else f"{source}: subgraph {graph.name!r}: "
    if any(not value.name for value in (*graph.input, *graph.output)):
        raise ModelError(f"{where}an input or output of the graph has no name; export the model again")
    if any(not tensor.name for tensor in graph.initializer):
        raise ModelError(f"{where}an initializer has no name; export the model again")
    for what, names in (("input", graph.input), ("output", graph.output)):
        twice = [name for name, count in Counter(value.name for value in names).items() if count > 1]
        if twice:
            raise ModelError(f"{where}{what} {listed(list(map(repr, twice)), ', ')} is listed twice")
    given = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    made = Counter(name for node in graph.node for name in node.output if name)
    twice = [name for name, count in made.items() if count > 1 or name in given]
    if twice:
        raise ModelError(
            f"{where}tensor {listed(list(map(repr, twice)), ', ')} is made by more than one node or is also an input, "
            "so its value is ambiguous; give each tensor its own name"
        )
    order, faulty = topological_order(graph.node, given | outer)
    if faulty:
        unmade = sorted(name for node in graph.node for name in reads(node) if name not in made and name in faulty)
        if unmade:
            reader = next(node for node in graph.node if unmade[0] in reads(node))
            raise ModelError(
                f"{where}nothing makes tensor {listed(list(map(repr, dict.fromkeys(unmade))), ', ')}, which "
                f"{node_label(reader)} reads; the model is damaged or was cut apart wrongly"
            )
        raise ModelError(f"{where}the nodes that make {listed(sorted(map(repr, faulty)), ', ')} depend on each other")
    missing = [value.name for value in graph.output if value.name not in made and value.name not in given | outer]
    if missing:
        raise ModelError(f"{where}nothing makes output {listed(list(map(repr, missing)), ', ')} of the graph")
    visible = outer | given | set(made)
    for node in order:
        for subgraph in subgraphs(node):
            _check_names(subgraph, visible, source)


def _check_nodes(graph: onnx.GraphProto, context: checker.C.CheckerContext, faults: list[str]) -> None:
    for node in graph.node:
        nested = list(subgraphs(node))
        for subgraph in nested:
            _check_nodes(subgraph, context, faults)
        version = context.opset_imports.get(domain_of(node))
        if version is None or nested or not onnx.defs.has(node.op_type, version, domain_of(node)):
            continue  # a node with subgraphs needs their surroundings; an unknown operator is reported as unsupported
        left_out = _missing_input(node, onnx.defs.get_schema(node.op_type, version, domain_of(node)))
        if left_out:
            faults.append(f"{node_label(node)}: its input {left_out} is left out, but it is not optional")
        if any(len(attribute.t.raw_data) > LARGE_TENSOR for attribute in node.attribute if attribute.HasField("t")):
            continue  # the checker would copy it
        if is_withdrawn(node, context.opset_imports):
            continue
        try:
            checker.check_node(node, context)
        except checker.ValidationError as error:
            faults.append(f"{node_label(node)}: {' '.join(str(error).split('==>')[0].split())}")


def _missing_input(node: onnx.NodeProto, schema: onnx.defs.OpSchema) -> str:
    """Name of an input that is spelled as left out and must not be; the checker of ``onnx`` lets it pass."""
    for position, name in enumerate(node.input):
        declared = schema.inputs[min(position, len(schema.inputs) - 1)] if schema.inputs else None
        if not name and declared is not None and declared.option != onnx.defs.OpSchema.FormalParameterOption.Optional:
            return declared.name
    return ""
