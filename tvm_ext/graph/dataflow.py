"""The dataflow view of one function: its tensors, its nodes, and who produces and reads what. Plain data only.

A node is one binding of the function. It reads tensors and defines tensors; a tuple is seen as its fields, so every
value is a flat list of tensors and every dependence between nodes goes through a tensor (or is listed in
:attr:`Node.after`, where the order matters without one).

Bytes belong to *storages*. Most nodes allocate a storage for each tensor they define. A reshape, a tuple, a field taken
from a tuple or a ``match_cast`` defines a tensor that is an alias of another one, and costs nothing; the tensors that
share bytes have the same :meth:`DataflowGraph.storage`, which is called by the name of the tensor that is no alias.

An alias may be a part of its storage, from :attr:`Tensor.offset` on, and may be written before the storage's own tensor
is defined: the operands of a concatenation that are written into their parts of the result are aliases of the result.
The storage is allocated when the first of its tensors is defined.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, TypeAlias

from tvm_ext.errors import GraphError
from tvm_ext.graph.flops import Flops
from tvm_ext.graph.symbolic import Dim, product, substitute, symbols_of

Kind: TypeAlias = Literal["input", "constant", "intermediate", "output"]
Order: TypeAlias = "tuple[int, ...]"

# Values that are no tensors: they order nodes like tensors do and live on the host, without bytes worth counting.
HOST_VALUES = ("shape", "scalar", "string", "object", "function")


@dataclass(frozen=True)
class Tensor:
    """One tensor of a graph, or one host value (``dtype`` in :data:`HOST_VALUES`).

    Attributes
    ----------
    name : str
        Unique in the graph: the variable's name, with ``.0``, ``.1``, ... for the fields of a tuple.
    shape : tuple of (int or Symbolic), or None
        None where even the rank is unknown, and for host values.
    dtype : str
        As numpy spells it, ``""`` where unknown.
    nbytes : int, Symbolic or None
        Size in bytes; None where unknown.
    kind : str
        ``input`` (a parameter of the function), ``constant``, ``output`` (its storage is given to the caller) or
        ``intermediate``. An alias has the kind of its storage.
    alias_of : str or None
        The tensor whose bytes it shares; it may be defined later (a part of a concatenation).
    offset : int or Symbolic
        Where an alias begins in the tensor whose bytes it shares, in bytes.
    """

    name: str
    shape: tuple[Dim, ...] | None
    dtype: str
    nbytes: Dim | None
    kind: Kind = "intermediate"
    alias_of: str | None = None
    offset: Dim = 0

    @property
    def elements(self) -> Dim | None:
        """Number of elements, None where unknown."""
        return None if self.shape is None else product(self.shape)

    def __str__(self) -> str:
        shape = "?" if self.shape is None else ", ".join(str(d) for d in self.shape)
        return self.dtype if self.dtype in HOST_VALUES else f"{self.dtype or '?'}[{shape}]"


@dataclass(frozen=True)
class Node:
    """One binding of the function.

    Attributes
    ----------
    index : int
        Position in the order the function gives, from 0.
    name : str
        The bound variable; unique in the graph.
    op : str
        Operator without ``relax.``: ``nn.conv2d``, ``call_tir``, ``call_dps_packed``; ``call`` for a Relax function;
        ``tuple``, ``get_item``, ``match_cast``, ``shape``, ``constant``, ``alias``, ``if``, ``function``.
    inputs : tuple of str
        Tensors read, in operand order, each once.
    operands : tuple of str
        The same as written, repetitions included.
    outputs : tuple of str
        Tensors defined.
    callee : str
        The kernel, packed function or Relax function called, ``""`` for an operator.
    attributes : mapping of str to a plain value
        Attributes of the operator (strides, layouts, ...).
    flops : Flops or None
        None where unknown.
    after : tuple of int
        Nodes that must come first although no tensor says so: side effects, in-place writes, symbols that a
        ``match_cast`` defines.
    regions : tuple of DataflowGraph
        The branches of an ``if`` (true, false), or the body of the Relax function called, in the caller's symbols.
    is_kernel : bool
        A Relax function that is one kernel to be (``Primitive``): its intermediate tensors are not allocated.
    has_effect : bool
        It may do more than define its outputs, so it keeps its place.
    block : int
        The binding block it is in, from 0.
    in_place : tuple of (str, str)
        Pairs (output, input): the kernel may write this output over this input, element by element. It does where
        the input is an intermediate result that no other node needs any more; see
        :func:`~tvm_ext.graph.lifetimes.in_place_candidates`.
    """

    index: int
    name: str
    op: str
    inputs: tuple[str, ...] = ()
    operands: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    callee: str = ""
    attributes: Mapping[str, Any] = field(default_factory=dict, hash=False)
    flops: Flops | None = None
    after: tuple[int, ...] = ()
    regions: tuple[DataflowGraph, ...] = ()
    is_kernel: bool = False
    has_effect: bool = False
    block: int = 0
    in_place: tuple[tuple[str, str], ...] = ()

    @property
    def label(self) -> str:
        """What it does, in one word: the kernel or function called, or else the operator."""
        return self.callee or self.op


@dataclass(frozen=True, eq=False)
class DataflowGraph:
    """A function as nodes and tensors; compared by identity.

    Attributes
    ----------
    name : str
        Name of the function.
    nodes : tuple of Node
        In the order of the function, which is a topological order.
    tensors : mapping of str to Tensor
        Every tensor that is an input or is defined or read by a node.
    inputs, outputs : tuple of str
        Tensors the function takes, and returns (a tensor may be returned twice).

    Raises
    ------
    GraphError
        When a node reads a tensor that no earlier node defines, two nodes define the same tensor, a node may write in
        place what it does not read or define, or a tensor is an alias of an unknown one or, in a circle, of itself.
    """

    name: str
    nodes: tuple[Node, ...]
    tensors: Mapping[str, Tensor]
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        known = {name for name, tensor in self.tensors.items() if tensor.kind == "constant" and not tensor.alias_of}
        known |= set(self.inputs)
        for position, node in enumerate(self.nodes):
            if node.index != position:
                raise GraphError(f"graph '{self.name}': node '{node.name}' has index {node.index} at place {position}")
            for name in node.inputs:
                if name not in known:
                    raise GraphError(
                        f"graph '{self.name}': node '{node.name}' reads '{name}', which is not defined yet"
                    )
            for name in node.outputs:
                if name in known or name not in self.tensors:
                    what = "is defined twice" if name in known else "has no entry in tensors"
                    raise GraphError(f"graph '{self.name}': tensor '{name}' of node '{node.name}' {what}")
                known.add(name)
            if any(not 0 <= other < position for other in node.after):
                raise GraphError(f"graph '{self.name}': node '{node.name}' must run after a node that is not before it")
            for output, source in node.in_place:
                if output not in node.outputs or source not in node.inputs:
                    raise GraphError(
                        f"graph '{self.name}': node '{node.name}' cannot write '{output}' in place of '{source}': "
                        "expected one of its outputs and one of its inputs"
                    )
        for name in self.outputs:
            if name not in known:
                raise GraphError(f"graph '{self.name}' returns '{name}', which no node defines")
        self.storages  # noqa: B018 - refuses aliases of nothing

    def __len__(self) -> int:
        return len(self.nodes)

    @cached_property
    def producer(self) -> Mapping[str, int]:
        """For each tensor a node defines, the index of that node."""
        return {name: node.index for node in self.nodes for name in node.outputs}

    @cached_property
    def consumers(self) -> Mapping[str, tuple[int, ...]]:
        """For each tensor, the nodes that read it, in order."""
        readers: dict[str, list[int]] = {name: [] for name in self.tensors}
        for node in self.nodes:
            for name in node.inputs:
                readers[name].append(node.index)
        return {name: tuple(indices) for name, indices in readers.items()}

    @cached_property
    def predecessors(self) -> tuple[tuple[int, ...], ...]:
        """For each node, the nodes that must come before it, each once, ascending."""
        producer = self.producer
        return tuple(
            tuple(sorted({producer[t] for t in node.inputs if t in producer} | set(node.after))) for node in self.nodes
        )

    @cached_property
    def successors(self) -> tuple[tuple[int, ...], ...]:
        """For each node, the nodes that must come after it, each once, ascending."""
        followers: list[list[int]] = [[] for _ in self.nodes]
        for index, before in enumerate(self.predecessors):
            for other in before:
                followers[other].append(index)
        return tuple(tuple(indices) for indices in followers)

    @cached_property
    def storages(self) -> Mapping[str, str]:
        """For each tensor, the tensor that is allocated for its bytes (itself unless it is an alias)."""
        root: dict[str, str] = {}
        for name in self.tensors:
            chain: dict[str, None] = {}
            while name not in root and (source := self.tensors[name].alias_of) is not None:
                chain[name] = None
                if source in chain or source not in self.tensors:
                    what = "of itself, in a circle" if source in chain else f"of '{source}', which is no tensor of it"
                    raise GraphError(f"graph '{self.name}': tensor '{name}' is an alias {what}")
                name = source
            base = root.setdefault(name, name)
            root.update(dict.fromkeys(chain, base))
        return root

    @cached_property
    def wholes(self) -> frozenset[str]:
        """Storages that can be allocated before the node that defines them runs: tensors of theirs are made earlier."""
        made = {name: self.producer.get(name, -1) for name in self.tensors}
        return frozenset(root for name, root in self.storages.items() if 0 <= made[name] < made[root])

    def storage(self, name: str) -> Tensor:
        """Return the tensor that is allocated for the bytes of tensor ``name``."""
        return self.tensors[self.storages[name]]

    @property
    def constants(self) -> tuple[Tensor, ...]:
        """The constants that the function holds, in order of first use."""
        roots = (tensor for tensor in self.tensors.values() if tensor.alias_of is None and tensor.kind == "constant")
        return tuple(tensor for tensor in roots if tensor.dtype not in HOST_VALUES)

    @property
    def symbols(self) -> frozenset[str]:
        """The names of all symbolic dimensions, those of the graphs inside included."""
        sizes = (dim for g in self.walk() for t in g.tensors.values() for dim in (*(t.shape or ()), t.nbytes))
        return frozenset().union(*(symbols_of(size) for size in sizes))

    @property
    def flops(self) -> Flops:
        """Sum over the nodes whose FLOPs are known; :attr:`unknown_flops` lists the others."""
        total = Flops()
        for node in self.nodes:
            total = total + (node.flops or Flops())
        return total

    @property
    def unknown_flops(self) -> tuple[Node, ...]:
        """Nodes whose FLOPs are not known."""
        return tuple(node for node in self.nodes if node.flops is None)

    @property
    def unknown_bytes(self) -> tuple[Tensor, ...]:
        """Tensors whose size is not known, not even as an expression of symbols."""
        return tuple(tensor for tensor in self.tensors.values() if tensor.nbytes is None)

    def walk(self) -> Iterator[DataflowGraph]:
        """Yield the graph and the graphs inside it: branches, local functions, functions called; each once."""
        seen: set[int] = set()
        pending = [self]
        while pending:
            graph = pending.pop()
            if id(graph) in seen:
                continue
            seen.add(id(graph))
            yield graph
            pending.extend(region for node in reversed(graph.nodes) for region in reversed(node.regions))

    def bind(self, values: Mapping[str, Dim], inside: Binding | None = None) -> DataflowGraph:
        """Copy the graph with symbolic dimensions replaced by numbers or by other sizes.

        Parameters
        ----------
        values : mapping of str to int or Symbolic
            A value for some or all of :attr:`symbols`.
        inside : callable, optional
            What copies a graph that is inside of this one; by default this method does, each once.
        """
        done: dict[int, DataflowGraph] = {}

        def once(graph: DataflowGraph, values: Mapping[str, Dim]) -> DataflowGraph:
            if id(graph) not in done:
                done[id(graph)] = graph.bind(values, once)
            return done[id(graph)]

        def bound(size: Dim | None) -> Dim | None:
            return None if size is None else substitute(size, values)

        tensors = {
            name: replace(
                tensor,
                offset=substitute(tensor.offset, values),
                shape=None if tensor.shape is None else tuple(substitute(dim, values) for dim in tensor.shape),
                nbytes=bound(tensor.nbytes),
            )
            for name, tensor in self.tensors.items()
        }
        nodes = tuple(
            replace(
                node,
                flops=None if node.flops is None else node.flops.substitute(values),
                regions=tuple((inside or once)(region, values) for region in node.regions),
            )
            for node in self.nodes
        )
        return replace(self, nodes=nodes, tensors=tensors)


Binding: TypeAlias = Callable[[DataflowGraph, Mapping[str, Dim]], DataflowGraph]


def tensor_bytes(shape: Sequence[Dim] | None, dtype: str) -> Dim | None:
    """Size of a dense tensor; every element takes whole bytes, as TVM allocates it.

    Examples
    --------
    >>> tensor_bytes((2, 3), "float16"), tensor_bytes((8,), "int4"), tensor_bytes((2,), "float32x4")
    (12, 8, 32)
    """
    if dtype in HOST_VALUES:
        return 0
    size = element_bytes(dtype)
    return None if shape is None or size is None else product(shape) * size


def element_bytes(dtype: str) -> int | None:
    """Bytes of one element of a data type, None where the type is unknown."""
    if dtype == "bool":
        return 1
    match = re.fullmatch(r"b?[a-z]+?(\d+)(?:_[a-z0-9]+?)?(?:x(\d+))?", dtype)
    return None if match is None else math.ceil(int(match[1]) / 8) * int(match[2] or 1)


def graph_of_sizes(predecessors: Sequence[Sequence[int]], sizes: Sequence[int], name: str = "main") -> DataflowGraph:
    """Make a graph of numbers: node ``i`` reads the results of ``predecessors[i]`` and defines ``sizes[i]`` bytes.

    The results that no node reads are the outputs.

    Examples
    --------
    >>> graph_of_sizes([[], [0], [0], [1, 2]], [4, 8, 8, 1]).successors
    ((1, 2), (3,), (3,), ())
    """
    read = {other for before in predecessors for other in before}
    nodes = []
    tensors = {}
    for index, (before, size) in enumerate(zip(predecessors, sizes, strict=True)):
        label = f"t{index}"
        reads = tuple(f"t{other}" for other in before)
        nodes.append(Node(index, label, "op", inputs=reads, operands=reads, outputs=(label,), flops=Flops()))
        tensors[label] = Tensor(label, (size,), "uint8", size, "intermediate" if index in read else "output")
    outputs = tuple(f"t{index}" for index in range(len(sizes)) if index not in read)
    return DataflowGraph(name, tuple(nodes), tensors, outputs=outputs)
