from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.graph.random_graphs import graphs, reachable
from tvm_ext.errors import GraphError
from tvm_ext.graph import (
    ancestors,
    count_all_paths,
    count_paths,
    descendants,
    graph_of_sizes,
    is_convex,
    path_outside,
)

DIAMOND = graph_of_sizes([[], [0], [0], [1, 2]], [4, 8, 8, 1])


def members(mask: int) -> set[int]:
    return {bit for bit in range(mask.bit_length()) if mask >> bit & 1}


def paths_between(graph, source: int, target: int):
    if source == target:
        yield (source,)
    for follower in graph.successors[source]:
        for rest in paths_between(graph, follower, target):
            yield (source, *rest)


@settings(deadline=None)
@given(graphs(max_nodes=8))
def test_reachability(graph):
    expected = reachable(graph)
    assert [members(mask) for mask in descendants(graph)] == expected
    assert [members(mask) for mask in ancestors(graph)] == [
        {i for i in range(len(graph)) if target in expected[i]} for target in range(len(graph))
    ]


@settings(deadline=None)
@given(graphs(max_nodes=6))
def test_convexity_of_every_set(graph):
    after = reachable(graph)
    for size in range(len(graph) + 1):
        for nodes in combinations(range(len(graph)), size):
            outside = set(range(len(graph))) - set(nodes)
            # A node outside the set that is after one member and before another.
            between = any(x in after[a] and b in after[x] for x in outside for a in nodes for b in nodes)
            assert is_convex(graph, nodes) == (not between)


@settings(deadline=None)
@given(graphs(max_nodes=8), st.data())
def test_the_witness_is_a_path_that_leaves_and_comes_back(graph, data):
    nodes = data.draw(st.sets(st.integers(0, max(0, len(graph) - 1)), max_size=4)) if len(graph) else set()
    path = path_outside(graph, nodes)
    if path is not None:
        assert len(path) >= 3
        assert path[0] in nodes
        assert path[-1] in nodes
        assert not set(path[1:-1]) & nodes
        assert all(b in graph.successors[a] for a, b in pairwise(path))


@settings(deadline=None)
@given(graphs(max_nodes=8))
def test_paths_are_counted(graph):
    for source in range(len(graph)):
        for target in range(len(graph)):
            assert count_paths(graph, source, target) == len(list(paths_between(graph, source, target)))
    sources = [i for i, before in enumerate(graph.predecessors) if not before]
    sinks = [i for i, after in enumerate(graph.successors) if not after]
    assert count_all_paths(graph) == sum(len(list(paths_between(graph, a, b))) for a in sources for b in sinks)


def test_the_sides_of_a_diamond():
    assert is_convex(DIAMOND, {0, 1, 2, 3})
    assert is_convex(DIAMOND, {1, 2})
    assert not is_convex(DIAMOND, {0, 1, 3})
    assert path_outside(DIAMOND, {0, 1, 3}) == (0, 2, 3)
    assert count_paths(DIAMOND, 0, 3) == 2


def test_path_counts_double_with_each_diamond():
    predecessors: list[list[int]] = [[]]
    for stage in range(60):
        predecessors += [[3 * stage], [3 * stage], [3 * stage + 1, 3 * stage + 2]]
    ladder = graph_of_sizes(predecessors, [1] * len(predecessors))
    assert count_all_paths(ladder) == 2**60


def test_an_unknown_node_is_refused():
    with pytest.raises(GraphError, match="has no node 9, its nodes are 0 to 3"):
        is_convex(DIAMOND, {0, 9})
    with pytest.raises(GraphError, match="has no node -1"):
        count_paths(DIAMOND, -1, 2)
