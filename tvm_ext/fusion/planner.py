"""The fusion planner: blocks grow from small One-to-One operators, then operators move between blocks.

Niu et al., PLDI 2021, listing 1, with what the listing leaves out: the seed is the operator with the smallest result
and not the size itself; a block grows in place; what is combined is the type of the whole block and not of two
operators; a block stays convex, and the blocks among each other without a cycle; operators that are left over are
blocks of their own. Then operators move to neighbouring blocks while that makes the function faster, which listing 1
cannot do: it may tear an addition from the product it follows, because the other side asked first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tvm_ext.errors import OptionError
from tvm_ext.fusion.block_mapping import block_mapping, is_anchor
from tvm_ext.fusion.cost_model import LinearModel
from tvm_ext.fusion.operator_graph import OperatorGraph
from tvm_ext.fusion.plan import Block, FusionPlan, removable_operators
from tvm_ext.graph.mapping_types import MappingType

Latency: TypeAlias = Callable[[OperatorGraph, Collection[int]], float]
"""Seconds of a block of operators, as one kernel."""


@dataclass(frozen=True)
class FusionOptions:
    """Limits of a block.

    Attributes
    ----------
    max_operators : int
        Operators in a block.
    max_operands : int
        Tensors a block reads: they compete for registers and address arithmetic.
    max_results : int
        Tensors a block writes.
    refine : bool
        Whether operators move between blocks after these have grown.

    Raises
    ------
    OptionError
        When a limit is not a positive number.
    """

    max_operators: int = 48
    max_operands: int = 24
    max_results: int = 6
    refine: bool = True

    def __post_init__(self) -> None:
        for name in ("max_operators", "max_operands", "max_results"):
            if getattr(self, name) < 1:
                raise OptionError(f"option {name} of the fusion planner: {getattr(self, name)!r} is not at least 1")


def plan_fusion(
    graph: OperatorGraph, options: FusionOptions | None = None, latency: Latency | None = None
) -> FusionPlan:
    """Plan the fusion of a function.

    Parameters
    ----------
    graph : OperatorGraph
        The function.
    options : FusionOptions, optional
        Limits of a block.
    latency : callable, optional
        Seconds of a block, asked where the combination table is yellow, and when operators move; a linear model when
        not given. :meth:`tvm_ext.fusion.profile_database.ProfileDatabase.latency` is another one.

    Returns
    -------
    plan : FusionPlan
    """
    planner = _Planner(graph, options or FusionOptions(), latency or LinearModel().seconds)
    planner.grow_all()
    if planner.options.refine:
        planner.refine()
    return planner.plan()


def plan_of_blocks(graph: OperatorGraph, blocks: Sequence[Collection[int]]) -> FusionPlan | None:
    """Make a plan of blocks of which each operator is in one; None when blocks read each other."""
    order = _order(graph, {index: number for number, members in enumerate(blocks) for index in members})
    if order is None:
        return None
    planned = []
    removable: list[int] = []
    for number in order:
        members = blocks[number]
        found = block_mapping(graph, members)
        planned.append(Block(tuple(sorted(members)), found.mapping if found else MappingType.OPAQUE))
        removable += removable_operators(graph, members)
    return FusionPlan(tuple(planned), tuple(sorted(removable)))


class _Planner:
    def __init__(self, graph: OperatorGraph, options: FusionOptions, latency: Latency) -> None:
        self.graph = graph
        self.options = options
        self._latency = latency
        self._known: dict[frozenset[int], float] = {}
        self._block_of: dict[int, int] = {}
        self._blocks: list[set[int]] = []
        # Everything after, and before, each operator; finished blocks count as one operator.
        self._after, self._before = _reach(graph)

    def plan(self) -> FusionPlan:
        """Give the blocks in an order in which they can run."""
        plan = plan_of_blocks(self.graph, self._blocks)
        assert plan is not None
        return plan

    def grow_all(self) -> None:
        """Make blocks from seeds until every operator is in one."""
        for seed in self._seeds():
            if seed not in self._block_of:
                block = {seed}
                self._grow(seed, block, self.graph.successors)
                self._grow(seed, block, self.graph.predecessors)
                self._finish(block)

    def _seeds(self) -> list[int]:
        """One-to-One operators by the size of their results, then the others from the simplest type on.

        Operators whose schedule is given come first: what may follow them is little, and costs nothing there.
        """
        operators = self.graph.operators
        return sorted(
            range(len(operators)),
            key=lambda i: (operators[i].tail is None, operators[i].mapping, operators[i].nbytes, i),
        )

    def _grow(self, start: int, block: set[int], neighbours: tuple[tuple[int, ...], ...]) -> None:
        pending = [start]
        while pending:
            for other in neighbours[pending.pop()]:
                if other not in block and other not in self._block_of and self._may_join(other, block):
                    block.add(other)
                    pending.append(other)

    def _may_join(self, other: int, block: set[int]) -> bool:
        together = block | {other}
        found = block_mapping(self.graph, together)
        if found is None or not self._fits(together) or not self._is_convex(together):
            return False
        if not found.is_yellow:
            return True
        return self._seconds(together) <= self._seconds(block) + self._seconds({other})

    def _seconds(self, members: Collection[int]) -> float:
        key = frozenset(members)
        if key not in self._known:
            self._known[key] = self._latency(self.graph, key)
        return self._known[key]

    def _fits(self, members: Collection[int]) -> bool:
        limits, operators = self.options, self.graph.operators
        if len(members) == 1:
            return True
        if len(members) > limits.max_operators:
            return False
        sources = {edge.source for index in members for edge in operators[index].edges} - set(members)
        given = {name for index in members for name in operators[index].given}
        results = len(members) - len(removable_operators(self.graph, members))
        return len(sources) + len(given) <= limits.max_operands and results <= limits.max_results

    def _is_convex(self, members: Iterable[int]) -> bool:
        inside = after = before = 0
        for index in members:
            inside |= 1 << index
            after |= self._after[index]
            before |= self._before[index]
        return not after & before & ~inside

    def _finish(self, block: set[int]) -> None:
        """Close a block: from now on whatever meets one of its operators meets all of them."""
        self._blocks.append(block)
        self._block_of.update(dict.fromkeys(block, len(self._blocks) - 1))
        if len(block) == 1:
            return
        inside = after = before = 0
        for index in block:
            inside |= 1 << index
            after |= self._after[index]
            before |= self._before[index]
        for index in range(len(self.graph)):
            if index in block or self._before[index] & inside:
                self._before[index] |= before | inside
            if index in block or self._after[index] & inside:
                self._after[index] |= after | inside

    # ---- moves between blocks

    def refine(self) -> None:
        """Move operators to neighbouring blocks, and merge blocks, while the sum of all latencies falls.

        Every step makes the sum smaller by a least amount, so the search ends.
        """
        self._after, self._before = _reach(self.graph)
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
        """Move the readers of a result to the blocks that need theirs, all at once.

        A block that scales its result for several others writes every product; when each reader scales it for itself,
        the result is written once. Moving one of them alone gains nothing.
        """
        home = self._block_of[index]
        targets: dict[int, int] = {}
        for reader in self.graph.successors[index]:
            blocks = {self._block_of[other] for other in self.graph.successors[reader]}
            if self._block_of[reader] == home and len(blocks) == 1 and home not in blocks:
                if not self.graph.operators[reader].is_output:
                    targets[reader] = blocks.pop()
        if len(targets) < 2:
            return False
        changed = {number: set(self._blocks[number]) for number in {home, *targets.values()}}
        for reader, target in targets.items():
            changed[home].discard(reader)
            changed[target].add(reader)
        for members in changed.values():
            if members and (block_mapping(self.graph, members) is None or not self._fits(members)):
                return False
        before = sum(self._seconds(self._blocks[number]) for number in changed)
        after = sum(self._seconds(members) for members in changed.values() if members)
        numbers = {**self._block_of, **targets}
        if not after < before * (1 - 1e-9) or not all(map(self._is_connected, changed.values())):
            return False
        if _order(self.graph, numbers) is None:
            return False
        for number, members in changed.items():
            self._blocks[number] = members
        self._block_of = numbers
        return True

    def _movable(self, index: int, home: int) -> Iterator[set[int]]:
        """Yield sets of operators that may move together: one, with what it needs or what needs it, a side, all."""
        members = self._blocks[home]
        seen = []
        for moving in (
            {index},
            {other for other in members if self._before[index] >> other & 1} | {index},
            {other for other in members if self._after[index] >> other & 1} | {index},
            self._cone(index, members),
            *self._sides(members),
            set(members),
        ):
            if index in moving and moving not in seen:
                seen.append(moving)
                yield moving

    def _cone(self, index: int, members: set[int]) -> set[int]:
        """Collect an operator and those of its block that only it needs, directly or through others of them."""
        cone = {index}
        for other in sorted(members, reverse=True):
            readers = self.graph.successors[other]
            if other < index and readers and not self.graph.operators[other].is_output and cone.issuperset(readers):
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
        for members in (rest, grown):
            if members and (block_mapping(self.graph, members) is None or not self._fits(members)):
                return False
        before = self._seconds(self._blocks[home]) + self._seconds(self._blocks[target])
        after = self._seconds(grown) + (self._seconds(rest) if rest else 0.0)
        if not after < before * (1 - 1e-9):
            return False
        numbers = {**self._block_of, **dict.fromkeys(moving, target)}
        if not self._is_connected(rest) or _order(self.graph, numbers) is None:
            return False
        self._blocks[home], self._blocks[target], self._block_of = rest, grown, numbers
        return True

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


def _reach(graph: OperatorGraph) -> tuple[list[int], list[int]]:
    """For each operator, those after it and those before it, as bit masks."""
    after, before = [0] * len(graph), [0] * len(graph)
    for index in range(len(graph)):
        for source in graph.predecessors[index]:
            before[index] |= before[source] | 1 << source
    for index in reversed(range(len(graph))):
        for reader in graph.successors[index]:
            after[index] |= after[reader] | 1 << reader
    return after, before


def _order(graph: OperatorGraph, block_of: dict[int, int]) -> list[int] | None:
    """Order the blocks so that each comes after those it reads; None where they read each other."""
    sources: dict[int, set[int]] = {number: set() for number in block_of.values()}
    readers: dict[int, set[int]] = {number: set() for number in block_of.values()}
    for index, number in block_of.items():
        for source in graph.predecessors[index]:
            other = block_of[source]
            if other != number:
                sources[number].add(other)
                readers[other].add(number)
    waiting = {number: len(found) for number, found in sources.items()}
    first: dict[int, int] = {}
    for index, number in block_of.items():
        first[number] = min(first.get(number, index), index)
    ready = sorted((number for number, count in waiting.items() if not count), key=lambda n: first[n])
    order = []
    while ready:
        number = ready.pop(0)
        order.append(number)
        for reader in sorted(readers[number], key=lambda n: first[n]):
            waiting[reader] -= 1
            if not waiting[reader]:
                ready.append(reader)
    return order if len(order) == len(waiting) else None
