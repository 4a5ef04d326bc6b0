"""A graph as text for a terminal, and as a DOT file for Graphviz."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tvm_ext.errors import GraphError
from tvm_ext.graph.dataflow import HOST_VALUES, DataflowGraph, Node, Tensor
from tvm_ext.graph.flops import Flops
from tvm_ext.graph.lifetimes import peak_bytes
from tvm_ext.graph.units import bytes_text, count_text

_NO_FLOPS = Flops()
_FILL = {"input": "#dbe9f6", "constant": "#eeeeee", "output": "#dff2dc", "intermediate": "#ffffff"}


def to_text(graph: DataflowGraph, regions: bool = True) -> str:
    """Write one line for each node, after a summary and the inputs.

    Parameters
    ----------
    graph : DataflowGraph
        The graph.
    regions : bool
        Print the branches and functions inside, too, indented, each once.
    """
    return "\n".join(_lines(graph, regions, set()))


def _lines(graph: DataflowGraph, regions: bool, printed: set[int]) -> list[str]:
    printed.add(id(graph))
    lines = [_summary(graph)]
    lines += [f"  input     {name}: {graph.tensors[name]}" for name in graph.inputs]
    lines += [f"  constant  {tensor.name}: {tensor}" for tensor in graph.constants]
    rows = [_row(graph, node) for node in graph.nodes]
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(4)]
    for node, row in zip(graph.nodes, rows, strict=True):
        columns = (cell.ljust(width) for cell, width in zip(row, widths, strict=False))
        lines.append("  ".join((f"{node.index:>5}", *columns, *row[4:])).rstrip())
        if regions:
            for region in node.regions:
                inside = [f"{region.name}: above"] if id(region) in printed else _lines(region, regions, printed)
                lines += [f"      | {line}" for line in inside]
    lines.append(f"  return    {', '.join(graph.outputs)}")
    return lines


def to_dot(graph: DataflowGraph, groups: Mapping[str, Collection[int]] | None = None) -> str:
    """Write the graph in the DOT language: boxes are nodes, edges are tensors, dashed edges are order only.

    Parameters
    ----------
    graph : DataflowGraph
        The graph; branches and functions inside are not drawn.
    groups : mapping of str to collection of int, optional
        Nodes to frame together, by the label of the frame; a node is in one group at most.

    Raises
    ------
    GraphError
        When a node is in two groups, or an index is not one of a node.
    """
    lines = [
        f"digraph {_quoted(graph.name)} {{",
        "  node [shape=box, style=filled, fontname=Helvetica];",
        "  edge [fontname=Helvetica];",
    ]
    used = (name for node in graph.nodes for name in node.inputs)
    given = dict.fromkeys(name for name in (*graph.inputs, *used, *graph.outputs) if name not in graph.producer)
    lines += [_dot_value(graph.tensors[name]) for name in given]
    framed: set[int] = set()
    for number, (label, members) in enumerate((groups or {}).items()):
        for index in members:
            if index in framed or not 0 <= index < len(graph):
                raise GraphError(f"graph '{graph.name}': node {index} of group '{label}' is unknown or in two groups")
            framed.add(index)
        lines.append(f"  subgraph cluster_{number} {{ label={_quoted(label)}; color={_quoted('#8888aa')};")
        lines += ["  " + _dot_node(graph, graph.nodes[index]) for index in sorted(members)]
        lines.append("  }")
    lines += [_dot_node(graph, node) for node in graph.nodes if node.index not in framed]
    for node in graph.nodes:
        for name in node.inputs:
            source = f"n{graph.producer[name]}" if name in graph.producer else _quoted(name)
            lines.append(f"  {source} -> n{node.index} [label={_quoted(_size_label(graph.tensors[name]))}];")
        lines += [f"  n{other} -> n{node.index} [style=dashed];" for other in node.after]
    for place, name in enumerate(graph.outputs):
        source = f"n{graph.producer[name]}" if name in graph.producer else _quoted(name)
        lines.append(
            f"  out{place} [shape=ellipse, label={_quoted('output ' + name)}, fillcolor={_quoted(_FILL['output'])}];"
        )
        lines.append(f"  {source} -> out{place};")
    return "\n".join([*lines, "}", ""])


def _summary(graph: DataflowGraph) -> str:
    weights = sum(tensor.nbytes for tensor in graph.constants if isinstance(tensor.nbytes, int))
    parts = [
        f"graph {graph.name}: {len(graph)} nodes",
        f"{len(graph.constants)} constants of {bytes_text(weights)}",
        count_text(graph.flops.total),
    ]
    try:
        parts.append(f"peak {bytes_text(peak_bytes(graph))} in the given order")
    except GraphError:
        parts.append(
            "peak unknown until symbols have values: " + (", ".join(sorted(graph.symbols)) or "a size is unknown")
        )
    if graph.unknown_flops:
        labels = sorted({node.label for node in graph.unknown_flops})
        parts.append(f"FLOPs unknown for {len(graph.unknown_flops)} nodes ({', '.join(labels)})")
    if graph.unknown_bytes:
        parts.append(f"bytes unknown for {', '.join(tensor.name for tensor in graph.unknown_bytes)}")
    return "; ".join(parts)


def _row(graph: DataflowGraph, node: Node) -> tuple[str, ...]:
    results = ", ".join(str(graph.tensors[name]) for name in node.outputs) or "()"
    aliases = [alias for name in node.outputs if (alias := graph.tensors[name].alias_of)]
    allocated = [graph.tensors[name] for name in node.outputs if graph.tensors[name].alias_of is None]
    if not allocated and aliases:
        size = "same bytes as " + ", ".join(dict.fromkeys(aliases))
    else:
        size = " + ".join(bytes_text(t.nbytes) for t in allocated if t.dtype not in HOST_VALUES)
    flops = "" if node.flops == _NO_FLOPS else count_text(None if node.flops is None else node.flops.total)
    order = f"after {', '.join(map(str, node.after))}" if node.after else ""
    name = node.op if not node.callee else f"{node.op} {node.callee}"
    return node.name, name, ", ".join(node.operands) or "-", results, *(x for x in (size, flops, order) if x)


def _dot_value(tensor: Tensor) -> str:
    label = f"{tensor.kind} {tensor.name}\n{tensor}"
    fill = _quoted(_FILL[tensor.kind])
    return f"  {_quoted(tensor.name)} [shape=ellipse, label={_quoted(label)}, fillcolor={fill}];"


def _dot_node(graph: DataflowGraph, node: Node) -> str:
    results = ", ".join(str(graph.tensors[name]) for name in node.outputs)
    cost = "" if node.flops == _NO_FLOPS else "\n" + count_text(None if node.flops is None else node.flops.total)
    kinds = {graph.tensors[name].kind for name in node.outputs}
    fill = _FILL["output" if "output" in kinds else "intermediate"]
    label = f"{node.label}: {node.name}\n{results}{cost}"
    return f"  n{node.index} [label={_quoted(label)}, fillcolor={_quoted(fill)}];"


def _size_label(tensor: Tensor) -> str:
    return "" if tensor.dtype in HOST_VALUES else bytes_text(tensor.nbytes)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
