"""Random dataflow graphs for property tests: several results a node, views, dead results, order without a tensor."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from tvm_ext.graph import DataflowGraph, Flops, Node, Tensor


@st.composite
def graphs(draw: st.DrawFn, max_nodes: int = 7) -> DataflowGraph:
    tensors: dict[str, Tensor] = {}
    for kind, count in (("input", draw(st.integers(1, 2))), ("constant", draw(st.integers(0, 2)))):
        for number in range(count):
            size = draw(st.integers(0, 9))
            tensors[f"{kind}{number}"] = Tensor(f"{kind}{number}", (size,), "uint8", size, kind)
    inputs = tuple(name for name, tensor in tensors.items() if tensor.kind == "input")
    nodes: list[Node] = []
    for index in range(draw(st.integers(0, max_nodes))):
        read = tuple(draw(st.lists(st.sampled_from(sorted(tensors)), max_size=3, unique=True)))
        outputs = []
        for number in range(draw(st.integers(0, 2))):
            name = f"t{index}.{number}"
            size = draw(st.integers(0, 9))
            source = draw(st.sampled_from(read)) if read and draw(st.integers(0, 3)) == 0 else None
            kind = tensors[source].kind if source else "intermediate"
            tensors[name] = Tensor(name, (size,), "uint8", size, kind, source)
            outputs.append(name)
        after = tuple(sorted(draw(st.sets(st.integers(0, index - 1), max_size=1)))) if index else ()
        nodes.append(Node(index, f"t{index}", "op", read, read, tuple(outputs), flops=Flops(), after=after))
    results = tuple(draw(st.lists(st.sampled_from(sorted(tensors)), max_size=3)))
    graph = DataflowGraph("random", tuple(nodes), tensors, inputs, results)
    given = {graph.storages[name] for name in results}
    kinds = {
        name: replace(tensor, kind="output")
        if tensor.kind == "intermediate" and graph.storages[name] in given
        else tensor
        for name, tensor in tensors.items()
    }
    return replace(graph, tensors=kinds)


def reachable(graph: DataflowGraph) -> list[set[int]]:
    """For each node, the nodes after it, by repeated steps along single edges."""
    found = [set(followers) for followers in graph.successors]
    for _ in range(len(graph)):
        found = [set.union(step, *(found[other] for other in step)) for step in found]
    return found
