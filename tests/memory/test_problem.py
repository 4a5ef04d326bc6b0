from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.memory.graphs import BRANCHES, marked_graph, simulated_peak
from tvm_ext.errors import GraphError
from tvm_ext.graph import DataflowGraph, LivenessOptions, Node, Tensor, graph_of_sizes, liveness, random_order, symbol
from tvm_ext.memory import plan_order
from tvm_ext.memory.problem import members, memory_problem

COUNTINGS = ("ignore", "until last use", "always")
OPTIONS = st.builds(
    LivenessOptions,
    inputs=st.sampled_from(COUNTINGS),
    constants=st.sampled_from(COUNTINGS),
    outputs=st.sampled_from(COUNTINGS),
)


@settings(deadline=None, max_examples=300)
@given(st.integers(0, 10**6), OPTIONS, st.integers(0, 100))
def test_liveness_problem_and_simulation_agree(seed, options, order_seed):
    graph = marked_graph(seed)
    order = random_order(graph, order_seed)
    problem = memory_problem(graph, options)
    alive = liveness(graph, order, options)
    assert alive.peak == simulated_peak(graph, order, options)
    during, after = problem.profile(order)
    assert during == list(alive.during)
    assert after == list(alive.after)
    done = 0
    for place, node in enumerate(order):
        assert problem.during(node, done) == during[place]
        done |= 1 << node
        assert problem.alive(done) == after[place]


@settings(deadline=None, max_examples=200)
@given(st.integers(0, 10**6), OPTIONS, st.integers(0, 100), st.integers(0, 7), st.integers(0, 7))
def test_a_part_has_the_profile_of_its_steps(seed, options, order_seed, one, other):
    graph = marked_graph(seed)
    order = random_order(graph, order_seed)
    begin, end = sorted((min(one, len(order)), min(other, len(order))))
    problem = memory_problem(graph, options)
    part = problem.part(order[begin:end], sum(1 << node for node in order[:begin]))
    numbers = [sorted(order[begin:end]).index(node) for node in order[begin:end]]
    assert part.labels == tuple(sorted(order[begin:end]))
    assert part.profile(numbers)[0] == problem.profile(order)[0][begin:end]
    assert part.profile(numbers)[1] == problem.profile(order)[1][begin:end]


@settings(deadline=None, max_examples=100)
@given(st.integers(0, 10**6), OPTIONS)
def test_bytes_alive_are_submodular(seed, options):
    graph = marked_graph(seed, largest=6)
    problem = memory_problem(graph, options)
    closed = [
        mask
        for mask in range(1 << len(problem))
        if all(problem.predecessors[node] & ~mask == 0 for node in members(mask))
    ]
    alive = {mask: problem.alive(mask) for mask in closed}
    for one in closed:
        for other in closed:
            assert alive[one] + alive[other] >= alive[one | other] + alive[one & other]


def test_ancestors_and_descendants():
    problem = memory_problem(BRANCHES)
    assert [list(members(mask)) for mask in problem.ancestors][7] == [0, 1, 2, 3, 4, 5, 6]
    assert [list(members(mask)) for mask in problem.descendants][1] == [4, 7, 8]


def test_a_size_that_is_not_a_number_is_refused():
    tensors = {"a": Tensor("a", (symbol("n"),), "uint8", symbol("n"))}
    graph = DataflowGraph("f", (Node(0, "a", "op", outputs=("a",)),), tensors)
    with pytest.raises(GraphError, match=r"'f'.*tensor 'a'.* n; give its symbols a value with bind\(\)"):
        memory_problem(graph)
    unknown = DataflowGraph("f", graph.nodes, {"a": Tensor("a", None, "", None)})
    with pytest.raises(GraphError, match="size of tensor 'a' in bytes is not known"):
        memory_problem(unknown)


def test_no_nodes_and_no_bytes():
    assert memory_problem(graph_of_sizes([], [])).peak(()) == 0
    assert memory_problem(graph_of_sizes([[], [0]], [0, 0])).peak((0, 1)) == 0


def test_what_branches_allocate_inside_counts_while_they_run():
    inner = graph_of_sizes([[], [0], [1]], [5, 30, 2], "branch")
    graph = graph_of_sizes([[], [0], [0], [1, 2]], [4, 2, 8, 1])
    nodes = (*graph.nodes[:1], replace(graph.nodes[1], op="if", regions=(inner, inner)), *graph.nodes[2:])
    graph = replace(graph, nodes=nodes)
    problem = memory_problem(graph)
    assert problem.inside == (0, 33, 0, 0)  # 35 bytes at the peak of the branch, 2 of them its result
    for order in ((0, 1, 2, 3), (0, 2, 1, 3)):
        assert problem.profile(order)[0] == list(liveness(graph, order).during)
    assert plan_order(graph).order == (0, 1, 2, 3)
    assert plan_order(graph).peak == 39
    assert memory_problem(graph, LivenessOptions(nested=False)).inside == (0, 0, 0, 0)
