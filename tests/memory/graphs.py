"""Graphs that planners of memory are tried on: printed examples, random wiring, stacked cells, wide and large ones."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from tvm_ext.graph import DataflowGraph, Flops, LivenessOptions, Node, Tensor, graph_of_sizes

# Three branches that widen before they narrow; the published answers are 16 (best) and 28 (worst) bytes.
BRANCHES = graph_of_sizes([[], [0], [0], [0], [1], [2], [3], [4, 5, 6], [7]], [4, 8, 8, 8, 2, 2, 2, 6, 1])


def random_graph(count: int, density: float, seed: int, largest: int = 9) -> DataflowGraph:
    """Nodes of one result each; every earlier result is read with the same probability."""
    choose = random.Random(seed)
    before = [[other for other in range(index) if choose.random() < density] for index in range(count)]
    return graph_of_sizes(before, [choose.randint(0, largest) for _ in range(count)], f"random{seed}")


def cell(count: int, choose: random.Random, reach: int = 6) -> tuple[list[list[int]], list[int]]:
    """Make a cell with one input and one output, wired as networks found by search are: two operands, then a concat.

    Returns
    -------
    before, sizes
        Node 0 is the input, the last node reads what no other node reads.
    """
    before: list[list[int]] = [[]]
    for index in range(1, count - 1):
        near = range(max(0, index - reach), index)
        before.append(sorted(choose.sample(near, min(len(near), choose.choice((1, 1, 2, 2, 3))))))
    read = {other for others in before for other in others}
    before.append([index for index in range(count - 1) if index not in read])
    return before, [choose.choice((4, 6, 8, 12, 16, 24)) * 1024 for _ in range(count)]


def stacked_cells(counts: Sequence[int], seed: int) -> DataflowGraph:
    """Stack cells: the output of one is the input of the next, and is counted with the first of them."""
    choose = random.Random(seed)
    before: list[list[int]] = []
    sizes: list[int] = []
    for count in counts:
        inner, bytes_ = cell(count + bool(before), choose)
        base = max(0, len(before) - 1)
        for index in range(1 if before else 0, len(inner)):
            before.append([other + base for other in inner[index]])
            sizes.append(bytes_[index])
    return graph_of_sizes(before, sizes, f"cells{seed}")


def wide_graph(width: int, length: int, seed: int) -> DataflowGraph:
    """One node, many chains beside each other, one node that joins them."""
    choose = random.Random(seed)
    before: list[list[int]] = [[]]
    ends = []
    for _ in range(width):
        last = 0
        for _ in range(length):
            before.append([last])
            last = len(before) - 1
        ends.append(last)
    before.append(ends)
    return graph_of_sizes(before, [choose.randint(1, 64) for _ in before], f"wide{width}")


def large_graph(count: int, seed: int, reach: int = 60) -> DataflowGraph:
    """A long graph of random wiring without places to cut it; what nothing near has read, a node behind reads."""
    choose = random.Random(seed)
    before: list[list[int]] = [[]]
    unread = {0}
    for index in range(1, count):
        near = range(max(0, index - reach), index)
        mine = set(choose.sample(near, min(len(near), choose.choice((1, 2, 2, 3)))))
        mine |= {other for other in unread if other < index - reach or index == count - 1}
        unread = (unread - mine) | {index}
        before.append(sorted(mine))
    return graph_of_sizes(before, [choose.randint(1, 64) * 64 for _ in range(count)], f"large{count}")


def marked_graph(seed: int, largest: int = 7) -> DataflowGraph:
    """Make a small graph with all that counts in memory.

    Inputs, constants, several results a node, results nobody reads, views, results that may be written in place,
    concatenations whose operands are parts of the result, order without a tensor, outputs.
    """
    choose = random.Random(seed)
    tensors: dict[str, Tensor] = {}
    for name, kind in (("x", "input"), ("y", "input"), ("w", "constant")):
        size = choose.randint(0, 9)
        tensors[name] = Tensor(name, (size,), "uint8", size, kind)
    nodes: list[Node] = []
    for index in range(choose.randint(1, largest)):
        usable = sorted(tensors)
        read = tuple(choose.sample(usable, min(len(usable), choose.choice((0, 1, 1, 2, 2, 3)))))
        whole = f"t{index}.0"
        parts = [name for name in read if tensors[name].kind == "intermediate" and tensors[name].alias_of is None]
        if choose.random() < 0.3 and len(parts) > 1:
            offset = 0
            for name in parts:
                tensors[name] = replace(tensors[name], alias_of=whole, offset=offset)
                offset += tensors[name].nbytes
            tensors[whole] = Tensor(whole, (offset,), "uint8", offset)
            nodes.append(Node(index, f"t{index}", "concat", tuple(parts), tuple(parts), (whole,), flops=Flops()))
            continue
        outputs, in_place = [], []
        for number in range(choose.choice((0, 1, 1, 1, 2))):
            name = f"t{index}.{number}"
            source = choose.choice(read) if read else None
            size, alias = choose.randint(0, 9), None
            if source and choose.random() < 0.2:
                size, alias = tensors[source].nbytes, source
            elif source and choose.random() < 0.5:
                size = tensors[source].nbytes
            tensors[name] = Tensor(
                name, (size,), "uint8", size, tensors[alias].kind if alias else "intermediate", alias
            )
            outputs.append(name)
            in_place += [(name, other) for other in choose.sample(read, len(read)) if choose.random() < 0.7]
        after = tuple(choose.sample(range(index), 1)) if index and choose.random() < 0.1 else ()
        nodes.append(
            Node(
                index,
                f"t{index}",
                "op",
                read,
                read,
                tuple(outputs),
                flops=Flops(),
                after=after,
                in_place=tuple(in_place),
            )
        )
    results = tuple(name for name in sorted(tensors) if choose.random() < 0.1)
    graph = DataflowGraph(f"marked{seed}", tuple(nodes), tensors, ("x", "y"), results)
    given = {graph.storages[name] for name in results}
    kinds = {
        name: replace(
            tensor,
            kind="output"
            if graph.storage(name).kind == "intermediate" and graph.storages[name] in given
            else graph.storage(name).kind,
        )
        for name, tensor in tensors.items()
    }
    return replace(graph, tensors=kinds)


def simulated_peak(graph: DataflowGraph, order: Sequence[int], options: LivenessOptions) -> int:
    """Run an order with a set of living storages, step by step, from the definitions."""
    counting = {"input": options.inputs, "constant": options.constants, "output": options.outputs}
    family: dict[str, set[str]] = {}
    for name, root in graph.storages.items():
        family.setdefault(root, set()).add(name)
    roots = {root: counting.get(graph.tensors[root].kind, "until last use") for root in family}
    counted = {root for root, how in roots.items() if how != "ignore"}
    users = {root: {n.index for n in graph.nodes if family[root] & {*n.inputs, *n.outputs}} for root in family}
    given = {root for root in counted if graph.tensors[root].kind in ("input", "constant")}
    alive = {root for root in given if users[root] or roots[root] == "always"}
    left = {root: set(who) for root, who in users.items()}
    peak = 0
    for index in order:
        node = graph.nodes[index]
        mine = {root for root in counted if index in users[root]}
        new = mine - alive
        for root in mine:
            left[root].discard(index)
        dead = {root for root in mine if not left[root] and roots[root] == "until last use"}
        saved, free, taken = 0, set(node.outputs), set()
        for target, source in node.in_place:
            root = graph.storages[source]
            if (
                target in free
                and target in new
                and all(
                    other not in family[target] or other == target for n in graph.nodes[:index] for other in n.outputs
                )
                and root in dead
                and graph.tensors[root].kind == "intermediate"
                and root not in taken
                and graph.tensors[root].nbytes == graph.tensors[target].nbytes
            ):
                free.discard(target)
                taken.add(root)
                saved += graph.tensors[root].nbytes
        alive |= new
        peak = max(peak, sum(graph.tensors[root].nbytes for root in alive) - saved)
        alive -= dead
    return peak


def least_peak(before: Sequence[Sequence[int]], sizes: Sequence[int]) -> int:
    """Try all orders of nodes with one result each, and give up on one when it is no better than the best so far."""
    count = len(sizes)
    readers = [sum(index in others for others in before) for index in range(count)]
    best = sum(sizes)

    def extend(done: frozenset[int], current: int, peak: int, left: tuple[int, ...]) -> None:
        nonlocal best
        if peak >= best:
            return
        if len(done) == count:
            best = peak
            return
        for index in range(count):
            if index not in done and all(other in done for other in before[index]):
                rest = list(left)
                freed = 0
                for other in before[index]:
                    rest[other] -= 1
                    freed += sizes[other] if not rest[other] else 0
                now = current + sizes[index]
                extend(done | {index}, now - freed, max(peak, now), tuple(rest))

    extend(frozenset(), 0, 0, tuple(readers))
    return best
