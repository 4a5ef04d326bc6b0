from __future__ import annotations

import time

import pytest

from tests.memory.graphs import large_graph, marked_graph, random_graph
from tvm_ext.graph import check_order
from tvm_ext.memory.greedy import greedy_order
from tvm_ext.memory.problem import memory_problem


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("recent", [False, True])
def test_orders_are_topological_and_greedy(backwards, recent):
    for seed in range(300):
        graph = marked_graph(seed)
        problem = memory_problem(graph)
        order = check_order(graph, greedy_order(problem, backwards=backwards, recent=recent))
        if backwards:
            continue
        done = 0
        for node in order:
            ready = [n for n in range(len(graph)) if not done >> n & 1 and problem.predecessors[n] & ~done == 0]
            assert problem.alive(done | 1 << node) == min(problem.alive(done | 1 << n) for n in ready)
            done |= 1 << node


def test_each_direction_is_the_better_one_at_times():
    wins = {False: 0, True: 0}
    for seed in range(60):
        problem = memory_problem(random_graph(16, 0.2, seed))
        peaks = {backwards: problem.peak(greedy_order(problem, backwards=backwards)) for backwards in wins}
        for backwards in wins:
            wins[backwards] += peaks[backwards] < peaks[not backwards]
    assert min(wins.values()) > 5


def test_five_thousand_nodes_are_quick():
    problem = memory_problem(large_graph(5000, seed=0))
    started = time.process_time()
    greedy_order(problem)
    assert time.process_time() - started < 2
