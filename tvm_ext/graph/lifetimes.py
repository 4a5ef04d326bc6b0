"""When each storage is alive in an order of the nodes, and how many bytes that takes.

A node first allocates what it defines, then runs, then the storages that no later node reads are freed (the model of
B. H. Ahn et al., "Ordering Chaos: Memory-Aware Scheduling of Irregularly Wired Neural Networks for Edge Devices",
MLSys 2020, section 3.1). So the bytes while a node runs are the ones after the node before it, plus what it allocates.
A node that writes a result over an input that dies there allocates nothing for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from tvm_ext.errors import GraphError, OptionError
from tvm_ext.graph.dataflow import DataflowGraph, Kind, Node, Order, Tensor
from tvm_ext.graph.orders import check_order, given_order

Counting: TypeAlias = Literal["ignore", "until last use", "always"]
_COUNTINGS = ("ignore", "until last use", "always")


@dataclass(frozen=True)
class LivenessOptions:
    """What a live byte is.

    Attributes
    ----------
    inputs, constants : str
        ``ignore``: the caller's memory, not counted; ``until last use``: alive from the start until no later node reads
        it; ``always``: alive from the start to the end.
    outputs : str
        ``always``: from the node that defines it to the end, as the caller gets it; ``until last use``; ``ignore``.
    nested : bool
        Count what the branches of an ``if`` and called functions allocate while they run.
    """

    inputs: Counting = "ignore"
    constants: Counting = "ignore"
    outputs: Counting = "always"
    nested: bool = True

    def __post_init__(self) -> None:
        for name in ("inputs", "constants", "outputs"):
            value = getattr(self, name)
            if value not in _COUNTINGS:
                raise OptionError(f"liveness option '{name}' is '{value}', expected one of {', '.join(_COUNTINGS)}")

    def of(self, kind: Kind) -> Counting:
        """How storages of a kind are counted."""
        by_kind: dict[str, Counting] = {"input": self.inputs, "constant": self.constants, "output": self.outputs}
        return by_kind.get(kind, "until last use")


@dataclass(frozen=True, eq=False)
class Liveness:
    """Memory over time of one order.

    Attributes
    ----------
    order : tuple of int
        The order, as node indices.
    during : array of int64, one per step
        Bytes alive while the step runs, what it allocates and what it needs inside included.
    after : array of int64, one per step
        Bytes alive after the step, when what is not read again is freed.
    intervals : mapping of str to (int, int)
        For each storage counted, the first and the last step at which it is alive; -1 is before the first step, and
        the number of steps is after the last one.
    sizes : mapping of str to int
        Bytes of each storage counted.
    in_place : mapping of str to str
        For each storage that takes over the bytes of another one, which dies at the step that defines it: that other.
    """

    order: Order
    during: npt.NDArray[np.int64]
    after: npt.NDArray[np.int64]
    intervals: Mapping[str, tuple[int, int]]
    sizes: Mapping[str, int]
    in_place: Mapping[str, str] = field(default_factory=dict)

    @property
    def peak(self) -> int:
        """Bytes at the highest step; 0 for no steps."""
        return int(self.during.max()) if len(self.during) else sum(self.sizes.values())

    @property
    def peak_step(self) -> int:
        """The first step at which the peak is reached; 0 for no steps."""
        return int(self.during.argmax()) if len(self.during) else 0

    def live_at(self, step: int) -> tuple[str, ...]:
        """Names of the storages alive while a step runs, largest first."""
        alive = [name for name, (first, last) in self.intervals.items() if first <= step <= last]
        return tuple(sorted(alive, key=lambda name: -self.sizes[name]))

    @property
    def live_at_peak(self) -> tuple[str, ...]:
        """Names of the storages alive at the peak, largest first."""
        return self.live_at(self.peak_step)


def liveness(
    graph: DataflowGraph, order: Sequence[int] | None = None, options: LivenessOptions | None = None
) -> Liveness:
    """Follow the memory when the nodes run in an order, in time linear in the size of the graph.

    Parameters
    ----------
    graph : DataflowGraph
        A graph whose sizes are numbers (:meth:`DataflowGraph.bind` gives symbolic dimensions a value).
    order : sequence of int, optional
        A topological order; default the given one.
    options : LivenessOptions, optional
        What counts.

    Raises
    ------
    GraphError
        When the order is not topological, or the size of a storage that counts is symbolic or unknown.
    """
    options = options or LivenessOptions()
    order = given_order(graph) if order is None else check_order(graph, order)
    steps = len(order)
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    sizes: dict[str, int] = {}
    for name, root in graph.storages.items():
        tensor = graph.tensors[name]
        if name == root and options.of(tensor.kind) != "ignore":
            sizes[name] = _bytes(graph, tensor)
            if tensor.kind in ("input", "constant"):
                first[name] = last[name] = -1
            if options.of(tensor.kind) == "always":
                last[name] = steps
    for step, index in enumerate(order):
        node = graph.nodes[index]
        for name in (*node.inputs, *node.outputs):
            root = graph.storages[name]
            if root in sizes:
                first.setdefault(root, step)
                last[root] = max(last.get(root, step), step)
    intervals = {name: (first[name], last[name]) for name in sizes if name in first}
    # Bytes that begin or cease to be alive at a step, the steps shifted by one so that -1 has a place.
    change = np.zeros(steps + 3, dtype=np.int64)
    for name, (begin, end) in intervals.items():
        change[begin + 1] += sizes[name]
        change[end + 2] -= sizes[name]
    running = np.cumsum(change)[1 : steps + 1]
    freed = np.zeros(steps, dtype=np.int64)
    for name, (_, end) in intervals.items():
        if 0 <= end < steps:
            freed[end] += sizes[name]
    inside = np.zeros(steps, dtype=np.int64)
    if options.nested:
        for step, index in enumerate(order):
            inside[step] = bytes_inside(graph.nodes[index], graph, sizes)
    taken_over: dict[str, str] = {}
    for step, index in enumerate(order):
        free = {name for name, _ in graph.nodes[index].in_place}
        dying: set[str] = set()
        for target, source in in_place_candidates(graph, graph.nodes[index], options):
            if target in free and intervals[source][1] == step and source not in dying:
                taken_over[target] = source
                free.remove(target)
                dying.add(source)
                inside[step] -= sizes[source]
    return Liveness(tuple(order), running + inside, running - freed, intervals, sizes, taken_over)


def peak_bytes(graph: DataflowGraph, order: Sequence[int] | None = None, options: LivenessOptions | None = None) -> int:
    """Find the most bytes alive at any step of an order; see :func:`liveness`."""
    return liveness(graph, order, options).peak


def in_place_candidates(
    graph: DataflowGraph, node: Node, options: LivenessOptions | None = None
) -> tuple[tuple[str, str], ...]:
    """List the pairs of storages (defined, read) of a node of which the first can take over the bytes of the second.

    The one defined must be allocated by this node, whole, and have the size of the one read; the one read must be an
    intermediate result, since the bytes of inputs, constants and outputs are someone else's. Both must count. In an
    order, a candidate holds if the storage read dies at the node; the first candidates, in the order of
    :attr:`Node.in_place`, are served first, each storage once.
    """
    options = options or LivenessOptions()
    pairs = []
    for target, name in node.in_place:
        source = graph.storage(name)
        defined = graph.tensors[target]
        if (
            graph.storages[target] == target
            and target not in graph.wholes
            and source.kind == "intermediate"
            and defined.nbytes == source.nbytes
            and options.of(defined.kind) != "ignore"
        ):
            pairs.append((target, source.name))
    return tuple(pairs)


def _bytes(graph: DataflowGraph, tensor: Tensor) -> int:
    if isinstance(tensor.nbytes, int):
        return tensor.nbytes
    if tensor.nbytes is None:
        raise GraphError(f"graph '{graph.name}': the size of tensor '{tensor.name}' ({tensor}) is not known")
    raise GraphError(
        f"graph '{graph.name}': tensor '{tensor.name}' has {tensor.nbytes} bytes; give its symbols a value with bind()"
    )


def bytes_inside(node: Node, graph: DataflowGraph, sizes: Mapping[str, int]) -> int:
    """Find the bytes alive inside the branches or the function a node runs, beyond what its outputs already count."""
    if not node.regions or node.is_kernel or node.op == "function":
        return 0
    own = sum(sizes.get(name, 0) for name in node.outputs if graph.storages[name] == name)
    return max(0, max(map(_own_peak, node.regions)) - own)


def _own_peak(graph: DataflowGraph) -> int:
    """Find the peak of a graph in its own order, once.

    The repetitions of a loop are functions that call the next shorter one twice: counted at each call, forty of them
    would never end.
    """
    known = vars(graph)  # where the properties of a graph are kept, too
    if "_own_peak" not in known:
        known["_own_peak"] = peak_bytes(graph)
    return int(known["_own_peak"])
