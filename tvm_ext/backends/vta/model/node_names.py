"""Words for the nodes of the model that a layer stands for."""

from __future__ import annotations

from tvm_ext.backends.vta.model.relax_layers import ModelGraph
from tvm_ext.graph.origins import words_of


def layer_nodes(graph: ModelGraph) -> dict[str, tuple[str, ...]]:
    """Return words for the nodes that each layer stands for.

    A node whose tensor went away when the model was simplified (a batch norm that was folded) may not be listed.
    """
    return {
        layer.name: tuple(dict.fromkeys(word for name in layer.covers for word in words_of(graph.variables.get(name))))
        for layer in graph.layers
    }


def node_of(graph: ModelGraph, name: str) -> str:
    """Name the node that makes a tensor of the graph; the tensor, where that is not known."""
    return next(iter(words_of(graph.variables.get(name))), name)
