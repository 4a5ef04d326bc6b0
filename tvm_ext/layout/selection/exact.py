"""The best selection by a constraint solver (extra ``solve``), to compare with."""

from __future__ import annotations

from dataclasses import dataclass

from tvm_ext.errors import MissingPackageError
from tvm_ext.layout.selection.problem import SelectionProblem


@dataclass(frozen=True)
class ExactSelection:
    """What the solver found.

    Attributes
    ----------
    choice : tuple of int
        Index of the plan of each operator.
    cost : int
        Of this choice.
    bound : int
        No choice costs less; equal to the cost when the solver came to an end.
    """

    choice: tuple[int, ...]
    cost: int
    bound: int


def solve_selection(problem: SelectionProblem, effort: float = 10.0) -> ExactSelection:
    """Find a choice of the least cost (Eq. 4.1) as an integer program.

    A variable for each plan, one for each pair of plans on an edge; pairs add up to the plans at both ends.

    Parameters
    ----------
    problem : SelectionProblem
        Plans and relayouts.
    effort : float
        Work by the solver's own count, about a second each.

    Raises
    ------
    MissingPackageError
        When ortools is not installed.
    """
    try:
        from ortools.sat.python import cp_model
    except ImportError:
        raise MissingPackageError(
            "an exact selection needs the package ortools: install tvm-ext[solve], or use plan_selection"
        ) from None
    model = cp_model.CpModel()
    plans = [
        [model.new_bool_var(f"plan{name}_{index}") for index in range(len(operator.plans))]
        for name, operator in enumerate(problem.operators)
    ]
    terms = []
    for row, operator in zip(plans, problem.operators, strict=True):
        model.add_exactly_one(row)
        terms += [plan.cost * variable for plan, variable in zip(operator.plans, row, strict=True)]
    for number, edge in enumerate(problem.edges):
        pairs = [
            [model.new_bool_var(f"pair{number}_{i}_{j}") for j in range(len(row))] for i, row in enumerate(edge.costs)
        ]
        for i, row in enumerate(pairs):
            model.add(sum(row) == plans[edge.source][i])
        for j, column in enumerate(zip(*pairs, strict=True)):
            model.add(sum(column) == plans[edge.target][j])
        terms += [
            cost * variable
            for costs, row in zip(edge.costs, pairs, strict=True)
            for cost, variable in zip(costs, row, strict=True)
        ]
    model.minimize(sum(terms))
    solver = cp_model.CpSolver()
    # One worker, and its own count of work: with a clock, a busy machine would get another answer.
    solver.parameters.max_deterministic_time = effort
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 1
    status = solver.solve(model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        first = (0,) * len(problem)
        return ExactSelection(first, problem.aggregate_cost(first), 0)
    choice = tuple(next(i for i, variable in enumerate(row) if solver.value(variable)) for row in plans)
    return ExactSelection(choice, problem.aggregate_cost(choice), round(solver.best_objective_bound))
