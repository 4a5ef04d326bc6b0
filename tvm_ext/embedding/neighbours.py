"""Neighbours agree on the order of tensors between them: which way of each operator, with copies where they differ.

An operator may read and give a tensor as the model has it, or with its channels last, where the lanes of an instruction
lie together. What is not a member reads and gives tensors as they are. Plain data only; the planner is that of
:mod:`tvm_ext.layout.selection`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import networkx as nx

from tvm_ext.layout.selection import Edge, Operator, Plan, Selection, SelectionProblem, plan_selection, verify_selection

AS_IT_IS, CHANNELS_LAST = "as it is", "channels last"

PAYS = 0.93
"""Share of the time with all tensors as they are, below which other orders are taken: costs are estimates."""

OUTSIDE = -1
"""Maker of a tensor that no member makes."""


@dataclass(frozen=True)
class Tensor:
    """What a member reads.

    Attributes
    ----------
    maker : int
        Member that makes it, by number; :data:`OUTSIDE`.
    copied : int
        Cycles of copying it from one order to another.
    """

    maker: int
    copied: int


@dataclass(frozen=True)
class Member:
    """An operator that may read and give tensors in another order.

    Attributes
    ----------
    plans : tuple of Plan
        Ways to compute it, in cycles; what they take and give is :data:`AS_IT_IS` or :data:`CHANNELS_LAST`.
    reads : tuple of Tensor
        All are taken in the same order.
    leaves : int
        Cycles of giving the result to what is no member, from another order; 0 where only members read it.
    """

    plans: tuple[Plan, ...]
    reads: tuple[Tensor, ...] = ()
    leaves: int = 0


def problem_of(members: Sequence[Member]) -> SelectionProblem:
    """State what is to be chosen; copies from and to the outside are parts of a plan's cost.

    A copy that two members read counts for each of them.
    """
    operators, edges = [], []
    for number, member in enumerate(members):
        outside = sum(tensor.copied for tensor in member.reads if tensor.maker == OUTSIDE)
        plans = [
            replace(
                plan,
                cost=plan.cost + outside * (plan.takes != AS_IT_IS) + member.leaves * (plan.gives != AS_IT_IS),
            )
            for plan in member.plans
        ]
        operators.append(Operator(str(number), tuple(plans)))
        for tensor in member.reads:
            if tensor.maker != OUTSIDE:
                rows = tuple(
                    tuple(tensor.copied * (before.gives != plan.takes) for plan in member.plans)
                    for before in members[tensor.maker].plans
                )
                edges.append(Edge(tensor.maker, number, rows))
    return SelectionProblem(tuple(operators), tuple(edges))


def agree(members: Sequence[Member]) -> Selection:
    """Choose a plan for each member so that all of them and the copies between them take the least."""
    problem = problem_of(members)
    selection = plan_selection(problem)
    verify_selection(selection, problem)
    return selection


def choose_plans(members: Sequence[Member]) -> tuple[int, ...]:
    """Choose a plan for each member: the best there is, or for tensors as they are where the gain would be small.

    Members that nothing connects are chosen for apart. Each has a plan that takes and gives tensors as they are.
    """
    graph = nx.Graph()
    graph.add_nodes_from(range(len(members)))
    graph.add_edges_from(
        (number, tensor.maker) for number, it in enumerate(members) for tensor in it.reads if tensor.maker != OUTSIDE
    )
    chosen = [0] * len(members)
    for part in nx.connected_components(graph):
        numbers = sorted(part)
        place = {number: at for at, number in enumerate(numbers)}
        ours = [
            replace(
                members[number],
                reads=tuple(replace(it, maker=place.get(it.maker, OUTSIDE)) for it in members[number].reads),
            )
            for number in numbers
        ]
        kept = [[at for at, plan in enumerate(it.plans) if plan.takes == plan.gives == AS_IT_IS] for it in ours]
        best = agree(ours)
        plain = agree(
            [replace(it, plans=tuple(it.plans[at] for at in own)) for it, own in zip(ours, kept, strict=True)]
        )
        if best.cost < PAYS * plain.cost:
            choice = best.choice
        else:
            choice = tuple(own[at] for own, at in zip(kept, plain.choice, strict=True))
        for number, at in zip(numbers, choice, strict=True):
            chosen[number] = at
    return tuple(chosen)
