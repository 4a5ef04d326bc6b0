"""Strips of rows on plain data: every row of what it needs, the peak by another count, random chains with branches."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tvm_ext.errors import GraphError
from tvm_ext.memory.patches import (
    RowNode,
    RowReach,
    cuts_of,
    more_kernels,
    plan_patches,
    plans,
    profile,
    ranges_of,
    verify_patches,
)

Chain = tuple[list[RowNode], dict[str, int]]


@st.composite
def chains(draw: st.DrawFn) -> Chain:
    """Operators in a row, some of which read an earlier result of as many rows as well."""
    rows = draw(st.integers(8, 40))
    inputs = {"x": rows}
    nodes: list[RowNode] = []
    extents = {"x": rows}
    for number in range(draw(st.integers(2, 9))):
        source = nodes[-1].name if nodes else "x"
        taps = draw(st.integers(1, 5))
        before = draw(st.integers(0, taps - 1))
        stride = draw(st.sampled_from([1, 1, 1, 2]))
        have = extents[source]
        count = (have + 2 * before - taps) // stride + 1
        reads: list[tuple[str, RowReach | None]] = [(source, RowReach(taps, stride, before))]
        if count < 2:
            count, reads = have, [(source, RowReach())]
        same = [name for name, extent in extents.items() if extent == count and name != source]
        if same and draw(st.booleans()):
            reads.append((draw(st.sampled_from(same)), RowReach()))
        name = f"n{number}"
        nodes.append(RowNode(name, tuple(reads), count, draw(st.integers(1, 9)) * 4, float(taps), draw(st.booleans())))
        extents[name] = count
    return nodes, inputs


@given(chains())
def test_plans_compute_what_they_need(chain: Chain) -> None:
    nodes, inputs = chain
    extents = inputs | {node.name: node.rows for node in nodes}
    whole = max(profile(nodes))
    for plan in plans(nodes, inputs, {"x": 4}):
        verify_patches(plan, nodes, extents)
    for plan in plan_patches(nodes, inputs, {"x": 4}, 1.2):
        assert plan.work <= 1.2
        assert plan.peak < whole


@given(chains(), st.data())
def test_ranges_by_walking_over_rows(chain: Chain, data: st.DataObject) -> None:
    """Ranges hold what a walk from each row back finds, and little more: they are the hull of it."""
    nodes, inputs = chain
    extents = inputs | {node.name: node.rows for node in nodes}
    last = nodes[-1].rows
    first = data.draw(st.integers(0, last - 1))
    end = data.draw(st.integers(first + 1, last))
    ranges = ranges_of(nodes, extents, first, end)
    walked = {nodes[-1].name: set(range(first, end))}
    for node in reversed(nodes):
        for row in walked.get(node.name, ()):
            for name, reach in node.reads:
                assert reach is not None
                top = row * reach.stride - reach.before
                rows = {place for place in range(top, top + reach.reach) if 0 <= place < extents[name]}
                walked.setdefault(name, set()).update(rows)
    for name, rows in walked.items():
        assert rows <= set(range(*ranges[name]))


def two_convolutions() -> list[RowNode]:
    return [
        RowNode("a", (("x", RowReach(3, 1, 1)),), 32, 100, 10.0),
        RowNode("b", (("a", RowReach(3, 1, 1)),), 32, 100, 10.0),
        RowNode("c", (("b", RowReach(2, 2, 0)),), 16, 25, 1.0),
        RowNode("d", (("c", None),), 1, 4),
    ]


def test_two_large_tensors_are_never_there() -> None:
    """By hand: whole, 6,400 bytes; in 4 strips, of 8 rows and their halo, less than half of that."""
    nodes = two_convolutions()
    assert max(profile(nodes)) == 6400
    best = plan_patches(nodes, {"x": 32}, {"x": 12}, 1.3)[0]
    assert best.peak < 3200
    assert (best.first, best.last, best.source) == (0, 2, "x")
    assert cuts_of(nodes, ["x"]) == {-1: "x", 0: "a", 1: "b", 2: "c"}


def test_enough_is_enough() -> None:
    """Below the limit the plan with the least arithmetic is the best one."""
    nodes = two_convolutions()
    least, enough = (plan_patches(nodes, {"x": 32}, {"x": 12}, 2.0, limit)[0] for limit in (0, 4500))
    assert enough.peak <= 4500
    assert enough.work < least.work


def test_nothing_to_gain() -> None:
    """Where rows are not told apart, or a second tensor is alive all along, nothing is cut."""
    nodes = two_convolutions()
    apart = [nodes[0], replace(nodes[1], reads=(("a", None),)), *nodes[2:]]
    assert not [plan for plan in plans(apart, {"x": 32}, {"x": 12}) if plan.first <= 1 <= plan.last]
    assert plan_patches([], {}, {}, 1.1) == []


@pytest.mark.parametrize(("padding", "is_cut"), [(0, True), (1, False), (9, False)])
def test_windows_in_the_padding_alone_are_not_cut(padding: int, is_cut: bool) -> None:
    """A row of such a window depends on no row at all: a strip would have none to begin with."""
    nodes = two_convolutions()
    nodes[1] = RowNode("b", (("a", RowReach(1, 1, padding)),), 32 + 2 * padding, 100, 10.0)
    nodes[2] = replace(nodes[2], rows=16 + padding)
    found = [plan for plan in plans(nodes, {"x": 32}, {"x": 4}) if plan.first <= 1 <= plan.last]
    assert bool(found) is is_cut


def test_wrong_plans_are_refused() -> None:
    nodes = two_convolutions()
    extents = {"x": 32} | {node.name: node.rows for node in nodes}
    plan = plan_patches(nodes, {"x": 32}, {"x": 12}, 1.3)[0]
    first, end = plan.strips[1]["a"]
    short = [dict(strip) for strip in plan.strips]
    short[1]["a"] = first + 1, end
    with pytest.raises(GraphError, match="needs row"):
        verify_patches(replace(plan, strips=tuple(short)), nodes, extents)
    with pytest.raises(GraphError, match="each of them once"):
        verify_patches(replace(plan, strips=plan.strips[1:]), nodes, extents)


@pytest.mark.parametrize(("strips", "more"), [(2, 3), (4, 5), (8, 5)])
def test_kernels_that_strips_add(strips: int, more: int) -> None:
    """The first strip has padding above and the last one below, those between are alike; the pool has two kinds."""
    nodes = [replace(node, is_kernel=node.name != "d") for node in two_convolutions()]
    (plan,) = [
        plan
        for plan in plans(nodes, {"x": 32}, {"x": 4})
        if (len(plan.strips), plan.first, plan.last) == (strips, 0, 2)
    ]
    assert more_kernels(plan, nodes) == more
    assert more_kernels(plan, two_convolutions()) == 0  # what is merged into other kernels is none


@given(chains())
def test_no_more_kernels_than_strips(chain: Chain) -> None:
    nodes, inputs = chain
    kernels = [replace(node, is_kernel=True) for node in nodes]
    for plan in plans(kernels, inputs, {"x": 4}):
        most = (len(plan.strips) - 1) * (plan.last - plan.first + 1)
        assert 0 <= more_kernels(plan, kernels) <= most
