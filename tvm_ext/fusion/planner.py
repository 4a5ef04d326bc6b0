"""The fusion planner: blocks grow from small One-to-One operators, then operators move between blocks.

Niu et al., PLDI 2021, listing 1, with what the listing leaves out: the seed is the operator with the smallest result
and not the size itself; a block grows in place; what is combined is the type of the whole block and not of two
operators; a block stays convex, and the blocks among each other without a cycle; operators that are left over are
blocks of their own. Then operators move to neighbouring blocks while that makes the function faster, which listing 1
cannot do: it may tear an addition from the product it follows, because the other side asked first.
"""

from __future__ import annotations

from collections.abc import Iterable

from tvm_ext.fusion.block_mapping import block_mapping
from tvm_ext.fusion.limits import BlockLimits, FusionOptions, Latency
from tvm_ext.fusion.operator_graph import OperatorGraph
from tvm_ext.fusion.plan import FusionPlan, plan_of_blocks
from tvm_ext.fusion.refinement import reach, refine_plan


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
    options = options or FusionOptions()
    limits = BlockLimits(graph, options, latency)
    plan = _Grower(graph, limits).plan()
    return refine_plan(plan, graph, limits) if options.refine else plan


class _Grower:
    def __init__(self, graph: OperatorGraph, limits: BlockLimits) -> None:
        self.graph = graph
        self._limits = limits
        self._block_of: dict[int, int] = {}
        self._blocks: list[set[int]] = []
        # Everything after, and before, each operator; finished blocks count as one operator.
        self._after, self._before = reach(graph)

    def plan(self) -> FusionPlan:
        """Make blocks from seeds until every operator is in one."""
        for seed in self._seeds():
            if seed not in self._block_of:
                block = {seed}
                self._grow(seed, block, self.graph.successors)
                self._grow(seed, block, self.graph.predecessors)
                self._finish(block)
        plan = plan_of_blocks(self.graph, self._blocks)
        assert plan is not None
        return plan

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
        if found is None or not self._limits.fits(together) or not self._is_convex(together):
            return False
        if not found.is_yellow:
            return True
        return self._limits.seconds(together) <= self._limits.seconds(block) + self._limits.seconds({other})

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
