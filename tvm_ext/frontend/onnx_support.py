"""Says which ONNX operators can be imported, and lists those of a model that cannot, all at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import onnx
from tvm.relax.frontend.onnx import onnx_frontend

from tvm_ext.errors import UnsupportedOperatorError
from tvm_ext.frontend.onnx_graph import domain_of, node_label, subgraphs
from tvm_ext.frontend.onnx_ops import CONVERTERS

# TVM's table goes by operator name alone; these names in it are operators of onnxruntime.
MICROSOFT_OPERATORS = frozenset(
    ["BiasGelu", "EmbedLayerNormalization", "FastGelu", "Gelu", "MatMulInteger16", "SkipLayerNormalization"]
)

CONTROL_FLOW = frozenset(["If"])
"""Converted by the importer itself."""


@dataclass(frozen=True)
class UnsupportedNode:
    """A node that cannot be imported.

    Attributes
    ----------
    label : str
        Words that let a person find it in the model.
    domain : str
        Of its operator.
    reason : str
    """

    label: str
    domain: str
    reason: str


@cache
def stock_converters() -> Mapping[str, Any]:
    """TVM's own converters, by operator."""
    return onnx_frontend._get_convert_map()


def converter(domain: str, operator: str) -> Any | None:
    """Find the converter class of an operator: ours, else TVM's, else None."""
    if (domain, operator) in CONVERTERS:
        return CONVERTERS[domain, operator]
    if domain == "" or (domain == "com.microsoft" and operator in MICROSOFT_OPERATORS):
        return stock_converters().get(operator)
    return None


def is_supported(domain: str, operator: str) -> bool:
    """Whether an operator can be imported, attributes and inputs permitting."""
    return converter(domain, operator) is not None or (domain == "" and operator in CONTROL_FLOW)


def unsupported_nodes(graph: onnx.GraphProto, labels: Mapping[str, str]) -> Iterator[UnsupportedNode]:
    """Find the nodes of a graph and its subgraphs whose operators have no converter.

    Parameters
    ----------
    graph : onnx.GraphProto
    labels : mapping from str to str
        Words for each node, by name.
    """
    for node in graph.node:
        domain = domain_of(node)
        if not is_supported(domain, node.op_type):
            yield UnsupportedNode(labels.get(node.name, node_label(node)), domain, "there is no converter for it")
        else:
            for subgraph in subgraphs(node):
                yield from unsupported_nodes(subgraph, labels)


def unsupported_error(source: str, nodes: Sequence[UnsupportedNode]) -> UnsupportedOperatorError:
    """Put all nodes that cannot be imported into one error; those with the same reason share it."""
    by_reason: dict[str, list[str]] = {}
    for node in nodes:
        domain = (
            f" ({node.domain if node.domain.isprintable() else repr(node.domain)})" if node.domain else " (ai.onnx)"
        )
        by_reason.setdefault(node.reason, []).append(node.label + domain)
    listed = "; ".join(f"{', '.join(labels)}: {reason}" for reason, labels in by_reason.items())
    count = f"{len(nodes)} nodes" if len(nodes) != 1 else "1 node"
    return UnsupportedOperatorError(
        f"{source}: {count} cannot be imported: {listed}; export the model without them, or cut them off"
    )
