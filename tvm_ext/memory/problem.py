"""A dataflow graph as the numbers that decide its memory: which node allocates, needs and frees how many bytes.

A set of nodes is a Python integer used as a bit mask. After a set ``done`` of nodes has run, a storage is alive if one
of its nodes is done and one is not, so the bytes alive depend on the set alone, whatever the order in it was
(B. H. Ahn et al., "Ordering Chaos: Memory-Aware Scheduling of Irregularly Wired Neural Networks for Edge Devices",
MLSys 2020, theorem 1). As a function of the set they are submodular, which the dominance rule of
:mod:`tvm_ext.memory.dynamic_program` rests on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from tvm_ext.errors import GraphError
from tvm_ext.graph import DataflowGraph, LivenessOptions
from tvm_ext.graph.lifetimes import bytes_inside, in_place_candidates


@dataclass(frozen=True)
class Storage:
    """Bytes that are allocated and freed as one.

    Attributes
    ----------
    size : int
        Bytes.
    nodes : int
        Bit mask of the nodes that define or read it.
    writers : int
        Bit mask of the nodes that may be the first of them; none for a storage that is alive from the start.
    resident, kept : bool
        Alive before the first node; alive to the end.
    """

    size: int
    nodes: int
    writers: int
    resident: bool = False
    kept: bool = False


@dataclass(frozen=True, eq=False)
class MemoryProblem:
    """Find an order of nodes with the least peak.

    Attributes
    ----------
    labels : tuple of int
        For each node, its index in the graph the problem was made from; ascending.
    predecessors : tuple of int
        For each node, the bit mask of the nodes that must come before it.
    storages : tuple of Storage
        Without those alive from the start to the end, and those of no bytes.
    inside : tuple of int
        For each node, bytes it needs while it runs beyond what it reads and defines.
    in_place : tuple of tuple of (int, int)
        For each node, candidate pairs of storages (defined, read) of which the first can take over the second.
    base : int
        Bytes alive all the time.
    """

    labels: tuple[int, ...]
    predecessors: tuple[int, ...]
    storages: tuple[Storage, ...]
    inside: tuple[int, ...]
    in_place: tuple[tuple[tuple[int, int], ...], ...]
    base: int = 0

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def touched(self) -> tuple[tuple[int, ...], ...]:
        """For each node, the storages it defines or reads."""
        found: list[list[int]] = [[] for _ in self.labels]
        for number, storage in enumerate(self.storages):
            for node in members(storage.nodes):
                found[node].append(number)
        return tuple(tuple(numbers) for numbers in found)

    @cached_property
    def ancestors(self) -> tuple[int, ...]:
        """For each node, the bit mask of the nodes that come before it in every order."""
        found: list[int] = []
        for before in self.predecessors:  # earlier nodes have lower numbers
            mask = before
            for node in members(before):
                mask |= found[node]
            found.append(mask)
        return tuple(found)

    @cached_property
    def descendants(self) -> tuple[int, ...]:
        """For each node, the bit mask of the nodes that come after it in every order."""
        found = [0] * len(self)
        for node in reversed(range(len(self))):
            mask = found[node] | 1 << node
            for other in members(self.predecessors[node]):
                found[other] |= mask
        return tuple(found)

    def alive(self, done: int) -> int:
        """Bytes alive after a set of nodes has run."""
        total = self.base
        for storage in self.storages:
            begun = storage.resident or storage.nodes & done
            if begun and (storage.kept or storage.nodes & ~done):
                total += storage.size
        return total

    def during(self, node: int, done: int) -> int:
        """Bytes alive while a node runs after a set of nodes, from the definition."""
        begun = 0
        for number in self.touched[node]:
            storage = self.storages[number]
            if not storage.resident and not storage.nodes & done:
                begun += storage.size
        return self.alive(done) + begun + self.inside[node] - self.taken_over(node, done)

    def taken_over(self, node: int, done: int) -> int:
        """Bytes a node writes over inputs that die at it, when it runs after a set of nodes."""
        used: set[int] = set()
        total = 0
        for target, source in self.in_place[node]:
            left = self.storages[source].nodes & ~(done | 1 << node)
            if not left and ~target not in used and source not in used:
                used |= {~target, source}
                total += self.storages[source].size
        return total

    def profile(self, order: Sequence[int]) -> tuple[list[int], list[int]]:
        """Bytes alive while each node of an order runs, and after it, in time linear in the size of the problem."""
        left = [storage.nodes.bit_count() for storage in self.storages]
        begun = [storage.resident for storage in self.storages]
        current = self.base + sum(storage.size for storage in self.storages if storage.resident)
        during, after = [], []
        for node in order:
            freed = 0
            for number in self.touched[node]:
                storage = self.storages[number]
                left[number] -= 1
                if not begun[number]:
                    begun[number] = True
                    current += storage.size
                if not left[number] and not storage.kept:
                    freed += storage.size
            taken = 0
            used: set[int] = set()
            for target, source in self.in_place[node]:
                if not left[source] and ~target not in used and source not in used:
                    used |= {~target, source}
                    taken += self.storages[source].size
            during.append(current + self.inside[node] - taken)
            current -= freed
            after.append(current)
        return during, after

    def peak(self, order: Sequence[int]) -> int:
        """Find the most bytes alive while a node of an order runs; the bytes alive before it for no nodes."""
        return max(self.profile(order)[0], default=self.alive(0))

    def part(self, nodes: Sequence[int], done: int, alive: int | None = None) -> MemoryProblem:
        """Take the problem of running some nodes right after a set of nodes; what is alive around them is resident.

        Parameters
        ----------
        nodes : sequence of int
            Nodes whose predecessors are among them or done.
        done : int
            Bit mask of nodes.
        alive : int, optional
            Bytes alive after ``done``, where they are known.
        """
        ordered = sorted(nodes)
        place = {node: number for number, node in enumerate(ordered)}
        chosen = sum(1 << node for node in ordered)
        base = self.alive(done) if alive is None else alive
        storages: list[Storage] = []
        renumbered: dict[int, int] = {}
        for number in sorted({number for node in ordered for number in self.touched[node]}):
            storage = self.storages[number]
            resident = storage.resident or bool(storage.nodes & done)
            kept = storage.kept or bool(storage.nodes & ~done & ~chosen)
            if resident and kept:
                continue
            base -= storage.size if resident else 0
            renumbered[number] = len(storages)
            inner = _moved(storage.nodes & chosen, place)
            writers = 0 if resident else _moved(storage.writers & chosen, place)
            storages.append(Storage(storage.size, inner, writers, resident, kept))
        in_place = []
        for node in ordered:
            pairs = (
                (renumbered[target], renumbered[source])
                for target, source in self.in_place[node]
                # One that is kept here is read later, so it does not die here.
                if source in renumbered and target in renumbered and not storages[renumbered[source]].kept
            )
            in_place.append(tuple(pairs))
        return MemoryProblem(
            tuple(self.labels[node] for node in ordered),
            tuple(_moved(self.predecessors[node] & chosen, place) for node in ordered),
            tuple(storages),
            tuple(self.inside[node] for node in ordered),
            tuple(in_place),
            base,
        )


def members(mask: int) -> Iterator[int]:
    """Yield the nodes of a bit mask, ascending."""
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


def memory_problem(graph: DataflowGraph, options: LivenessOptions | None = None) -> MemoryProblem:
    """Reduce a graph to what decides its memory.

    Parameters
    ----------
    graph : DataflowGraph
        A graph whose sizes are numbers (:meth:`DataflowGraph.bind` gives symbolic dimensions a value).
    options : LivenessOptions, optional
        What counts.

    Raises
    ------
    GraphError
        When the size of a storage that counts is symbolic or unknown.
    """
    options = options or LivenessOptions()
    nodes: dict[str, int] = {}
    writers: dict[str, int] = {}
    for node in graph.nodes:
        read = {graph.storages[name] for name in node.inputs}
        for name in (*node.inputs, *node.outputs):
            root = graph.storages[name]
            nodes[root] = nodes.get(root, 0) | 1 << node.index
            if root not in read:
                writers[root] = writers.get(root, 0) | 1 << node.index
    storages: list[Storage] = []
    numbers: dict[str, int] = {}
    counted: dict[str, int] = {}
    base = 0
    for name, root in graph.storages.items():
        tensor = graph.tensors[name]
        counting = options.of(tensor.kind)
        if name != root or counting == "ignore":
            continue
        size = counted[name] = _bytes(graph, name)
        resident, kept = tensor.kind in ("input", "constant"), counting == "always"
        if resident and kept:
            base += size
        elif name in nodes and size:
            numbers[name] = len(storages)
            storages.append(Storage(size, nodes[name], 0 if resident else writers[name], resident, kept))
    in_place = tuple(
        tuple(
            (numbers[target], numbers[source])
            for target, source in in_place_candidates(graph, node, options)
            if target in numbers and source in numbers
        )
        for node in graph.nodes
    )
    inside = tuple(bytes_inside(node, graph, counted) if options.nested else 0 for node in graph.nodes)
    before = tuple(sum(1 << other for other in others) for others in graph.predecessors)
    return MemoryProblem(tuple(range(len(graph))), before, tuple(storages), inside, in_place, base)


def _bytes(graph: DataflowGraph, name: str) -> int:
    size = graph.tensors[name].nbytes
    if isinstance(size, int):
        return size
    what = "is not known" if size is None else f"is {size}; give its symbols a value with bind()"
    raise GraphError(f"graph '{graph.name}': the size of tensor '{name}' in bytes {what}")


def _moved(mask: int, place: dict[int, int]) -> int:
    return sum(1 << place[node] for node in members(mask))
