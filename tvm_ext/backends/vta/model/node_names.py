"""Names that an ONNX file has for the nodes of a layer."""

from __future__ import annotations

from pathlib import Path

from tvm_ext.backends.vta.model.relax_layers import ModelGraph


def layer_nodes(path: Path, graph: ModelGraph) -> dict[str, tuple[str, ...]]:
    """Return the nodes of a model file that each layer stands for.

    Parameters
    ----------
    path : Path
        Of the model that the graph was imported from; another file than an ONNX model has no such names.
    graph : ModelGraph

    Returns
    -------
    dict
        Layer to the names of its nodes, of a node without a name its operator and output. A node whose tensor went away
        when the model was simplified (a batch norm that was folded) is not listed.
    """
    if path.suffix != ".onnx":
        return {}
    import onnx

    from tvm_ext.frontend.onnx.importer import identifier

    nodes = {
        identifier(output): node.name or f"{node.op_type} of {output}"
        for node in onnx.load(path, load_external_data=False).graph.node
        for output in node.output
    }
    found = {}
    for layer in graph.layers:
        tensors = [graph.variables[name].name for name in layer.covers]
        found[layer.name] = tuple(dict.fromkeys(nodes[tensor] for tensor in tensors if tensor in nodes))
    return found
