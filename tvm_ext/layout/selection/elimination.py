"""The best choice, exactly, by eliminating one operator after the other.

An operator is eliminated by a table that holds, for every choice of its neighbours, the least that it and the edges to
them cost. On a chain taken from one end this is the recurrence of Eq. 4.2 (with the operator's own cost added and
``Sol(1, j) = Cost(ep_j(O_1))`` at the start, both missing in print), on a tree the same from the leaves: ``k^2`` steps
an operator. In general the effort is exponential in the width of the graph only, not in its length, and a network with
residual connections has a width of two or three.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt

from tvm_ext.layout.selection.problem import SelectionProblem


@dataclass(frozen=True, eq=False)
class _Table:
    """Costs by the choices of some operators, which are its axes in ascending order."""

    axes: tuple[int, ...]
    costs: npt.NDArray[np.int64]

    def along(self, axes: tuple[int, ...]) -> npt.NDArray[np.int64]:
        """Give a view that broadcasts over more axes."""
        shape = [self.costs.shape[self.axes.index(axis)] if axis in self.axes else 1 for axis in axes]
        return self.costs.reshape(shape)


def eliminate(
    problem: SelectionProblem,
    members: Iterable[int] | None = None,
    fixed: Mapping[int, int] | None = None,
    *,
    table_limit: int = 1 << 22,
) -> dict[int, int] | None:
    """Choose plans of the least cost.

    Parameters
    ----------
    problem : SelectionProblem
        Plans and relayouts.
    members : iterable of int, optional
        Operators to choose for; all of them by default.
    fixed : mapping of int to int, optional
        Plans of operators that are chosen already; relayouts between these and members count.
    table_limit : int
        Entries of the largest table.

    Returns
    -------
    dict of int to int, or None
        The plan of each member; None where a table would be larger than the limit.
    """
    asked = sorted(range(len(problem)) if members is None else set(members))
    # Those with one plan would only be axes of length 1, of which NumPy allows 64.
    choice = {name: 0 for name in asked if len(problem.operators[name].plans) == 1}
    names = [name for name in asked if name not in choice]
    tables = _tables(problem, names, {**(fixed or {}), **choice})
    sizes = {name: len(problem.operators[name].plans) for name in names}
    neighbours = {name: {axis for table in tables for axis in table.axes if name in table.axes} for name in names}
    steps: list[tuple[int, tuple[int, ...], npt.NDArray[np.intp]]] = []
    left = set(names)
    while left:
        name = min(left, key=lambda item: (prod(sizes[axis] for axis in neighbours[item]), item))
        around = tuple(sorted(neighbours[name]))
        if prod(sizes[axis] for axis in around) > table_limit:
            return None
        touching = [table for table in tables if name in table.axes]
        total = np.zeros([sizes[axis] for axis in around], dtype=np.int64)
        for table in touching:
            total = total + table.along(around)
        place = around.index(name)
        rest = around[:place] + around[place + 1 :]
        steps.append((name, rest, total.argmin(axis=place)))
        tables = [table for table in tables if name not in table.axes]
        tables.append(_Table(rest, total.min(axis=place)))
        left.remove(name)
        for other in rest:
            neighbours[other] = (neighbours[other] | set(around)) - {name}
    for name, rest, best in reversed(steps):
        choice[name] = int(best[tuple(choice[axis] for axis in rest)])
    return choice


def _tables(problem: SelectionProblem, names: list[int], fixed: Mapping[int, int]) -> list[_Table]:
    """Give the costs of members by themselves, and of the edges at them."""
    inside = set(names)
    own = {name: np.array([plan.cost for plan in problem.operators[name].plans], dtype=np.int64) for name in names}
    between: list[_Table] = []
    for edge in problem.edges:
        ends = {edge.source, edge.target}
        costs = np.array(edge.costs, dtype=np.int64)
        if ends <= inside:
            between.append(_Table((edge.source, edge.target), costs))
        elif edge.target in inside and edge.source in fixed:
            own[edge.target] = own[edge.target] + costs[fixed[edge.source]]
        elif edge.source in inside and edge.target in fixed:
            own[edge.source] = own[edge.source] + costs[:, fixed[edge.target]]
    return [*(_Table((name,), costs) for name, costs in own.items()), *between]
