from __future__ import annotations

import pytest

from tests.memory.graphs import large_graph, marked_graph, random_graph
from tvm_ext.graph import check_order, random_order
from tvm_ext.memory.bounds import lower_bound
from tvm_ext.memory.dynamic_program import search
from tvm_ext.memory.problem import memory_problem
from tvm_ext.memory.windows import improve_by_windows
from tvm_ext.memory.work import SECOND, Work


def test_orders_stay_valid_and_become_no_worse():
    for seed in range(200):
        graph = marked_graph(seed)
        problem = memory_problem(graph)
        start = random_order(graph, seed)
        order, _ = improve_by_windows(problem, start, 0, work=Work())
        check_order(graph, order)
        assert problem.peak(order) <= problem.peak(start)
        # All of it is in one window.
        assert problem.peak(order) == search(problem).peak


@pytest.mark.parametrize("seed", range(2))
def test_a_window_is_enough_to_get_better(seed):
    graph = large_graph(150, seed)
    problem = memory_problem(graph)
    start = random_order(graph, seed)
    order, transitions = improve_by_windows(problem, start, lower_bound(problem), work=Work(2 * SECOND))
    check_order(graph, order)
    assert problem.peak(order) < 0.8 * problem.peak(start)
    assert transitions > 0


def test_no_time_no_change():
    graph = random_graph(100, 0.05, 0)
    problem = memory_problem(graph)
    order, transitions = improve_by_windows(problem, range(100), 0, work=Work(0))
    assert (order, transitions) == (tuple(range(100)), 0)


def test_it_stops_at_the_bound():
    problem = memory_problem(random_graph(100, 0.05, 0))
    start = tuple(range(100))
    assert improve_by_windows(problem, start, problem.peak(start), work=Work()) == (start, 0)
