from __future__ import annotations

import pytest

from tests.memory.graphs import BRANCHES, random_graph
from tvm_ext.graph import peak_bytes
from tvm_ext.memory.bounds import lower_bound
from tvm_ext.memory.budget import BudgetSearch
from tvm_ext.memory.cut_bound import raised_bound
from tvm_ext.memory.dynamic_program import search
from tvm_ext.memory.problem import memory_problem
from tvm_ext.memory.work import SECOND, Work


@pytest.mark.parametrize("seed", range(30))
def test_it_ends_at_the_best_peak_with_a_proof(seed):
    graph = random_graph(22, 0.12, seed, largest=64)
    problem = memory_problem(graph)
    found = BudgetSearch(problem, range(22), lower_bound(problem))
    found.run()
    best = search(problem).peak
    assert found.peak == found.lower_bound == best == peak_bytes(graph, found.order)
    # A search that leaves nothing, or ends with an order, is what each step says of its budget.
    for step in found.steps:
        if step.flag == "no solution" and step.complete:
            assert step.budget < best
        if step.flag == "solution":
            assert step.budget >= best


def test_the_bracket_closes_with_few_searches():
    counts = []
    for seed in range(40):
        problem = memory_problem(random_graph(20, 0.15, seed, largest=10**6))
        found = BudgetSearch(problem, range(20), lower_bound(problem))
        found.run()
        assert found.peak == found.lower_bound
        counts.append(len(found.steps))
    assert max(counts) <= 30
    assert sum(counts) / len(counts) < 12


def test_the_bound_rises_where_the_best_is_out_of_reach():
    problem = memory_problem(random_graph(40, 0.1, 1, largest=64))
    start = lower_bound(problem)
    found = BudgetSearch(problem, range(40), start, state_limit=20_000)
    found.run()
    assert start < found.lower_bound < found.peak < problem.peak(range(40))
    assert problem.peak(found.order) == found.peak
    assert all(step.level_limit <= 20_000 for step in found.steps)


def test_an_order_at_the_bound_needs_no_search():
    problem = memory_problem(BRANCHES)
    order = (0, 1, 4, 2, 5, 3, 6, 7, 8)
    found = BudgetSearch(problem, order, 16)
    found.run()
    assert (found.order, found.steps) == (order, [])


def test_beams_only_prove_what_they_saw_all_of():
    problem = memory_problem(random_graph(40, 0.1, 1, largest=64))
    found = BudgetSearch(problem, range(40), lower_bound(problem), state_limit=4000)
    found.run(exact=False)
    assert {step.kind for step in found.steps} == {"beam"}
    assert problem.peak(found.order) == found.peak <= problem.peak(range(40))
    assert found.lower_bound == raised_bound(problem, range(40), lower_bound(problem))


def test_the_work_is_kept():
    problem = memory_problem(random_graph(120, 0.03, 0, largest=64))
    work = Work(0.5 * SECOND)
    found = BudgetSearch(problem, range(120), lower_bound(problem), work=work)
    found.run()
    assert work.limit <= work.spent < 1.5 * work.limit
    assert problem.peak(found.order) == found.peak <= problem.peak(range(120))


def test_of_larger_problems_fewer_states_are_held():
    problem = memory_problem(random_graph(130, 0.04, 0, largest=64))
    found = BudgetSearch(problem, range(130), lower_bound(problem), state_limit=3000, work=Work(5 * SECOND))
    found.run()
    limits = {step.level_limit for step in found.steps if step.kind == "exact"}
    assert limits
    assert max(limits) <= 1000
