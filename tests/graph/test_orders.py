from __future__ import annotations

from itertools import islice, permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.graph.random_graphs import graphs
from tvm_ext.errors import GraphError
from tvm_ext.graph import (
    breadth_first_order,
    check_order,
    count_topological_orders,
    depth_first_order,
    given_order,
    graph_of_sizes,
    is_topological_order,
    random_order,
    topological_orders,
)

DIAMOND = graph_of_sizes([[], [0], [0], [1, 2]], [4, 8, 8, 1])
# Two chains from one source to one sink.
CHAINS = graph_of_sizes([[], [0], [0], [1], [2], [3, 4]], [1] * 6)
# Three branches of two nodes; 90 = 6! / (2! 2! 2!) interleavings.
BRANCHES = graph_of_sizes([[], [0], [0], [0], [1], [2], [3], [4, 5, 6], [7]], [4, 8, 8, 8, 2, 2, 2, 6, 1])


def brute_force(graph):
    """All permutations in which every node comes after its predecessors."""
    for order in permutations(range(len(graph))):
        if all(order.index(p) < order.index(i) for i, before in enumerate(graph.predecessors) for p in before):
            yield order


@settings(deadline=None)
@given(graphs(max_nodes=6))
def test_all_orders_are_found_once(graph):
    expected = list(brute_force(graph))
    assert list(topological_orders(graph)) == expected
    assert count_topological_orders(graph) == len(expected)


@settings(deadline=None)
@given(graphs(max_nodes=12), st.integers(0, 99))
def test_every_way_to_order_gives_a_topological_order(graph, seed):
    for order in (given_order(graph), depth_first_order(graph), breadth_first_order(graph), random_order(graph, seed)):
        assert check_order(graph, order) == order
    assert random_order(graph, seed) == random_order(graph, seed)


@settings(deadline=None)
@given(graphs(max_nodes=5))
def test_the_check_is_right_for_every_permutation(graph):
    valid = set(brute_force(graph))
    for order in permutations(range(len(graph))):
        assert is_topological_order(graph, order) == (order in valid)


def test_depth_first_finishes_a_branch_before_the_next():
    assert depth_first_order(CHAINS) == (0, 1, 3, 2, 4, 5)


def test_breadth_first_goes_level_by_level():
    assert breadth_first_order(CHAINS) == (0, 1, 2, 3, 4, 5)


def test_random_orders_reach_every_order():
    assert {random_order(DIAMOND, seed) for seed in range(30)} == {(0, 1, 2, 3), (0, 2, 1, 3)}


def test_orders_of_three_branches():
    assert count_topological_orders(BRANCHES) == 90
    assert len(set(topological_orders(BRANCHES))) == 90


def test_orders_are_made_one_at_a_time():
    wide = graph_of_sizes([[] for _ in range(40)], [1] * 40)
    assert len(list(islice(topological_orders(wide), 3))) == 3


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ((0, 1, 3, 2), r"node 3 \('t3'\) runs before node 2 \('t2'\) that it depends on"),
        ((0, 1, 2), r"node 3 \('t3'\) is missing"),
        ((0, 1, 1, 3), r"node 1 \('t1'\) is there more than once"),
        ((0, 1, 2, 7), "there is no node 7, nodes are 0 to 3"),
        ((-1, 0, 1, 2), "there is no node -1"),
    ],
)
def test_a_wrong_order_is_explained(order, message):
    assert not is_topological_order(DIAMOND, order)
    with pytest.raises(GraphError, match=message):
        check_order(DIAMOND, order)


def test_a_long_chain_does_not_overflow_the_stack():
    chain = graph_of_sizes([[]] + [[i] for i in range(20_000)], [1] * 20_001)
    assert depth_first_order(chain) == given_order(chain) == breadth_first_order(chain)
