"""Leaves out pieces of fusion plans that make the module that runs worse than TVM's fusion does.

A plan is compared with TVM's fusion where kernels are grouped, and may be better there by a kernel that keeps a later
pass from merging more: a convolution takes what stands before it into its loads, but not one of two results. So these
passes run on the module as it is with the pieces, and without.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import tvm
from tvm import relax

from tvm_ext.fusion.operator_graph import OperatorGraph
from tvm_ext.fusion.plan import FusionPlan, plan_of_blocks
from tvm_ext.fusion.preference import Effort, kept_kinds, pieces, with_single_operators
from tvm_ext.fusion.profile_database import ProfileDatabase
from tvm_ext.fusion.relax.groups import Grouper
from tvm_ext.fusion.relax.module_effort import module_effort
from tvm_ext.fusion.verifier import verify_plan


@dataclass(frozen=True, eq=False)
class PlannedFunction:
    """A function with its plan, and what TVM's fusion would make one kernel; operators of a graph."""

    variable: Any
    func: Any
    graph: OperatorGraph
    plan: FusionPlan
    by_tvm: Sequence[Sequence[int]]

    @cached_property
    def pieces(self) -> list[tuple[str, list[set[int]]]]:
        """Blocks of the plan that TVM's fusion does not make, piece by piece: the kind of a piece, and its blocks.

        Pieces of one kind compute the same, of the same shapes.
        """
        planned = [set(block.operators) for block in self.plan.blocks]
        database = ProfileDatabase()
        found = []
        for piece in pieces(planned, with_single_operators(self.by_tvm, self.graph), len(self.graph)):
            blocks = [members for members in planned if members <= piece]
            found.append((" / ".join(database.key(self.graph, members) for members in blocks), blocks))
        return found

    def with_kinds(self, kinds: AbstractSet[str] | None) -> FusionPlan | None:
        """Give the plan with pieces of some kinds, and TVM's blocks elsewhere; None where blocks read each other."""
        if kinds is None or all(kind in kinds for kind, _ in self.pieces):
            return self.plan
        blocks = [members for kind, of_piece in self.pieces if kind in kinds for members in of_piece]
        taken = {index for members in blocks for index in members}
        others = with_single_operators(self.by_tvm, self.graph)
        plan = plan_of_blocks(self.graph, blocks + [members for members in others if not members & taken])
        if plan is not None:
            verify_plan(plan, self.graph, given=self.by_tvm)
        return plan


def kinds_worth_keeping(
    mod: tvm.IRModule, planned: Sequence[PlannedFunction], behind: Sequence[tvm.transform.Pass]
) -> frozenset[str]:
    """Choose the kinds of pieces with which the module behind some passes is no worse than without.

    Parameters
    ----------
    mod : tvm.IRModule
        With the kernels.
    planned : sequence of PlannedFunction
    behind : sequence of Pass
        What merges kernels, from groups to the kernels that run.
    """
    merge = tvm.transform.Sequential(list(behind), name="tvm_ext.MergeOnTrial")

    def try_out(kinds: AbstractSet[str]) -> Effort | None:
        if any(function.with_kinds(kinds) is None for function in planned):
            return None
        return module_effort(merge(grouped_module(mod, planned, kinds)))

    return kept_kinds(list(dict.fromkeys(_by_size(planned))), try_out)


def _by_size(planned: Sequence[PlannedFunction]) -> Iterator[str]:
    """Give the kinds of all pieces, those of most operators first."""
    found = [(sum(map(len, blocks)), kind) for function in planned for kind, blocks in function.pieces]
    yield from (kind for _, kind in sorted(found, key=lambda item: -item[0]))


def grouped_module(
    mod: tvm.IRModule, planned: Sequence[PlannedFunction], kinds: AbstractSet[str] | None
) -> tvm.IRModule:
    """Group the kernels of functions by their plans, with the pieces of some kinds; of all where None."""
    builder = relax.BlockBuilder(mod)
    for function in planned:
        plan = function.with_kinds(kinds) or function.plan
        operators = function.graph.operators
        nodes = [[operators[index].node for index in block.operators] for block in plan.blocks]
        fused = Grouper(builder, function.func, nodes).function()
        if fused is not None:
            builder.update_func(function.variable, fused)
    return builder.finalize()
