"""Every transformation keeps the meaning of every operator; none comes back to a program that was there."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from scripts.embedding_top_down import OPERATORS, attention, conv2d, gemm, read
from tests.embedding.top_down.interpreter import arrays_of, run
from tvm_ext.embedding.top_down.graph import Compute, Constant, Graph, Index, Input, Reduce, Statement, program
from tvm_ext.embedding.top_down.search import all_fusions, full_fission, layouts
from tvm_ext.embedding.top_down.transformations import (
    canonical,
    compute_fissions,
    fission_reduction,
    fusions,
    inlinings,
    reduction_fissions,
    swap_operands,
    transpose_input,
    transpose_output,
)


def same(before: Graph, after: Graph, note: object = "") -> None:
    arrays = arrays_of(before)
    np.testing.assert_allclose(run(after, arrays), run(before, arrays), rtol=1e-12, err_msg=str(note))


@pytest.mark.parametrize("name", OPERATORS)
def test_meaning_is_kept_on_the_way_to_the_finest_and_back(name: str) -> None:
    operator = OPERATORS[name]()
    split = full_fission(canonical(operator)[0])
    assert len(split) == len(set(split)), "fission is monotonic"
    for graph in split:
        same(operator, graph)
    for statement in split[-1].statements:  # each operation has its own nest
        operands = statement.value.operands if isinstance(statement.value, Compute) else [statement.value.body]
        assert all(isinstance(operand, Input | Constant) for operand in operands)
    fused = list(all_fusions(split[-1], limit=3000))
    for number in np.random.default_rng(0).choice(len(fused), min(len(fused), 40), replace=False):
        same(operator, fused[number], fused[number])


def test_steps_are_there_for_each_option() -> None:
    (whole,) = [attention()]
    assert len(list(reduction_fissions(whole))) == 1
    assert len(list(compute_fissions(whole))) == 0
    finest = full_fission(whole)[-1]
    assert [len(it.loops) for it in finest.statements] == [3, 2, 2]
    assert [graph.shared for graph in fusions(finest)] == [(1, 0), (0, 1)]
    assert [len(graph.statements) for graph in inlinings(finest)] == [2]


def test_any_reduction_of_a_nest_may_be_taken_out() -> None:
    for depth in range(3):
        graph = fission_reduction(conv2d(), 0, depth)
        assert graph.statements[0].loops[-1] == (2, 2, 4)[depth]
        same(conv2d(), graph)
    with pytest.raises(ValueError, match="no reduction at depth 3"):
        fission_reduction(conv2d(), 0, 3)
    mixed = program(Statement((2,), Reduce("max", 2, Reduce("add", 3, read("a", 0, 1, 2)))))
    with pytest.raises(ValueError, match="depth 1"):  # the greatest sum is not the sum of the greatest
        fission_reduction(mixed, 0, 1)
    same(mixed, fission_reduction(mixed, 0, 0))


def test_loops_are_not_fused_where_a_value_is_read_before_it_is_there() -> None:
    first = Statement((3, 3), Compute("exp", (read("a", 0, 1),)))
    straight = program(first, Statement((3, 3), Compute("exp", (read(0, 0, 1),))))
    turned = program(first, Statement((3, 3), Compute("exp", (read(0, 1, 0),))))
    ahead = program(first, Statement((3, 3), Compute("exp", (Input(0, (Index(((0, -1),), 2), Index(((1, 1),)))),))))
    assert [graph.shared for graph in fusions(straight)] == [(1,)]
    assert list(fusions(turned)) == list(fusions(ahead)) == []
    # What is fused by force reads NaN: the oracle sees it.
    arrays = arrays_of(turned)
    assert np.isnan(run(Graph(turned.statements, (1,)), arrays)).any()
    # A third statement in the loop counts as well, one behind it does not.
    third = program(*straight.statements, Statement((3, 3), Compute("add", (read(0, 1, 0), read(1, 0, 1)))))
    assert [graph.shared for graph in fusions(third)] == [(1, 0), (0, 1)]
    for joined in fusions(third):
        same(third, joined)
        assert not list(fusions(joined))


def test_extents_that_differ_and_the_last_own_loop_are_not_fused() -> None:
    first = Statement((3, 2), Compute("exp", (read("a", 0, 1),)))
    assert not list(fusions(program(first, Statement((2, 2), Compute("exp", (read(0, 0, 1),))))))
    assert not list(fusions(program(first, Statement((3,), Reduce("add", 2, read(0, 0, 1))))))


def test_inlining_replaces_every_reader() -> None:
    graph = program(
        Statement((3,), Compute("exp", (read("a", 0),))),
        Statement((3,), Compute("add", (read(0, 0), Constant(1)))),
        Statement((3,), Compute("div", (read(0, 0), read(1, 0)))),
    )
    found = list(inlinings(graph))
    assert [len(it.statements) for it in found] == [2, 2]
    for it in found:
        same(graph, it)
    assert not any(isinstance(it.value, Reduce) for it in next(inlinings(full_fission(gemm())[-1])).statements[:-1])


def test_layouts_of_inputs_and_results() -> None:
    operator = conv2d()
    arrays = arrays_of(operator)
    expected = run(operator, arrays)
    assert len(set(layouts(operator))) == 24
    for graph, order in zip(layouts(operator), permutations(range(4)), strict=True):
        turned = {name: array.transpose(order) for name, array in arrays.items()}
        np.testing.assert_allclose(run(graph, turned), expected.transpose(order), rtol=1e-12)
    assert transpose_input(transpose_input(operator, "x", (1, 2, 3, 0)), "x", (3, 0, 1, 2)) == operator
    fused = Graph(full_fission(attention())[-1].statements, (1, 0))
    with pytest.raises(ValueError, match="transpose before fusion"):
        transpose_output(fused, 1, (1, 0))


def test_operands_in_the_order_of_table_3_2() -> None:
    scalar, vector, inner = Constant(2), read("a", 0), read(0, 0)

    def ordered(*operands: object) -> tuple:
        found, swaps = canonical(program(Statement((3,), Compute("mul", operands))))
        return (*found.statements[0].value.operands, swaps)

    assert ordered(scalar, vector) == (vector, scalar, 1)
    assert ordered(vector, inner) == (inner, vector, 1)
    assert ordered(inner, scalar) == (inner, scalar, 0)
    assert ordered(vector, read("b", 0)) == (vector, read("b", 0), 0)
    division = Compute("div", (scalar, vector))
    assert canonical(program(Statement((3,), division)))[0].statements[0].value == division
    with pytest.raises(ValueError, match="does not commute"):
        swap_operands(division)
