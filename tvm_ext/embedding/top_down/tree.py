"""A program as the strict tree that patterns are matched with (section 3.2.1).

Edges to iterators become path lengths: what defines an iterator is above what uses it, so that a number of steps to the
parent says which it is. Of an input only the visible dimensions are there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tvm_ext.embedding.top_down.graph import Compute, Constant, Expression, Graph, Index, Input, Reduce
from tvm_ext.embedding.top_down.masks import Mask

PREVIOUS = "previous"
"""The edge from a tensor node to what is computed before it."""

Label = tuple[str | int | float, ...]


@dataclass(frozen=True)
class Node:
    """A node of the tree.

    Attributes
    ----------
    label : tuple
        Type, and what else two nodes must have in common to be alike.
    children : tuple of (int or str, Node)
        Edges, numbered from the right; a preceding computation is last.
    statement : int
        The statement that a node belongs to; of a loop around several, the last.
    level : int
        Of an iterator that the node defines; -1: none.
    """

    label: Label
    children: tuple[tuple[int | str, Node], ...] = ()
    statement: int = 0
    level: int = -1

    @property
    def body(self) -> tuple[tuple[int | str, Node], ...]:
        """Edges but that to what is computed before."""
        return tuple((edge, child) for edge, child in self.children if edge != PREVIOUS)

    def walk(self) -> Iterator[Node]:
        """Go through the nodes below, this one first, from right to left; without what is computed before this one."""
        yield self
        for _, child in self.body:
            yield from child.walk_all()

    def walk_all(self) -> Iterator[Node]:
        """Go through the nodes below, this one first, from right to left."""
        yield self
        for _, child in self.children:
            yield from child.walk_all()

    @property
    def leaves(self) -> int:
        """Leaves below, without those of what is computed before."""
        return sum(not node.children for node in self.walk())


def tree(graph: Graph, masks: Sequence[Mask] | None = None) -> Node:
    """Build the tree of a program, with the inputs of each statement masked.

    The root is the outermost loop of the last statement.
    """
    return _nest(graph, masks, 0, len(graph.statements) - 1, 0)


def _nest(graph: Graph, masks: Sequence[Mask] | None, first: int, last: int, level: int) -> Node:
    """Build the loops at one level of statements that share those outside; gives the last."""
    previous: Node | None = None
    start = first
    for number in range(first, last + 1):
        if number < last and graph.shared[number] > level:
            continue
        if start == number and level + 1 == len(graph.statements[number].loops):
            mask = None if masks is None else list(masks[number])
            # Loops are one above the other: the depth of their nodes is their level.
            child = _expression(graph.statements[number].value, number, list(range(level + 1)), level + 1, mask)
        else:
            child = _nest(graph, masks, start, number, level + 1)
        edges: tuple[tuple[int | str, Node], ...] = ((0, child),)
        previous = Node(("tensor",), edges if previous is None else (*edges, (PREVIOUS, previous)), number, level)
        start = number + 1
    assert previous is not None
    return previous


def _expression(value: Expression, statement: int, iterators: list[int], depth: int, mask: list[int] | None) -> Node:
    """Build an expression at a depth; ``iterators`` has the depth of the node of each iterator around it."""
    if isinstance(value, Constant):
        return Node(("input", 0), statement=statement)  # an immediate is a scalar operand
    if isinstance(value, Input):
        visible = mask.pop(0) if mask is not None else len(value.index)
        kept = value.index[len(value.index) - visible :]
        edges = tuple(
            (number, _access(index, statement, iterators, depth + 1)) for number, index in enumerate(reversed(kept))
        )
        return Node(("input", visible), edges, statement)
    if isinstance(value, Reduce):
        inner = _expression(value.body, statement, [*iterators, depth], depth + 1, mask)
        initial = Node(("initial",), statement=statement)
        return Node(("reduction", value.operation), ((0, initial), (1, inner)), statement, len(iterators))
    assert isinstance(value, Compute)
    operands = [_expression(operand, statement, iterators, depth + 1, mask) for operand in value.operands]
    return Node(("compute", value.operation), tuple(enumerate(reversed(operands))), statement)


def _access(index: Index, statement: int, iterators: list[int], depth: int) -> Node:
    """Build the tree of an access function: sums of products of steps and iterators."""
    if index.iterator is not None:
        return Node(("iterator", depth - iterators[index.iterator]), statement=statement)
    if not index.terms:
        return Node(("constant", index.offset), statement=statement)
    if index.offset or len(index.terms) > 1:
        parts = [Index((term,)) for term in index.terms] + ([Index((), index.offset)] if index.offset else [])
        edges = tuple((number, _access(part, statement, iterators, depth + 1)) for number, part in enumerate(parts))
        return Node(("access", "add"), edges, statement)
    ((level, step),) = index.terms
    factors = (Index(((level, 1),)), Index((), step))
    edges = tuple((number, _access(part, statement, iterators, depth + 1)) for number, part in enumerate(factors))
    return Node(("access", "mul"), edges, statement)


def node_count(graph: Graph) -> int:
    """Count the nodes of a program, all dimensions of all inputs among them."""
    return sum(1 for _ in tree(graph).walk_all())


def read_interval(index: Index, intervals: Sequence[tuple[int, int]], point: Sequence[int]) -> tuple[int, int]:
    """Bound the places that an index reads, at a point of the outer iterators.

    Iterators around the point are at one value; those below run through their interval.

    Parameters
    ----------
    index : Index
    intervals : sequence of (int, int)
        First and last value of each iterator, by levels.
    point : sequence of int
        Values of the outermost iterators.

    Returns
    -------
    (int, int)
        First and last place.
    """
    low = high = index.offset
    for level, step in index.terms:
        first, last = (point[level], point[level]) if level < len(point) else intervals[level]
        low, high = low + min(step * first, step * last), high + max(step * first, step * last)
    return low, high
