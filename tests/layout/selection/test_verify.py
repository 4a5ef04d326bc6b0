"""The verifier finds what is wrong; problems that are none are refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.layout.selection.problems import chain, graph
from tvm_ext.errors import GraphError
from tvm_ext.layout.selection import (
    Edge,
    Operator,
    Plan,
    SelectionProblem,
    edge_between,
    plan_selection,
    verify_selection,
)

A, B = Plan("a", 1), Plan("b", 2)


def test_wrong_selections_are_found() -> None:
    problem = SelectionProblem((Operator("one", (A, B)), Operator("two", (A, B))), (Edge(0, 1, ((0, 9), (9, 0))),))
    good = plan_selection(problem)
    for change, message in (
        ({"choice": (0,)}, "1 plans were chosen for 2 operators"),
        ({"choice": (0, 2)}, "operator 'two' is given plan 2; it has 2"),
        ({"cost": 1}, "it costs 2, the plan says 1"),
        ({"parts": ((0,),)}, "its parts do not hold every operator once"),
        ({"choice": (1, 1), "cost": 4}, "called optimal, but other plans for 'one' and 'two' save 2"),
        ({"choice": (0, 1), "cost": 12}, "called optimal, but other plans for 'one' save 8"),
    ):
        with pytest.raises(GraphError, match=message):
            verify_selection(replace(good, **change), problem)  # type: ignore[arg-type]


def test_a_chain_that_only_a_larger_change_makes_cheaper_is_found() -> None:
    keep = ((0, 9), (9, 0))
    plans = (Plan("a", 2), Plan("b", 1))
    problem = SelectionProblem(
        tuple(Operator(f"op{name}", plans) for name in range(5)), tuple(Edge(name, name + 1, keep) for name in range(4))
    )
    good = plan_selection(problem)
    assert good.choice == (1,) * 5
    with pytest.raises(GraphError, match=r"Eq. 4.2 gives 5 for this chain"):
        verify_selection(replace(good, choice=(0,) * 5, cost=10), problem)


@pytest.mark.parametrize("seed", range(30))
def test_a_cost_that_is_off_by_one_is_found(seed: int) -> None:
    problem = chain(seed) if seed % 2 else graph(seed, 6, 0.4)
    selection = plan_selection(problem)
    with pytest.raises(GraphError, match="the plan says"):
        verify_selection(replace(selection, cost=selection.cost + 1), problem)


def test_problems_that_are_none() -> None:
    one, two = Operator("one", (A, B)), Operator("two", (A,))
    for operators, edges, message in (
        ((Operator("one", ()),), (), "operator 'one' has no plan"),
        ((one, one), (), "two operators are named 'one'"),
        ((Operator("one", (Plan("a", -1),)),), (), "plan 'a' of operator 'one' costs -1"),
        ((one, two), (Edge(1, 0, ((0, 0),)),), "the edge from operator 1 to 0 does not point forward"),
        ((one, two), (Edge(0, 1, ((0, 0), (0, 0))),), "2 x 1 plans were expected"),
        ((one, two), (Edge(0, 1, ((0,), (-1,))),), "from 'one' to 'two' has a cost of -1"),
        ((one, two), (Edge(0, 1, ((0,), (float("inf"),))),), "from 'one' to 'two' has a cost of inf"),
        ((Operator("nan", (Plan("p", float("nan"), "1", "1"),)),), (), "plan 'p' of operator 'nan' costs nan"),
    ):
        with pytest.raises(GraphError, match=message):
            SelectionProblem(operators, edges)
    with pytest.raises(GraphError, match="an edge from operator 0 to 7 has no operator 7 among 2"):
        edge_between((one, two), 0, 7, lambda before, after: 1)
