"""What is to be selected: plans per operator with their costs, and the costs of relayouts between neighbours."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from tvm_ext.errors import GraphError


@dataclass(frozen=True)
class Plan:
    """One way to execute an operator.

    Attributes
    ----------
    name : str
        What is chosen, an instruction or an algorithm.
    cost : int
        Of the operator with its requantisation, inputs being in the layout that it takes; not negative. The unit is
        the caller's (packets, nanoseconds), and the same in a whole problem.
    takes, gives : str
        Layouts of its inputs and of its output.
    """

    name: str
    cost: int
    takes: str = ""
    gives: str = ""


@dataclass(frozen=True)
class Operator:
    """A vertex with one output tensor.

    Attributes
    ----------
    name : str
        For messages; unique in a problem.
    plans : tuple of Plan
        At least one.
    is_relayout : bool
        Whether it only moves elements (a reshape, a transposition), so that the graph may be parted in front of it.
    """

    name: str
    plans: tuple[Plan, ...]
    is_relayout: bool = False


@dataclass(frozen=True)
class Edge:
    """A tensor on its way from the operator that makes it to one that reads it.

    Attributes
    ----------
    source, target : int
        Indices of operators; the source stands first.
    costs : tuple of tuple of int
        ``costs[i][j]`` is what the relayout takes between plan ``i`` of the source and plan ``j`` of the target.
    """

    source: int
    target: int
    costs: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class SelectionProblem:
    """Operators in an order in which they can run, and the edges between them.

    Raises
    ------
    GraphError
        When an operator has no plan or shares its name, an edge does not point forward, or costs are negative or not
        as many as there are plans; the message names the operator.
    """

    operators: tuple[Operator, ...]
    edges: tuple[Edge, ...] = ()

    def __post_init__(self) -> None:
        seen: set[str] = set()
        for operator in self.operators:
            if not operator.plans:
                raise GraphError(f"selection: operator '{operator.name}' has no plan; give it at least one")
            if operator.name in seen:
                raise GraphError(f"selection: two operators are named '{operator.name}'; names have to be unique")
            seen.add(operator.name)
            for plan in operator.plans:
                if not 0 <= plan.cost < math.inf:
                    raise GraphError(
                        f"selection: plan '{plan.name}' of operator '{operator.name}' costs {plan.cost}; costs are "
                        "finite and not negative"
                    )
        for edge in self.edges:
            self._check(edge)

    def _check(self, edge: Edge) -> None:
        if not 0 <= edge.source < edge.target < len(self.operators):
            raise GraphError(
                f"selection: the edge from operator {edge.source} to {edge.target} does not point forward among "
                f"{len(self.operators)} operators; list them in an order in which they can run"
            )
        source, target = self.operators[edge.source], self.operators[edge.target]
        place = f"selection: the edge from '{source.name}' to '{target.name}'"
        widths = {len(row) for row in edge.costs}
        if len(edge.costs) != len(source.plans) or widths != {len(target.plans)}:
            raise GraphError(
                f"{place} has costs of {len(edge.costs)} x {sorted(widths)}; {len(source.plans)} x "
                f"{len(target.plans)} plans were expected"
            )
        wrong = next((cost for row in edge.costs for cost in row if not 0 <= cost < math.inf), None)
        if wrong is not None:
            raise GraphError(f"{place} has a cost of {wrong}; relayouts cost zero or more, and are finite")

    def __len__(self) -> int:
        return len(self.operators)

    @cached_property
    def edges_of(self) -> tuple[tuple[Edge, ...], ...]:
        """The edges at each operator, in either direction."""
        found: list[list[Edge]] = [[] for _ in self.operators]
        for edge in self.edges:
            found[edge.source].append(edge)
            found[edge.target].append(edge)
        return tuple(map(tuple, found))

    def aggregate_cost(self, choice: Sequence[int]) -> int:
        """Add up plans and relayouts (Eq. 4.1).

        Parameters
        ----------
        choice : sequence of int
            Index of the plan of each operator.
        """
        plans = sum(operator.plans[index].cost for operator, index in zip(self.operators, choice, strict=True))
        return plans + sum(edge.costs[choice[edge.source]][choice[edge.target]] for edge in self.edges)

    def window(self, first: int, count: int) -> SelectionProblem:
        """Cut out ``count`` operators from ``first`` on, with the edges between them."""
        last = min(first + count, len(self.operators))
        edges = (edge for edge in self.edges if edge.source >= first and edge.target < last)
        return SelectionProblem(
            self.operators[first:last],
            tuple(Edge(edge.source - first, edge.target - first, edge.costs) for edge in edges),
        )


def edge_between(operators: Sequence[Operator], source: int, target: int, relayout: Callable[[str, str], int]) -> Edge:
    """Make an edge from the layouts of its plans.

    Parameters
    ----------
    operators : sequence of Operator
        Those of the problem.
    source, target : int
        Its ends.
    relayout : callable
        Cost of the tensor's way from one layout to another; asked for different layouts only, equal ones cost nothing.

    Raises
    ------
    GraphError
        If there is no such operator.
    """
    for end in (source, target):
        if not 0 <= end < len(operators):
            raise GraphError(
                f"selection: an edge from operator {source} to {target} has no operator {end} among {len(operators)}; "
                "count them from 0"
            )
    costs = tuple(
        tuple(0 if plan.takes == given.gives else relayout(given.gives, plan.takes) for plan in operators[target].plans)
        for given in operators[source].plans
    )
    return Edge(source, target, costs)
