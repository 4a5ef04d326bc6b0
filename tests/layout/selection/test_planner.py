"""The planner against trying everything, against the constraint solver, and on graphs that must be parted."""

from __future__ import annotations

import doctest

import numpy as np
import pytest

import tvm_ext.layout.selection as room
from tests.layout.selection.problems import brute_force, chain, graph, residual, tree
from tvm_ext.errors import OptionError
from tvm_ext.layout.selection import (
    Edge,
    Operator,
    Plan,
    SelectionProblem,
    plan_locally,
    plan_selection,
    planner,
    solve_selection,
    verify_selection,
)


def test_chains_are_solved_exactly() -> None:
    for seed in range(1000):
        problem = chain(seed)
        selection = plan_selection(problem)
        assert selection.cost == brute_force(problem), seed
        verify_selection(selection, problem)


def test_trees_and_graphs_are_solved_exactly() -> None:
    for seed in range(150):
        for problem in (tree(seed, 2 + seed % 6), graph(seed, 1 + seed % 7, 0.5)):
            selection = plan_selection(problem)
            assert selection.optimal
            assert selection.cost == brute_force(problem), seed
            verify_selection(selection, problem)


@pytest.mark.parametrize("seed", range(6))
def test_long_residual_networks_agree_with_the_constraint_solver(seed: int) -> None:
    pytest.importorskip("ortools")
    problem = residual(seed, 12)
    exact = solve_selection(problem)
    assert exact.bound == exact.cost == plan_selection(problem).cost


def test_parts_are_never_better_than_the_whole_and_mostly_near() -> None:
    losses = []
    for seed in range(40):
        problem = residual(seed, 6)
        whole, parts = plan_selection(problem), plan_selection(problem, part_size=13)
        verify_selection(parts, problem)
        assert all(len(part) <= 13 for part in parts.parts)
        assert whole.cost <= parts.cost <= plan_locally(problem).cost
        losses.append(parts.cost / whole.cost - 1)
    assert sum(losses) / len(losses) < 0.02


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_every_size_of_parts_gives_a_selection(size: int) -> None:
    for seed in range(30):
        problem = graph(seed, 9, 0.3)
        selection = plan_selection(problem, size)
        verify_selection(selection, problem)
        assert all(len(part) <= size for part in selection.parts)
        if size == 100:
            assert selection.optimal


def test_operators_with_more_neighbours_than_an_array_has_axes() -> None:
    """Densely connected, as in networks drawn at random: mostly there is one plan."""
    free, count = (5, 40, 77), 90
    random = np.random.default_rng(0)
    sizes = [2 if name in free else 1 for name in range(count)]
    operators = tuple(
        Operator(f"op{name}", tuple(Plan(f"p{at}", int(random.integers(0, 9))) for at in range(size)))
        for name, size in enumerate(sizes)
    )
    edges = tuple(
        Edge(i, j, tuple(tuple(int(random.integers(0, 9)) for _ in range(sizes[j])) for _ in range(sizes[i])))
        for i in range(count)
        for j in range(i + 1, count)
    )
    problem = SelectionProblem(operators, edges)
    selection = plan_selection(problem)
    verify_selection(selection, problem)
    assert selection.cost == brute_force(problem)


def test_a_graph_whose_tables_do_not_fit_is_parted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "TABLE_LIMIT", 64)
    for seed in range(10):
        problem = graph(seed, 12, 0.8, (3, 3))
        selection = plan_selection(problem)
        assert selection.method == "parts"
        verify_selection(selection, problem)
        assert selection.cost <= plan_locally(problem).cost


def test_nothing_to_select() -> None:
    empty = SelectionProblem(())
    selection = plan_selection(empty)
    assert (selection.choice, selection.cost) == ((), 0)
    verify_selection(selection, empty)


def test_part_size_is_positive() -> None:
    with pytest.raises(OptionError, match="part_size is 0; a part has at least 1 operator"):
        plan_selection(chain(3), 0)


def test_the_example_of_the_room() -> None:
    result = doctest.testmod(room)
    assert result.attempted > 5
    assert result.failed == 0
