from __future__ import annotations

import random

import numpy as np
import pytest

from tests.memory.graphs import BRANCHES, least_peak, marked_graph, random_graph, simulated_peak, stacked_cells
from tvm_ext.graph import (
    LivenessOptions,
    breadth_first_order,
    count_topological_orders,
    graph_of_sizes,
    peak_bytes,
    topological_orders,
)
from tvm_ext.memory import dynamic_program
from tvm_ext.memory.dynamic_program import search
from tvm_ext.memory.problem import memory_problem
from tvm_ext.memory.work import Work

COUNTINGS = ("ignore", "until last use", "always")


def test_the_published_example():
    problem = memory_problem(BRANCHES)
    peaks = [peak_bytes(BRANCHES, order) for order in topological_orders(BRANCHES)]
    assert count_topological_orders(BRANCHES) == len(peaks) == 90
    assert (min(peaks), max(peaks), peaks.count(16)) == (16, 28, 6)
    assert peak_bytes(BRANCHES, breadth_first_order(BRANCHES)) == 28
    found = search(problem, dominance=False)
    assert (found.peak, found.order, found.transitions) == (16, (0, 1, 4, 2, 5, 3, 6, 7, 8), 57)


@pytest.mark.parametrize(("budget", "transitions"), [(16, 39), (17, 39), (18, 39), (28, 57), (40, 57)])
def test_a_budget_drops_what_exceeds_it(budget, transitions):
    found = search(memory_problem(BRANCHES), budget=budget, dominance=False)
    assert (found.flag, found.peak, found.transitions) == ("solution", 16, transitions)


def test_a_budget_that_is_too_small():
    found = search(memory_problem(BRANCHES), budget=15, dominance=False)
    assert (found.flag, found.order, found.transitions, found.exceeded) == ("no solution", (), 31, 16)


@pytest.mark.parametrize("batch", range(10))
def test_least_of_all_orders(batch):
    for seed in range(100 * batch, 100 * (batch + 1)):
        choose = random.Random(seed)
        density = choose.choice((0.1, 0.2, 0.35, 0.5))
        count = choose.randint(1, 10 if density > 0.1 else 8)
        graph = random_graph(count, density, seed)
        sizes = [graph.tensors[f"t{index}"].nbytes for index in range(count)]
        best = least_peak(graph.predecessors, sizes)
        problem = memory_problem(graph)
        for dominance in (False, True):
            found = search(problem, dominance=dominance)
            assert found.peak == peak_bytes(graph, found.order) == best, seed
            assert search(problem, budget=best, dominance=dominance).peak == best
            low = search(problem, budget=best - 1, dominance=dominance)
            assert low.flag == "no solution"
            assert low.complete
            assert best - 1 < low.exceeded <= best


@pytest.mark.parametrize("batch", range(4))
def test_least_of_all_orders_with_all_that_counts(batch):
    for seed in range(100 * batch, 100 * (batch + 1)):
        choose = random.Random(seed)
        graph = marked_graph(seed)
        if count_topological_orders(graph) > 500:
            continue
        options = LivenessOptions(*(choose.choice(COUNTINGS) for _ in range(3)))
        best = min(simulated_peak(graph, order, options) for order in topological_orders(graph))
        problem = memory_problem(graph, options)
        for dominance in (False, True):
            found = search(problem, dominance=dominance)
            assert found.peak == simulated_peak(graph, found.order, options) == best, seed


def test_a_floor_changes_nothing_but_what_is_below_it():
    for seed in range(50):
        graph = random_graph(9, 0.3, seed)
        problem = memory_problem(graph)
        best = search(problem).peak
        assert search(problem, floor=best).peak == best
        assert search(problem, floor=best // 2).peak == best
        assert search(problem, floor=best + 5).peak == best + 5


def test_more_than_one_word_of_nodes(monkeypatch):
    graph = stacked_cells((33, 28, 29), seed=3)
    problem = memory_problem(graph)
    whole = search(problem)
    assert len(graph) == 90
    assert peak_bytes(graph, whole.order) == whole.peak
    assert search(problem, dominance=False).peak == whole.peak
    monkeypatch.setattr(dynamic_program, "_CHUNK", 200)  # many chunks a level
    assert search(problem).order == whole.order


def test_the_same_input_gives_the_same_order():
    problem = memory_problem(random_graph(24, 0.15, 1, largest=64))
    assert search(problem) == search(problem)


def test_limits():
    problem = memory_problem(random_graph(30, 0.1, 1, largest=64))
    whole = search(problem)
    assert whole.flag == "solution"
    assert search(problem, level_limit=100).flag == "states"
    assert search(problem, state_limit=1000).flag == "states"
    assert search(problem, level_limit=10**6, state_limit=10**7) == whole
    late = search(problem, work=Work(0))
    assert (late.flag, late.complete) == ("work", False)


def test_a_narrow_search_finds_a_valid_order_that_is_no_proof():
    graph = random_graph(30, 0.1, 1, largest=64)
    problem = memory_problem(graph)
    whole = search(problem)
    peaks = []
    for width in (1, 8, 64, 10**6):
        found = search(problem, width=width)
        assert found.flag == "solution"
        assert peak_bytes(graph, found.order) == found.peak >= whole.peak
        assert found.complete == (width == 10**6)
        peaks.append(found.peak)
    assert peaks[-1] == whole.peak


def test_no_nodes_and_one():
    assert search(memory_problem(graph_of_sizes([], []))).flag == "solution"
    assert search(memory_problem(graph_of_sizes([[]], [5]))).peak == 5
    assert search(memory_problem(graph_of_sizes([[]], [5])), budget=4).exceeded == 5


def test_large_sizes_are_exact():
    big = 2**40 + 1
    graph = graph_of_sizes([[], [0], [0], [1, 2], [3, 0]], [big, big + 2, 3, big, 1])
    found = search(memory_problem(graph))
    assert (
        found.peak
        == peak_bytes(graph, found.order)
        == min(map(lambda o: peak_bytes(graph, o), topological_orders(graph)))
    )
    assert np.iinfo(np.int64).max > found.peak
