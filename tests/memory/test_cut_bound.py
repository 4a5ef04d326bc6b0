from __future__ import annotations

import random

from tests.memory.graphs import large_graph, marked_graph, random_graph
from tvm_ext.graph import LivenessOptions, graph_of_sizes
from tvm_ext.memory.bounds import lower_bound, needed_at
from tvm_ext.memory.cut_bound import least_at, raised_bound
from tvm_ext.memory.dynamic_program import search
from tvm_ext.memory.problem import members, memory_problem
from tvm_ext.memory.work import SECOND, Work

COUNTINGS = ("ignore", "until last use", "always")


def test_the_least_over_all_sets_that_can_have_run():
    compared = 0
    for seed in range(400):
        choose = random.Random(seed)
        graph = marked_graph(seed)
        options = LivenessOptions(*(choose.choice(COUNTINGS) for _ in range(3)))
        problem = memory_problem(graph, options)
        closed = [
            mask
            for mask in range(1 << len(problem))
            if all(problem.predecessors[node] & ~mask == 0 for node in members(mask))
        ]
        for node in range(len(problem)):
            around = [m for m in closed if problem.predecessors[node] & ~m == 0 and not m >> node & 1]
            least = min(problem.during(node, mask) for mask in around)
            found = least_at(problem, node)
            assert needed_at(problem)[node] <= found <= least, (seed, node)
            if not problem.in_place[node]:
                assert found == least, (seed, node)
                compared += 1
    assert compared > 1000


def test_it_is_above_the_simple_bound_and_below_the_best_peak():
    higher = 0
    for seed in range(30):
        problem = memory_problem(random_graph(18, 0.12, seed, largest=64))
        simple = lower_bound(problem)
        found = raised_bound(problem, range(18), simple)
        assert simple <= found <= search(problem).peak
        assert found == max(simple, *(least_at(problem, node) for node in range(18)))
        higher += found > simple
    assert higher > 15


def test_two_branches_that_cannot_both_wait():
    # Both 1 and 2 are read by 4; while 3 runs one of them is alive at least, together with what 3 needs.
    problem = memory_problem(graph_of_sizes([[], [0], [0], [1], [1, 2], [3, 4]], [1, 10, 10, 5, 1, 1]))
    assert least_at(problem, 3) == 10 + 5 + 1


def test_the_work_is_kept():
    problem = memory_problem(large_graph(1500, 0))
    simple = lower_bound(problem)
    work = Work(0.3 * SECOND)
    assert raised_bound(problem, range(1500), simple, work=work) >= simple
    assert work.limit <= work.spent < 3 * work.limit
    assert raised_bound(problem, range(1500), simple, work=Work(0)) == simple
