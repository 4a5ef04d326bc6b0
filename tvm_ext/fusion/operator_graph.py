"""A function as operators: what the fusion planner sees.

Bindings that compute nothing (tuples and their fields, aliases, constants, shapes) are no operators: an operator that
reads a field of a split reads the split. Plain data; :func:`operator_graph` makes it from the dataflow view.
"""

from __future__ import annotations

from collections.abc import Mapping as MappingOf
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from tvm_ext.errors import GraphError
from tvm_ext.graph.dataflow import HOST_VALUES, DataflowGraph, Node
from tvm_ext.graph.mapping_types import Mapping, MappingType, operator_mapping

# Bindings that only name values, or make values of the host.
_NO_OPERATORS = frozenset(
    """tuple get_item alias constant match_cast shape scalar string object function shape_of shape_to_tensor
    tensor_to_shape null_value""".split()
)


@dataclass(frozen=True)
class Edge:
    """An operand that another operator computes: its number, and the mapping type from it to the reader's result."""

    source: int
    mapping: MappingType


@dataclass(frozen=True)
class Operator:
    """One operator.

    Attributes
    ----------
    name : str
        Of the binding; unique.
    op : str
        What it does.
    mapping : MappingType
        Its type.
    edges : tuple of Edge
        Operands computed by other operators, one for each source and type.
    given : tuple of str
        Operands that no operator computes: weights and inputs.
    nbytes : int
        Size of its results.
    flops : int
        Arithmetic; 0 where unknown.
    shape : str
        Shape and type of its first result, such as ``float32[1, 64]``.
    is_output : bool
        Whether the function returns a result of it.
    is_disjoint_window : bool
        See :attr:`tvm_ext.graph.mapping_types.Mapping.is_disjoint_window`.
    rows : tuple of two int, optional
        See :attr:`tvm_ext.graph.mapping_types.Mapping.rows`.
    tail : MappingType, optional
        Of an operator whose schedule is given, such as a convolution of a blocked layout: the most complex type that
        may be fused behind it. Nothing is fused in front of it, and such a block has one result.
    node : int
        Index of the node in the dataflow graph, or -1.
    """

    name: str
    op: str
    mapping: MappingType
    edges: tuple[Edge, ...] = ()
    given: tuple[str, ...] = ()
    nbytes: int = 0
    flops: int = 0
    shape: str = ""
    is_output: bool = False
    is_disjoint_window: bool = False
    rows: tuple[int, int] | None = None
    tail: MappingType | None = None
    node: int = -1


@dataclass(frozen=True, eq=False)
class OperatorGraph:
    """Operators in topological order.

    Attributes
    ----------
    name : str
        Of the function.
    operators : tuple of Operator
        Edges lead to later operators only.
    given_bytes : mapping of str to int
        Size of each operand that no operator computes.

    Raises
    ------
    GraphError
        When an operator reads one that is not before it.
    """

    name: str
    operators: tuple[Operator, ...]
    given_bytes: MappingOf[str, int]

    def __post_init__(self) -> None:
        for index, operator in enumerate(self.operators):
            for edge in operator.edges:
                if not 0 <= edge.source < index:
                    raise GraphError(
                        f"graph '{self.name}': operator '{operator.name}' (number {index}) reads operator "
                        f"{edge.source}, which is not before it"
                    )

    def __len__(self) -> int:
        return len(self.operators)

    @cached_property
    def predecessors(self) -> tuple[tuple[int, ...], ...]:
        """For each operator, those it reads, each once, ascending."""
        return tuple(tuple(sorted({edge.source for edge in operator.edges})) for operator in self.operators)

    @cached_property
    def successors(self) -> tuple[tuple[int, ...], ...]:
        """For each operator, those that read it, each once, ascending."""
        readers: list[list[int]] = [[] for _ in self.operators]
        for index, sources in enumerate(self.predecessors):
            for source in sources:
                readers[source].append(index)
        return tuple(tuple(found) for found in readers)

    @property
    def intermediate_bytes(self) -> int:
        """Bytes of all results of all operators: what is written when nothing is fused."""
        return sum(operator.nbytes for operator in self.operators)


