"""Checks a fusion plan by other means than the planner's: reachability and counting instead of types that flow.

What the combination table forbids comes down to this: what is fused in front of a Many-to-Many operator may neither be
another one nor multiply data. So no two of them share a block, and no operator or edge of type One-to-Many leads to one
inside a block. Reductions of the same rows are excepted: between them a row may be spread, but nothing may be moved.
Operators whose schedule is given begin their block, and only what that schedule can do depends on them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import networkx as nx

from tvm_ext.errors import GraphError
from tvm_ext.fusion.operator_graph import Operator, OperatorGraph
from tvm_ext.fusion.plan import FusionPlan
from tvm_ext.graph.mapping_types import MappingType


def verify_plan(plan: FusionPlan, graph: OperatorGraph, given: Collection[Collection[int]] = ()) -> None:
    """Check a plan.

    Parameters
    ----------
    given : collection of collections of int
        Blocks that were not made by the combination table, which need not follow it.

    Raises
    ------
    GraphError
        When an operator is in no block or in two, blocks read each other or run before what they read, a block holds a
        combination that must not be fused, or the list of results that need not be written is wrong; the message names
        the operators.
    """
    _check_partition(plan, graph)
    _check_order(plan, graph)
    whole = nx.MultiDiGraph()
    whole.add_nodes_from(range(len(graph)))
    for index, operator in enumerate(graph.operators):
        whole.add_edges_from((edge.source, index, {"mapping": edge.mapping}) for edge in operator.edges)
    exempt = {frozenset(members) for members in given}
    for number, block in enumerate(plan.blocks):
        if len(block.operators) > 1 and frozenset(block.operators) not in exempt:
            _check_block(f"block {number}", whole.subgraph(block.operators), graph)
    _check_removable(plan, graph)


def _check_partition(plan: FusionPlan, graph: OperatorGraph) -> None:
    found = sorted(index for block in plan.blocks for index in block.operators)
    if found == list(range(len(graph))):
        return
    for index, operator in enumerate(graph.operators):
        count = found.count(index)
        if count != 1:
            raise GraphError(
                f"fusion plan of '{graph.name}': operator '{operator.name}' is in {count} blocks, not in one"
            )
    raise GraphError(f"fusion plan of '{graph.name}': it holds operator {found[-1]}, but there are only {len(graph)}")


def _check_order(plan: FusionPlan, graph: OperatorGraph) -> None:
    """Blocks that run one after the other, each after what it reads, cannot read each other and are convex."""
    done: set[int] = set()
    for number, block in enumerate(plan.blocks):
        known = done | set(block.operators)
        for index in block.operators:
            for edge in graph.operators[index].edges:
                if edge.source not in known:
                    source, reader = graph.operators[edge.source].name, graph.operators[index].name
                    raise GraphError(
                        f"fusion plan of '{graph.name}': block {number} runs before operator '{source}', which its "
                        f"operator '{reader}' reads"
                    )
        done = known


def _check_block(label: str, block: nx.MultiDiGraph, graph: OperatorGraph) -> None:
    operators = graph.operators
    names = {index: operators[index].name for index in block}
    for index in block:
        if operators[index].mapping is MappingType.OPAQUE:
            raise GraphError(f"fusion plan of '{graph.name}': {label} holds '{names[index]}', which must not be fused")
    many = [index for index in block if operators[index].mapping is MappingType.MANY_TO_MANY]
    anchors = [index for index in many if not operators[index].is_disjoint_window]
    _check_schedules(label, block, graph)
    shapes = {operators[index].rows for index in many}
    if len(many) > 1 and len(shapes) == 1 and None not in shapes:
        moved = _moved_in_rows(block, graph)
        if moved is None:
            return
        if len(anchors) > 1:
            raise GraphError(
                f"fusion plan of '{graph.name}': {label} reduces the same rows several times, but '{names[moved[1]]}' "
                f"reads '{names[moved[0]]}' in other places"
            )
    if len(anchors) > 1:
        first, second = (names[index] for index in sorted(anchors)[:2])
        raise GraphError(
            f"fusion plan of '{graph.name}': {label} holds two Many-to-Many operators, '{first}' and '{second}'"
        )
    expanding = {i for i in block if operators[i].mapping is MappingType.ONE_TO_MANY}
    expanding |= {source for source, _, kind in block.edges(data="mapping") if kind is MappingType.ONE_TO_MANY}
    for index in many:
        for other in sorted(nx.ancestors(block, index)):
            reason = None
            if other in anchors:
                reason = "is Many-to-Many"
            elif other in expanding and _expands_towards(block, other, index, operators):
                reason = "multiplies data"
            if reason:
                raise GraphError(
                    f"fusion plan of '{graph.name}': {label} fuses '{names[other]}', which {reason}, in front of the "
                    f"Many-to-Many operator '{names[index]}'"
                )


def _moved_in_rows(block: nx.MultiDiGraph, graph: OperatorGraph) -> tuple[int, int] | None:
    """Find a result of a block that is read in other places than its own row; None when every element keeps its row."""
    moving = (MappingType.REORGANIZE, MappingType.SHUFFLE)
    for source, reader, kind in block.edges(data="mapping"):
        if kind in moving or graph.operators[reader].mapping is MappingType.ONE_TO_MANY:
            return source, reader
    return None


def _check_schedules(label: str, block: nx.MultiDiGraph, graph: OperatorGraph) -> None:
    operators = graph.operators
    for index in block:
        tail = operators[index].tail
        if tail is None or len(block) == 1:
            continue
        name = operators[index].name
        if block.in_degree(index):
            raise GraphError(
                f"fusion plan of '{graph.name}': {label} fuses something in front of '{name}', whose schedule is given"
            )
        after = nx.descendants(block, index)
        for source, reader, kind in block.edges(data="mapping"):
            behind = reader in after and (source in after or source == index)
            if behind and max(kind, operators[reader].mapping) > tail:
                raise GraphError(
                    f"fusion plan of '{graph.name}': {label} fuses '{operators[reader].name}' behind '{name}', whose "
                    f"schedule takes {tail} at most"
                )
        written = [i for i in block if operators[i].is_output or set(graph.successors[i]) - set(block)]
        if len(written) > 1:
            raise GraphError(
                f"fusion plan of '{graph.name}': {label} writes {len(written)} results, but the schedule of '{name}' "
                "writes one"
            )


def _expands_towards(block: nx.MultiDiGraph, start: int, end: int, operators: Sequence[Operator]) -> bool:
    """Whether a path from one operator to another multiplies data: at its start, or on its first edge."""
    if operators[start].mapping is MappingType.ONE_TO_MANY:
        return True
    for _, reader, kind in block.out_edges(start, data="mapping"):
        leads_there = reader == end or nx.has_path(block, reader, end)
        # The edge into the operator itself is that operator's own reading.
        if kind is MappingType.ONE_TO_MANY and reader != end and leads_there:
            return True
    return False


def _check_removable(plan: FusionPlan, graph: OperatorGraph) -> None:
    home = {index: number for number, block in enumerate(plan.blocks) for index in block.operators}
    needed = {index for index, operator in enumerate(graph.operators) if operator.is_output}
    read: set[int] = set()
    for index, operator in enumerate(graph.operators):
        for edge in operator.edges:
            read.add(edge.source)
            if home[edge.source] != home[index]:
                needed.add(edge.source)
    expected = read - needed
    for index in sorted(expected ^ set(plan.removable)):
        name = graph.operators[index].name
        what = "is written, but only its block reads it" if index in expected else "is read outside, but not written"
        raise GraphError(f"fusion plan of '{graph.name}': the result of operator '{name}' {what}")
