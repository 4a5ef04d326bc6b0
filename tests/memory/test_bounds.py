from __future__ import annotations

import random

from tests.memory.graphs import marked_graph, simulated_peak, stacked_cells
from tvm_ext.graph import LivenessOptions, count_topological_orders, graph_of_sizes, peak_bytes, topological_orders
from tvm_ext.memory import bounds
from tvm_ext.memory.bounds import lower_bound, needed_at
from tvm_ext.memory.problem import memory_problem

COUNTINGS = ("ignore", "until last use", "always")


def test_no_order_is_below():
    reached = 0
    for seed in range(500):
        graph = marked_graph(seed)
        if count_topological_orders(graph) > 200:
            continue
        choose = random.Random(seed)
        options = LivenessOptions(*(choose.choice(COUNTINGS) for _ in range(3)))
        problem = memory_problem(graph, options)
        found = needed_at(problem)
        least = [None] * len(graph)
        for order in topological_orders(graph):
            for place, node in enumerate(order):
                bytes_ = problem.during(node, sum(1 << other for other in order[:place]))
                least[node] = bytes_ if least[node] is None else min(least[node], bytes_)
        assert all(bound <= bytes_ for bound, bytes_ in zip(found, least, strict=True)), seed
        best = min(simulated_peak(graph, order, options) for order in topological_orders(graph))
        assert lower_bound(problem) <= best
        reached += lower_bound(problem) == best
    assert reached > 250


def test_what_skips_a_node_counts_at_it():
    # 0 is read by 3, so it is alive at 1 and 2 as well.
    assert needed_at(memory_problem(graph_of_sizes([[], [0], [1], [0, 2]], [10, 1, 2, 3]))) == [10, 11, 13, 15]


def test_large_problems_fall_back_to_what_a_node_touches(monkeypatch):
    graph = stacked_cells((12, 9), seed=0)
    problem = memory_problem(graph)
    strong = lower_bound(problem)
    monkeypatch.setattr(bounds, "MOST_NODES", 5)
    assert 0 < lower_bound(problem) <= strong <= peak_bytes(graph)


def test_no_nodes():
    assert lower_bound(memory_problem(graph_of_sizes([], []))) == 0