def operator_graph(
    graph: DataflowGraph,
    mappings: MappingOf[int, Mapping] | None = None,
    tails: MappingOf[int, MappingType] | None = None,
) -> OperatorGraph:
    """Make the operator graph of a dataflow graph.

    Parameters
    ----------
    graph : DataflowGraph
        Of a Relax function, before or after its operators are lowered to loops.
    mappings : mapping of int to Mapping, optional
        Mapping types of nodes by index, where the table does not know them (calls of TIR functions); the types of
        other nodes are those of the table.
    tails : mapping of int to MappingType, optional
        What may follow operators whose schedule is given, by index of the node; see :attr:`Operator.tail`.
    """
    producers: dict[str, tuple[int, ...]] = {}  # tensor -> operators behind it
    folded = {name for name, tensor in graph.tensors.items() if tensor.kind == "constant"}
    operators: list[Operator] = []
    sizes: dict[str, int] = {}
    for node in graph.nodes:
        is_pure = not (node.has_effect or node.regions or node.after)
        if is_pure and all(name in folded for name in node.operands):
            folded.update(node.outputs)  # computed when the function is compiled
        elif node.op in _NO_OPERATORS:
            _rename(node, producers)
        else:
            mapping = (mappings or {}).get(node.index) or _table_mapping(graph, node)
            edges, given = _operands(graph, node, mapping, producers)
            sizes.update((name, _bytes(graph, name)) for name in given)
            flops = node.flops.total if node.flops is not None else 0
            operators.append(
                Operator(
                    name=node.name,
                    op=node.label,
                    mapping=mapping.node if is_pure else MappingType.OPAQUE,
                    edges=edges,
                    given=given,
                    nbytes=sum(_bytes(graph, name) for name in node.outputs),
                    flops=flops if isinstance(flops, int) else 0,
                    shape=str(graph.tensors[node.outputs[0]]) if node.outputs else "",
                    is_disjoint_window=mapping.is_disjoint_window,
                    rows=mapping.rows,
                    tail=(tails or {}).get(node.index),
                    node=node.index,
                )
            )
            producers.update({name: (len(operators) - 1,) for name in node.outputs})
    returned = {source for name in graph.outputs for source in producers.get(name, ())}
    marked = (replace(operator, is_output=index in returned) for index, operator in enumerate(operators))
    return OperatorGraph(graph.name, tuple(marked), sizes)


def _operands(
    graph: DataflowGraph, node: Node, mapping: Mapping, producers: MappingOf[str, tuple[int, ...]]
) -> tuple[tuple[Edge, ...], tuple[str, ...]]:
    """Find what an operator reads: other operators, and what is given."""
    edges: dict[Edge, None] = {}
    given: dict[str, None] = {}
    fits = len(mapping.operands) == len(node.operands)
    kinds = mapping.operands if fits else (mapping.node,) * len(node.operands)
    for name, kind in zip(node.operands, kinds, strict=True):
        if name in producers:
            edges.update({Edge(source, kind): None for source in producers[name]})
        elif graph.tensors[name].dtype not in HOST_VALUES:
            given[name] = None
    for other in node.after:
        for name in graph.nodes[other].outputs:
            edges.update({Edge(source, MappingType.OPAQUE): None for source in producers.get(name, ())})
    return tuple(edges), tuple(given)


def _table_mapping(graph: DataflowGraph, node: Node) -> Mapping:
    return operator_mapping(
        node.op,
        [graph.tensors[name] for name in node.operands],
        [graph.tensors[name] for name in node.outputs],
        node.attributes,
    )


def _rename(node: Node, producers: dict[str, tuple[int, ...]]) -> None:
    """Pass on what is behind the operands of a binding that computes nothing."""
    if node.op == "tuple" and len(node.operands) == len(node.outputs):
        pairs: Sequence[tuple[str, tuple[str, ...]]] = [
            (name, (operand,)) for name, operand in zip(node.outputs, node.operands, strict=True)
        ]
    else:
        pairs = [(name, node.operands) for name in node.outputs]
    for name, operands in pairs:
        behind = tuple(dict.fromkeys(source for operand in operands for source in producers.get(operand, ())))
        if behind:
            producers[name] = behind


def _bytes(graph: DataflowGraph, name: str) -> int:
    size = graph.tensors[name].nbytes
    return size if isinstance(size, int) else 0
