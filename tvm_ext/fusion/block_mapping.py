"""The mapping type of a set of operators, and whether the combination table lets them be one kernel.

The types flow along the edges inside the set: an operator without predecessors in it has its own type, another one the
combination of what reaches it with the type of the edge. Two Many-to-Many operators that no path joins are red as well:
the loops of a kernel are those of one of them.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from tvm_ext.fusion.combination import Colour, combine
from tvm_ext.fusion.operator_graph import Operator, OperatorGraph
from tvm_ext.graph.mapping_types import MappingType, compose


@dataclass(frozen=True)
class BlockMapping:
    """Type of a fused operator, and whether a combination in it is yellow."""

    mapping: MappingType
    is_yellow: bool


def is_anchor(operator: Operator) -> bool:
    """Whether an operator decides the loops of its block: there is at most one such operator in a block."""
    return operator.mapping is MappingType.MANY_TO_MANY and not operator.is_disjoint_window


def own_mapping(operator: Operator) -> MappingType:
    """Type of an operator for those that read it: a maximum over separate windows is read like changed indices."""
    return MappingType.REORGANIZE if operator.is_disjoint_window else operator.mapping


def block_mapping(graph: OperatorGraph, members: Collection[int]) -> BlockMapping | None:
    """Find the type of a set of operators; None where a combination in it is red."""
    if len(members) > 1 and any(graph.operators[index].mapping is MappingType.OPAQUE for index in members):
        return None
    if sum(is_anchor(graph.operators[index]) for index in members) > 1:
        return None
    reached: dict[int, MappingType] = {}
    is_yellow = False
    for index in sorted(members):
        operator = graph.operators[index]
        mapping = None
        for edge in operator.edges:
            if edge.source not in reached:
                continue
            cell = combine(reached[edge.source], edge.mapping, operator.is_disjoint_window)
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
