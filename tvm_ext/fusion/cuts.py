"""Ways to cut up a block of a fusion plan that the schedule rules do not do well, on plain data."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

from tvm_ext.fusion.block_mapping import block_mapping
from tvm_ext.fusion.operator_graph import OperatorGraph
from tvm_ext.graph.mapping_types import MappingType


def ways_to_cut(graph: OperatorGraph, members: Collection[int]) -> Iterator[list[set[int]]]:
    """Yield ways to cut up a block, from the coarsest to the finest."""
    yield [set(members)]
    views = _without_views(graph, set(members))
    written = _without_written(graph, views)
    for inner in (views, written):
        if 0 < len(inner) < len(members):
            rest = set(members) - inner
            yield [inner, *({index} for index in rest)]
            if len(rest) > 1:
                yield [inner, *chains(graph, rest)]


def put_together(
    graph: OperatorGraph, units: Sequence[set[int]], is_well_done: Callable[[Collection[int]], bool]
) -> list[set[int]]:
    """Join chains of a block, in the order in which they run, with those that they read."""
    parts: list[set[int]] = []
    for unit in sorted(units, key=max):
        if not is_well_done(unit):
            parts += [{index} for index in unit]
            continue
        read = {source for index in unit for source in graph.predecessors[index]} - unit
        before = [part for part in parts if part & read]
        joined = next(
            (
                chosen
                for chosen in ([before, *([part] for part in before)] if len(before) > 1 else [before])
                if chosen and _may_be_joined(graph, [*chosen, unit], parts) and is_well_done(set().union(unit, *chosen))
            ),
            [],
        )
        parts = [*(part for part in parts if part not in joined), unit.union(*joined)]
    return parts


def _may_be_joined(graph: OperatorGraph, chosen: Sequence[set[int]], parts: Sequence[set[int]]) -> bool:
    whole = set().union(*chosen)
    others = [part for part in parts if not part & whole]
    return block_mapping(graph, whole) is not None and can_be_ordered(graph, [*others, whole])


def _without_views(graph: OperatorGraph, members: set[int]) -> set[int]:
    """Leave out reshapes that begin or end a block: what they read, or what they give, is in memory anyway."""
    inner = set(members)
    changed = True
    while changed:
        changed = False
        for index in sorted(inner):
            operator = graph.operators[index]
            if operator.mapping is not MappingType.REORGANIZE or operator.is_disjoint_window:
                continue
            begins = not any(source in inner for source in graph.predecessors[index])
            ends = not any(reader in inner for reader in graph.successors[index])
            if begins or ends:
                inner.discard(index)
                changed = True
    return inner


def _without_written(graph: OperatorGraph, members: set[int]) -> set[int]:
    """Leave out what others need as well, with what it is computed from: the rest has one result."""
    inner = set(members)
    for index in sorted(members, reverse=True):
        outside = any(reader not in members for reader in graph.successors[index]) or graph.operators[index].is_output
        if outside and any(reader in inner for reader in graph.successors[index]):
            pending = [index]
            while pending:
                leaving = pending.pop()
                if leaving in inner:
                    inner.discard(leaving)
                    pending += [source for source in graph.predecessors[leaving] if source in inner]
    return inner


def chains(graph: OperatorGraph, members: Collection[int]) -> list[set[int]]:
    """Cut a block into trees in which elements keep their places and every inner result has one reader."""
    part_of: dict[int, set[int]] = {}
    for index in sorted(members):
        part = {index}
        operator = graph.operators[index]
        for edge in operator.edges:
            source = graph.operators[edge.source]
            if edge.source not in part_of or source.is_output or graph.successors[edge.source] != (index,):
                continue
            keeps_places = edge.mapping is MappingType.ONE_TO_ONE and operator.mapping is MappingType.ONE_TO_ONE
            joined = part | part_of[edge.source]
            if keeps_places and block_mapping(graph, joined) is not None:
                part = joined
        part_of.update(dict.fromkeys(part, part))
    return list({id(part): part for part in part_of.values()}.values())


def can_be_ordered(graph: OperatorGraph, parts: Sequence[Collection[int]]) -> bool:
    """Whether the parts of a block can run one after the other."""
    home = {index: number for number, part in enumerate(parts) for index in part}
    waiting = set(range(len(parts)))
    while waiting:
        ready = {
            number
            for number in waiting
            if all(
                home.get(source, number) == number or home[source] not in waiting
                for index in parts[number]
                for source in graph.predecessors[index]
            )
        }
        if not ready:
            return False
        waiting -= ready
    return True
