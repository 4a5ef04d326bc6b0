"""Check a selection by other ways than the planner takes."""

from __future__ import annotations

from tvm_ext.errors import GraphError
from tvm_ext.layout.selection.planner import Selection
from tvm_ext.layout.selection.problem import SelectionProblem


def verify_selection(selection: Selection, problem: SelectionProblem) -> None:
    """Check that a selection is one, costs what it says, and, if it is called optimal, that nothing shows otherwise.

    An optimal choice cannot be made cheaper by another plan for one operator, or for both ends of an edge; on a chain
    its cost is that of the recurrence of Eq. 4.2, which is computed anew.

    Raises
    ------
    GraphError
        When it is not so; the message names the operator.
    """
    if len(selection.choice) != len(problem):
        raise GraphError(f"selection: {len(selection.choice)} plans were chosen for {len(problem)} operators")
    for operator, index in zip(problem.operators, selection.choice, strict=True):
        if not 0 <= index < len(operator.plans):
            raise GraphError(
                f"selection: operator '{operator.name}' is given plan {index}; it has {len(operator.plans)}"
            )
    if sorted(name for part in selection.parts for name in part) != list(range(len(problem))):
        raise GraphError("selection: its parts do not hold every operator once")
    cost = _cost(selection.choice, problem)
    if cost != selection.cost:
        raise GraphError(f"selection: it costs {cost:,}, the plan says {selection.cost:,}")
    if not selection.optimal:
        return
    better = _improvement(selection.choice, problem)
    if better:
        raise GraphError(f"selection: it is called optimal, but {better}")
    chain = _chain_cost(problem)
    if chain is not None and chain != cost:
        raise GraphError(f"selection: it is called optimal at {cost:,}, but Eq. 4.2 gives {chain:,} for this chain")


def _cost(choice: tuple[int, ...], problem: SelectionProblem) -> int:
    """Go from operator to operator, counting each with the relayouts of its inputs."""
    total = 0
    for name, operator in enumerate(problem.operators):
        total += operator.plans[choice[name]].cost
        for edge in problem.edges_of[name]:
            if edge.target == name:
                total += edge.costs[choice[edge.source]][choice[name]]
    return total


def _around(problem: SelectionProblem, choice: list[int], names: set[int]) -> int:
    """Add up what some operators cost, with all edges at them."""
    edges = {id(edge): edge for name in names for edge in problem.edges_of[name]}.values()
    own = sum(problem.operators[name].plans[choice[name]].cost for name in names)
    return own + sum(edge.costs[choice[edge.source]][choice[edge.target]] for edge in edges)


def _improvement(choice: tuple[int, ...], problem: SelectionProblem) -> str:
    """Describe a cheaper choice that differs in one operator or in the two ends of an edge; empty without one."""
    groups = [{name} for name in range(len(problem))] + [{edge.source, edge.target} for edge in problem.edges]
    for group in groups:
        names = sorted(group)
        before = _around(problem, list(choice), group)
        for first in range(len(problem.operators[names[0]].plans)):
            for second in range(len(problem.operators[names[-1]].plans)):
                changed = list(choice)
                changed[names[-1]] = second
                changed[names[0]] = first
                after = _around(problem, changed, group)
                if after < before:
                    who = " and ".join(f"'{problem.operators[name].name}'" for name in names)
                    return f"other plans for {who} save {before - after:,}"
    return ""


def _chain_cost(problem: SelectionProblem) -> int | None:
    """Give the least cost of a chain, forward from its first operator; None if the problem is none."""
    if [(edge.source, edge.target) for edge in sorted(problem.edges, key=lambda edge: edge.source)] != [
        (name, name + 1) for name in range(len(problem) - 1)
    ]:
        return None
    by_source = {edge.source: edge.costs for edge in problem.edges}
    best = [plan.cost for plan in problem.operators[0].plans] if problem.operators else [0]
    for name in range(1, len(problem)):
        costs = by_source[name - 1]
        best = [
            plan.cost + min(before + row[index] for before, row in zip(best, costs, strict=True))
            for index, plan in enumerate(problem.operators[name].plans)
        ]
    return min(best)
