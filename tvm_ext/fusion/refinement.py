"""Moves operators between the blocks of a fusion plan, while that makes the function faster.

Growing blocks one after the other may tear an addition from the product it follows, because the other side asked first;
and where schedule rules have cut a block up, its parts may suit their other neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import TypeAlias

from tvm_ext.fusion.block_mapping import block_mapping, is_anchor
from tvm_ext.fusion.limits import BlockLimits
from tvm_ext.fusion.operator_graph import OperatorGraph
from tvm_ext.fusion.plan import FusionPlan, block_order, plan_of_blocks

Acceptance: TypeAlias = Callable[[Collection[int]], bool]
"""Whether a block of operators may become a kernel, beyond what the combination table and the limits say."""


def refine_plan(
    plan: FusionPlan,
    graph: OperatorGraph,
    limits: BlockLimits,
    accepts: Acceptance = lambda _members: True,
) -> FusionPlan:
    """Move operators between the blocks of a plan, and merge blocks, while the sum of all latencies falls.

    Parameters
    ----------
    plan : FusionPlan
        Where to begin.
    graph : OperatorGraph
        The function.
    limits : BlockLimits
        Of its blocks, and their latencies.
    accepts : callable, optional
        Has the last word on each block that would change; asked only where the latency falls.
    """
    return _Refiner(plan, graph, limits, accepts).refined()


class _Refiner:
    def __init__(self, plan: FusionPlan, graph: OperatorGraph, limits: BlockLimits, accepts: Acceptance) -> None:
        self.graph = graph
        self._accepts = accepts
        self._limits = limits
        self._blocks = [set(block.operators) for block in plan.blocks]
        self._block_of = dict(plan.block_of)
        self._after, self._before = reach(graph)
        self._places = {number: number for number in range(len(plan.blocks))}  # in an order in which they can run
        self._refused: set[tuple[frozenset[int], ...]] = set()  # moves that gained nothing: which, whence, where to

    def refined(self) -> FusionPlan:
        """Move and merge until nothing gains, and give the plan."""
        self._refine()
        plan = plan_of_blocks(self.graph, [members for members in self._blocks if members])
        assert plan is not None
        return plan

    def _refine(self) -> None:
        """Sweep over the operators; every step makes the sum smaller by a least amount, so the search ends."""
        moved = True
        while moved:
            moved = False
            for index in range(len(self.graph)):
                moved = self._improve(index) or self._hand_on(index) or moved

    def _improve(self, index: int) -> bool:
        home = self._block_of[index]
        neighbours = {
            self._block_of[other] for other in (*self.graph.predecessors[index], *self.graph.successors[index])
        }
        for target in sorted(neighbours - {home}):
            for moving in self._movable(index, home):
                if self._move(moving, home, target):
                    return True
        return False

    def _hand_on(self, index: int) -> bool:
        """Move what reads a result to the blocks that need it, all at once.

        A block that scales its result for several others, and perhaps adds it to sums of theirs, writes all of that;
        when each reader scales for itself, the result is written once. Moving one of them alone gains nothing.
        """
        home = self._block_of[index]
        targets: dict[int, int] = {}
        for reader in self.graph.successors[index]:
            if self._block_of[reader] == home:
                behind = {other for other in self._blocks[home] if self._after[reader] >> other & 1} | {reader}
                moving = self._cone(behind, self._blocks[home])
                target = self._only_reader(moving, home)
                if target is not None and targets.keys().isdisjoint(moving):
                    if block_mapping(self.graph, moving | self._blocks[target]) is not None:
                        targets.update(dict.fromkeys(moving, target))
        if len(targets) < 2:
            return False
        changed = {number: set(self._blocks[number]) for number in {home, *targets.values()}}
        for reader, target in targets.items():
            changed[home].discard(reader)
            changed[target].add(reader)
        for members in changed.values():
            if members and (block_mapping(self.graph, members) is None or not self._limits.fits(members)):
                return False
        before = sum(self._limits.seconds(self._blocks[number]) for number in changed)
        after = sum(self._limits.seconds(members) for members in changed.values() if members)
        numbers = {**self._block_of, **targets}
        if not after < before * (1 - 1e-9) or not all(map(self._is_connected, changed.values())):
            return False
        places = self._places_after(numbers, targets)
        if places is None or not all(self._accepts(members) for members in changed.values() if members):
            return False
        for number, members in changed.items():
            self._blocks[number] = members
        self._block_of, self._places = numbers, places
        return True

    def _only_reader(self, members: set[int], home: int) -> int | None:
        """Find the one block beside its own that reads some operators; None where there are several, or none."""
        if any(self.graph.operators[member].is_output for member in members):
            return None
        blocks = {self._block_of[reader] for member in members for reader in self.graph.successors[member]} - {home}
        return blocks.pop() if len(blocks) == 1 else None

    def _movable(self, index: int, home: int) -> Iterator[set[int]]:
        """Yield sets of operators that may move together: one, with what it needs or what needs it, a side, all."""
        members = self._blocks[home]
        seen = []
        for moving in (
            {index},
            {other for other in members if self._before[index] >> other & 1} | {index},
            {other for other in members if self._after[index] >> other & 1} | {index},
            self._cone({index}, members),
            *self._sides(members),
            set(members),
        ):
            if index in moving and moving not in seen:
                seen.append(moving)
                yield moving

    def _cone(self, tops: set[int], members: set[int]) -> set[int]:
        """Collect some operators and those of their block that only they need, directly or through others of them."""
        cone = set(tops)
        for other in sorted(members - cone, reverse=True):
            readers = self.graph.successors[other]
            if readers and not self.graph.operators[other].is_output and cone.issuperset(readers):
                cone.add(other)
        return cone

    def _sides(self, members: set[int]) -> Iterator[set[int]]:
        """Yield what lies in front of the operator that decides the loops of a block, and what lies behind it."""
        for anchor in members:
            if is_anchor(self.graph.operators[anchor]):
                yield {other for other in members if self._before[anchor] >> other & 1}
                yield {other for other in members if self._after[anchor] >> other & 1}

    def _move(self, moving: set[int], home: int, target: int) -> bool:
        rest, grown = self._blocks[home] - moving, self._blocks[target] | moving
        key = frozenset(moving), frozenset(self._blocks[home]), frozenset(self._blocks[target])
        if key in self._refused:
            return False
        if not self._gains(rest, grown, home, target):
            self._refused.add(key)
            return False
        moved = dict.fromkeys(moving, target)
        numbers = {**self._block_of, **moved}
        places = self._places_after(numbers, moved)
        if places is None:
            return False
        if not self._accepts(grown) or (rest and not self._accepts(rest)):
            self._refused.add(key)
            return False
        self._blocks[home], self._blocks[target] = rest, grown
        self._block_of, self._places = numbers, places
        return True

    def _gains(self, rest: set[int], grown: set[int], home: int, target: int) -> bool:
        """Whether two blocks are allowed, and take less time than the two that are there."""
        for members in (rest, grown):
            if members and (block_mapping(self.graph, members) is None or not self._limits.fits(members)):
                return False
        before = self._limits.seconds(self._blocks[home]) + self._limits.seconds(self._blocks[target])
        after = self._limits.seconds(grown) + (self._limits.seconds(rest) if rest else 0.0)
        return after < before * (1 - 1e-9) and self._is_connected(rest)

    def _places_after(self, block_of: dict[int, int], moved: dict[int, int]) -> dict[int, int] | None:
        """Give each block a place in an order in which they can run; None where they read each other.

        Mostly what moved still reads earlier blocks and is read by later ones; only otherwise all is ordered anew.
        """
        places = self._places
        for index, target in moved.items():
            place = places[target]
            before = (block_of[source] for source in self.graph.predecessors[index])
            after = (block_of[reader] for reader in self.graph.successors[index])
            if any(number != target and places[number] > place for number in before):
                return _places(self.graph, block_of)
            if any(number != target and places[number] < place for number in after):
                return _places(self.graph, block_of)
        return places

    def _is_connected(self, members: set[int]) -> bool:
        """Whether the operators hang together: a block that falls apart should be two."""
        if len(members) < 2:
            return True
        found = {next(iter(members))}
        pending = list(found)
        while pending:
            index = pending.pop()
            for other in (*self.graph.predecessors[index], *self.graph.successors[index]):
                if other in members and other not in found:
                    found.add(other)
                    pending.append(other)
        return len(found) == len(members)


def reach(graph: OperatorGraph) -> tuple[list[int], list[int]]:
    """For each operator, those after it and those before it, as bit masks."""
    after, before = [0] * len(graph), [0] * len(graph)
    for index in range(len(graph)):
        for source in graph.predecessors[index]:
            before[index] |= before[source] | 1 << source
    for index in reversed(range(len(graph))):
        for reader in graph.successors[index]:
            after[index] |= after[reader] | 1 << reader
    return after, before


def _places(graph: OperatorGraph, block_of: dict[int, int]) -> dict[int, int] | None:
    order = block_order(graph, block_of)
    return None if order is None else {number: place for place, number in enumerate(order)}
