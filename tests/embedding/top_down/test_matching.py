"""Patterns in trees: what matches, what must not, and which of several matches are taken."""

from __future__ import annotations

from itertools import product

import pytest

from scripts.embedding_top_down import attention, automaton, conv2d, gemm, instructions, read
from tvm_ext.embedding.top_down.automaton import Automaton, Match
from tvm_ext.embedding.top_down.graph import Compute, Graph, Index, Input, Reduce, Statement, inputs, program
from tvm_ext.embedding.top_down.search import full_fission, solutions
from tvm_ext.embedding.top_down.selection import algebraic_coverage, coverage, select
from tvm_ext.embedding.top_down.tree import Node, node_count, read_interval, tree

TABLE_3_1 = automaton()


def names(graph: Graph, *masks: tuple[int, ...]) -> set[str]:
    return {match.pattern for match in TABLE_3_1.match(tree(graph, masks))}


def test_gemm_is_products_of_a_matrix_with_a_vector_without_fission() -> None:
    assert node_count(gemm()) == 11  # as Table 3.3 counts
    assert names(gemm(), (1, 2)) == {"matrix-vector mul add, operands swapped"}
    assert names(gemm(), (1, 1)) == {"dot mul add"}
    for mask in ((2, 2), (2, 1), (0, 0)):
        assert not names(gemm(), mask)
    found = [{match.pattern for match in selected} for _, selected in solutions(attention(), TABLE_3_1)]
    assert {"matrix-vector mul add, operands swapped", "vector-scalar mul"} in found


def test_every_instruction_matches_itself_and_no_other() -> None:
    for name, graph in instructions().items():
        masks = tuple(len(it.index) for it in _inputs(graph))
        # Where it takes a vector, a scalar result is a loop around that is not used.
        assert names(graph, masks) == {name}, name


def _inputs(graph: Graph) -> list[Input]:
    return list(inputs(graph.statements[0].value))


def test_an_instruction_that_would_cut_off_computations_does_not_match() -> None:
    """Figure 3.5: the path is there, but the loop has another statement in it."""
    first = Statement((3, 4), Compute("exp", (read("a", 0, 1),)))
    second = Statement((3, 4), Compute("exp", (read(0, 0, 1),)))
    pattern = Automaton({"rows": tree(program(Statement((3, 4), Compute("exp", (read("a", 0, 1),)))))})
    apart = pattern.match(tree(program(first, second), [(2,), (2,)]))
    assert [(match.pattern, match.node.statement) for match in apart] == [("rows", 1), ("rows", 0)]
    assert not pattern.match(tree(Graph((first, second), (1,)), [(2,), (2,)]))


def test_a_part_of_a_statement_does_not_match() -> None:
    graph = program(Statement((3,), Compute("add", (Reduce("add", 4, read("a", 0, 1)), read("b", 0)))))
    assert not any(names(graph, mask) for mask in product(range(3), range(2)))


def test_the_iterator_that_an_index_is_counts() -> None:
    turned = program(Statement((2, 3), Reduce("add", 4, Compute("mul", (read("a", 0, 2), read("b", 2, 1))))))
    assert not any(names(turned, mask) for mask in product(range(3), range(3)))
    strided = program(Statement((3,), Compute("exp", (_at("a", Index(((0, 2),))),))))
    shifted = program(Statement((3,), Compute("exp", (_at("a", Index(((0, 1),), 1)),))))
    assert not names(strided, (1,))
    assert not names(shifted, (1,))


def _at(tensor: str, index: Index) -> Input:
    return Input(tensor, (index,))


def test_reads_of_a_window_are_bounded() -> None:
    """Figure 3.3: a sliding window of three around 5."""
    index = Index(((0, 1), (1, 1)))
    assert read_interval(index, [(0, 9), (-1, 1)], [5]) == (4, 6)
    assert read_interval(index, [(0, 9), (-1, 1)], []) == (-1, 10)
    assert read_interval(Index(((0, -2),), 3), [(0, 4)], []) == (-5, 3)


def test_size_of_a_tree_does_not_depend_on_extents() -> None:
    assert node_count(conv2d(n=8, h=224, w=224, o=512, kernel=7, i=512)) == node_count(conv2d()) == 25


def brute_force(nodes: list[Node], matches: list[Match]) -> int:
    """Nodes that the best set of matches covers, from all sets."""
    best = 0
    for chosen in product((False, True), repeat=len(matches)):
        covered: list[int] = []
        for match in (it for it, taken in zip(matches, chosen, strict=True) if taken):
            covered += range(match.place, match.place + sum(1 for _ in match.node.walk()))
        if len(covered) == len(set(covered)):
            best = max(best, len(covered))
    return best


@pytest.mark.parametrize("extra", [False, True])
def test_selection_covers_as_much_as_any(extra: bool) -> None:
    graph = full_fission(attention())[-1]
    patterns = {name: tree(it) for name, it in instructions().items()}
    if extra:  # matches that lie in one another
        patterns["all of a row"] = tree(program(Statement((2, 3), Compute("mul", (read("a", 0, 1), read("s"))))))
    machine = Automaton(patterns)
    for masks in product([(1, 1), (0, 0)], [(1,), (2,)], [(1, 0), (2, 0)]):
        root = tree(graph, masks)
        matches = machine.match(root)
        selected = select(matches)
        size = sum(sum(1 for _ in match.node.walk()) for match in selected)
        assert size == brute_force(list(root.walk_all()), matches)
        assert coverage(root, selected) == size / sum(1 for _ in root.walk_all())
        assert (algebraic_coverage(root, selected) == 1) == (masks[0] == (1, 1) and masks[1] == (1,) and
                                                             (masks[2] == (1, 0) or extra))  # fmt: skip
