from __future__ import annotations

import pytest

from tests.memory.graphs import BRANCHES, marked_graph, stacked_cells
from tvm_ext.graph import count_topological_orders, graph_of_sizes, peak_bytes, random_order, topological_orders
from tvm_ext.memory import OrderOptions, plan_order
from tvm_ext.memory.divide import divide
from tvm_ext.memory.dynamic_program import search
from tvm_ext.memory.problem import memory_problem
from tvm_ext.memory.work import SECOND


@pytest.mark.parametrize("counts", [(21, 19, 22), (33, 28, 29), (6, 7, 5), (4, 4, 4, 4)])
@pytest.mark.parametrize("seed", range(5))
def test_parts_one_after_another_are_as_good_as_the_whole(counts, seed):
    graph = stacked_cells(counts, seed)
    assert len(graph) == sum(counts)
    problem = memory_problem(graph)
    parts = divide(problem)
    assert len(parts) >= len(counts)
    order = tuple(part.nodes[node] for part in parts for node in search(part.problem).order)
    whole = search(problem)
    assert peak_bytes(graph, order) == whole.peak
    assert max(search(part.problem).peak for part in parts) == whole.peak
    undivided = plan_order(graph, OrderOptions(divide=False, effort=30 * SECOND))
    assert (undivided.peak, undivided.optimal, len(undivided.parts)) == (whole.peak, True, 1)


def test_every_order_runs_the_parts_one_after_another():
    divided = 0
    for seed in range(300):
        graph = marked_graph(seed)
        parts = divide(memory_problem(graph))
        divided += len(parts) > 1
        assert sorted(node for part in parts for node in part.nodes) == list(range(len(graph)))
        order = random_order(graph, seed)
        begin = 0
        for part in parts:
            assert set(order[begin : begin + len(part.nodes)]) == set(part.nodes)
            begin += len(part.nodes)
        # No part could be cut further: for each place inside it, two orders differ in what is behind them.
        if count_topological_orders(graph) <= 200:
            behind = [{frozenset(o[:place]) for o in topological_orders(graph)} for place in range(len(graph) + 1)]
            assert len(parts) == sum(len(sets) == 1 for sets in behind[1:])
    assert divided > 40


def test_what_is_alive_at_a_cut_is_resident_behind_it():
    first, cut, inner, last = divide(memory_problem(BRANCHES))
    assert (first.nodes, cut.nodes, inner.nodes, last.nodes) == ((0,), (1, 2, 3, 4, 5, 6), (7,), (8,))
    assert cut.problem.alive(0) == 4
    assert inner.problem.alive(0) == 6
    assert search(cut.problem).peak == 16


def test_two_nodes_can_end_a_part_together():
    graph = graph_of_sizes([[], [], [0, 1], [0, 1], [2, 3]], [1, 2, 3, 4, 5])
    assert [part.nodes for part in divide(memory_problem(graph))] == [(0, 1), (2, 3), (4,)]
    assert divide(memory_problem(graph_of_sizes([], []))) == ()
