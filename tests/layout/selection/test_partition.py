"""Where graphs are parted."""

from __future__ import annotations

from time import process_time

import numpy as np
import pytest

from tests.layout.selection.problems import graph, random_problem, residual
from tvm_ext.layout.selection import (
    Edge,
    Operator,
    Plan,
    SelectionProblem,
    is_desirable,
    partition,
    plan_locally,
    plan_selection,
)

A, B = Plan("a", 10), Plan("b", 20)
FREE, DEAR = ((0, 5), (5, 0)), ((0, 50), (50, 0))


def _chain(*costs: tuple[tuple[int, ...], ...], relayouts: tuple[int, ...] = ()) -> SelectionProblem:
    operators = tuple(Operator(f"op{name}", (A, B), name in relayouts) for name in range(len(costs) + 1))
    return SelectionProblem(operators, tuple(Edge(name, name + 1, cost) for name, cost in enumerate(costs)))


def test_an_edge_is_desirable_where_its_relayout_pays() -> None:
    problem = _chain(FREE, DEAR)
    assert [is_desirable(problem, edge) for edge in problem.edges] == [True, False]


def test_an_edge_into_an_operator_that_moves_elements_is_desirable() -> None:
    problem = _chain(DEAR, DEAR, relayouts=(2,))
    assert [is_desirable(problem, edge) for edge in problem.edges] == [False, True]


def test_an_edge_into_an_operator_of_two_inputs_is_not() -> None:
    operators = tuple(Operator(f"op{name}", (A, B), True) for name in range(3))
    problem = SelectionProblem(operators, (Edge(0, 2, FREE), Edge(1, 2, FREE)))
    assert not any(is_desirable(problem, edge) for edge in problem.edges)


def test_a_chain_is_parted_at_its_dominant_edge() -> None:
    problem = _chain(DEAR, FREE, DEAR)
    found = partition(problem, 2)
    assert found.parts == ((0, 1), (2, 3))
    assert found.cuts == ("dominant",)


def test_a_branch_is_cut_with_complementary_edges() -> None:
    # 0 feeds 1-2 and 3-4, which meet in 5; 0 -> 1 is desirable, and 0 -> 3 completes the cut.
    operators = tuple(Operator(f"op{name}", (A, B), name == 1) for name in range(6))
    pairs = [(0, 1), (1, 2), (0, 3), (3, 4), (2, 5), (4, 5)]
    problem = SelectionProblem(operators, tuple(Edge(*pair, DEAR) for pair in pairs))
    found = partition(problem, 5)
    assert found.cuts == ("complementary",)
    assert len(found.parts) == 2
    assert 0 in found.parts[0]
    assert 1 in found.parts[1]


def test_without_a_desirable_edge_parts_are_even() -> None:
    found = partition(_chain(*[DEAR] * 7), 4)
    assert [len(part) for part in found.parts] == [4, 4]
    assert found.cuts == ("forced",)


def test_parts_hold_every_operator_once_and_run_in_order() -> None:
    for seed in range(40):
        problem = graph(seed, 14, 0.2) if seed % 2 else residual(seed, 5)
        found = partition(problem, 1 + seed % 6)
        place = {name: number for number, part in enumerate(found.parts) for name in part}
        assert sorted(place) == list(range(len(problem)))
        assert sum(map(len, found.parts)) == len(problem)
        assert all(place[edge.source] <= place[edge.target] for edge in problem.edges)
        assert len(found.cuts) == len(found.parts) - 1


def test_many_operators_that_read_most_others_are_parted_in_no_time() -> None:
    """A flow through each of these four thousand edges took minutes."""
    random = np.random.default_rng(0)
    pairs = [(source, target) for target in range(150) for source in range(target) if random.random() < 0.4]
    problem = random_problem(1, pairs, 150, plans=(2, 3), relayouts=0)
    began = process_time()
    found = partition(problem, 13)
    assert process_time() - began < 5
    assert all(len(part) <= 13 for part in found.parts)
    assert len(found.parts) < 150 / 3  # sides are a quarter at least


@pytest.mark.parametrize("seed", range(20))
def test_parts_of_dense_graphs_lose_little(seed: int) -> None:
    """Against the best choice there is, and what it costs to look at no neighbour."""
    problem = graph(seed, 16, 0.5)
    whole = plan_selection(problem)
    assert whole.optimal
    best, parted, local = whole.cost, plan_selection(problem, part_size=5).cost, plan_locally(problem).cost
    assert best <= parted <= best + (local - best) / 2
