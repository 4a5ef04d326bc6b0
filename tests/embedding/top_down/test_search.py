"""Numbers of candidates and solutions, and what the solutions compute when instructions compute it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice, product

import numpy as np
import pytest

from scripts.embedding_top_down import OPERATORS, automaton, instructions, search
from tests.embedding.top_down.interpreter import Instructions, arrays_of, run
from tvm_ext.embedding.top_down.automaton import Match
from tvm_ext.embedding.top_down.graph import Graph
from tvm_ext.embedding.top_down.masks import Mask, masks
from tvm_ext.embedding.top_down.search import count, programs, solutions
from tvm_ext.embedding.top_down.selection import algebraic_coverage, select
from tvm_ext.embedding.top_down.tree import tree

TABLE_3_1 = automaton()
SMALL = ("FC + bias", "GEMM", "attention")


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("fission", [False, True])
def test_counting_by_statements_is_listing_one_by_one(name: str, fission: bool) -> None:
    found = programs(OPERATORS[name](), fission=fission)
    counted = count(found, TABLE_3_1)
    candidates = sum(np.prod([len(list(masks(it))) for it in graph.statements]) for graph in found)
    assert counted.candidates == candidates
    assert counted.solutions == sum(len(list(solutions(graph, TABLE_3_1))) for graph in found)


def test_counting_is_listing_where_loops_of_many_statements_are_fused() -> None:
    found = programs(OPERATORS["Conv2D"]())
    for graph in list(found)[::23]:
        assert count({graph: 0}, TABLE_3_1).solutions == len(list(solutions(graph, TABLE_3_1)))


@pytest.mark.parametrize("name", SMALL)
def test_instructions_of_all_solutions_compute_the_operator(name: str) -> None:
    operator = OPERATORS[name]()
    found = [(graph, *it) for graph in programs(operator) for it in solutions(graph, TABLE_3_1)]
    assert len(found) == search(name)["solutions"]
    for graph, chosen, selected in found:
        check(operator, graph, chosen, selected)


@pytest.mark.parametrize("name", [name for name in OPERATORS if name not in SMALL])
def test_instructions_of_some_solutions_compute_the_operator(name: str) -> None:
    operator, found = OPERATORS[name](), 0
    for graph in list(programs(operator, limit=400))[::9]:
        fitting = [
            [mask for mask in masks(it) if TABLE_3_1.match(tree(Graph((it,), ()), [mask]))] for it in graph.statements
        ]
        for chosen in islice(product(*fitting), 2):
            root = tree(graph, chosen)
            selected = select(TABLE_3_1.match(root))
            assert algebraic_coverage(root, selected) == 1
            check(operator, graph, chosen, selected)
            found += 1
    assert found


def check(operator: Graph, graph: Graph, chosen: Sequence[Mask], selected: Sequence[Match]) -> None:
    arrays = arrays_of(operator)
    machine = Instructions(graph, chosen, selected, instructions())
    np.testing.assert_allclose(run(graph, arrays, machine), run(operator, arrays), rtol=1e-12)


def test_findings_of_section_3_4() -> None:
    rows = {name: search(name) for name in OPERATORS if name != "capsule routing"}
    assert [name for name, row in rows.items() if row["config 1"][1]] == ["GEMM", "attention"]
    for name, row in rows.items():
        assert row["solutions"] > 0
        assert row["config 4"][0] >= row["config 2"][0] > row["config 1"][0]
        assert (row["config 3"][1] > 0) == (row["config 1"][1] > 0), "fusion alone solves nothing more"
        if "Conv2D" in name:
            assert row["config 2"][1] > 0
    assert (rows["GEMM"]["candidates"], rows["GEMM"]["solutions"]) == (35, 4)  # as printed
    assert rows["FC + bias"]["candidates"] == 24  # as printed
    assert rows["Conv2D"]["layout_candidates"] > 20 * rows["Conv2D"]["candidates"]
    hits = [row["solutions"] / row["candidates"] for row in rows.values()]
    assert hits[-1] < hits[-2] < hits[2], "the larger the space, the fewer of it are solutions"


def test_programs_end_at_a_limit() -> None:
    assert len(programs(OPERATORS["capsule routing"](), limit=100)) == 100
