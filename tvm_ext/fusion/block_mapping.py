"""The mapping type of a set of operators, and whether the combination table lets them be one kernel.

The types flow along the edges inside the set: an operator without predecessors in it has its own type, another one the
combination of what reaches it with the type of the edge. Two Many-to-Many operators that no path joins are red as well:
the loops of a kernel are those of one of them.

Two things go beyond the table. Reductions of the same rows share their loops, so they may follow one another with what
is computed from row to row between them: a row stays in the cache from the first to the last. And an operator whose
schedule is given (:attr:`~tvm_ext.fusion.operator_graph.Operator.tail`) takes only what that schedule can do.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from tvm_ext.fusion.combination import Colour, Combination, combine
from tvm_ext.fusion.operator_graph import Edge, Operator, OperatorGraph
from tvm_ext.graph.mapping_types import MappingType, compose


@dataclass(frozen=True)
class BlockMapping:
    """Type of a fused operator, and whether a combination in it is yellow."""

    mapping: MappingType
    is_yellow: bool


def is_anchor(operator: Operator) -> bool:
    """Whether an operator decides the loops of its block: a block has one such operator, or reductions of one form."""
    return operator.mapping is MappingType.MANY_TO_MANY and not operator.is_disjoint_window


def own_mapping(operator: Operator) -> MappingType:
    """Type of an operator for those that read it: a maximum over separate windows is read like changed indices."""
    return MappingType.REORGANIZE if operator.is_disjoint_window else operator.mapping


def block_mapping(graph: OperatorGraph, members: Collection[int]) -> BlockMapping | None:
    """Find the type of a set of operators; None where a combination in it is red."""
    operators = graph.operators
    if len(members) > 1 and any(operators[index].mapping is MappingType.OPAQUE for index in members):
        return None
    if len(members) > 1 and not _suits_schedules(graph, members):
        return None
    many = [operators[index] for index in members if operators[index].mapping is MappingType.MANY_TO_MANY]
    if len(many) > 1 and many[0].rows is not None and all(operator.rows == many[0].rows for operator in many):
        found = _flow(graph, members, in_rows=True)
        if found is not None:
            return found
    return None if sum(map(is_anchor, many)) > 1 else _flow(graph, members, in_rows=False)


def _flow(graph: OperatorGraph, members: Collection[int], in_rows: bool) -> BlockMapping | None:
    """Let the types flow along the edges; ``in_rows``: all reductions are of the same rows."""
    operators = graph.operators
    reached: dict[int, MappingType] = {}
    is_yellow = False
    for index in sorted(members):
        operator = operators[index]
        mapping = None
        for edge in operator.edges:
            if edge.source not in reached:
                continue
            cell = combine(reached[edge.source], edge.mapping, operator.is_disjoint_window)
            if in_rows:
                cell = _combine_in_rows(cell, reached[edge.source], edge, operator)
            if not cell.is_allowed:
                return None
            is_yellow = is_yellow or cell.colour is Colour.YELLOW
            mapping = cell.mapping if mapping is None else compose(mapping, cell.mapping)
        if mapping is None or operator.mapping is MappingType.ONE_TO_MANY:
            mapping = compose(own_mapping(operator), mapping or MappingType.ONE_TO_ONE)
        reached[index] = mapping
    whole = MappingType.ONE_TO_ONE
    for mapping in reached.values():
        whole = compose(whole, mapping)
    return BlockMapping(whole, is_yellow)


def _combine_in_rows(cell: Combination, before: MappingType, edge: Edge, operator: Operator) -> Combination:
    """Combine two operators of a block of reductions of the same rows: data keep their place, or spread over a row."""
    if MappingType.OPAQUE in (before, edge.mapping):
        return cell
    moves = edge.mapping in (MappingType.REORGANIZE, MappingType.SHUFFLE)
    spreads = operator.mapping is MappingType.ONE_TO_MANY
    if moves or spreads:
        return Combination(Colour.RED, MappingType.OPAQUE)
    return Combination(Colour.YELLOW, MappingType.MANY_TO_MANY)


def _suits_schedules(graph: OperatorGraph, members: Collection[int]) -> bool:
    """Whether operators with a schedule of their own have nothing before them, and behind them only what it takes."""
    operators = graph.operators
    inside = set(members)
    if all(operators[index].tail is None for index in inside):
        return True
    tails: dict[int, MappingType] = {}  # the most complex type that may read each of these results
    for index in sorted(inside):
        operator = operators[index]
        edges = [edge for edge in operator.edges if edge.source in inside]
        if operator.tail is not None and edges:
            return False
        for edge in edges:
            limit = tails.get(edge.source)
            if limit is not None and max(edge.mapping, operator.mapping) > limit:
                return False
        limits = [tails[edge.source] for edge in edges if edge.source in tails]
        limits += [] if operator.tail is None else [operator.tail]
        if limits:
            tails[index] = min(limits)
    written = [i for i in inside if operators[i].is_output or any(r not in inside for r in graph.successors[i])]
    return len(written) <= 1
