"""Which kernels go into their readers, on plain data; brute force over small graphs, and plans that must be refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tvm_ext.errors import GraphError
from tvm_ext.fusion.prologue_plan import Prologue, Step, plan_prologues, verify_prologues


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[Step], dict[tuple[int, int], tuple[float, float] | None]]:
    steps = []
    prices: dict[tuple[int, int], tuple[float, float] | None] = {}
    for number in range(draw(st.integers(1, 7))):
        reads = draw(st.sets(st.integers(0, number - 1), max_size=3)) if number else set()
        steps.append(Step(f"s{number}", tuple(sorted(reads)), draw(st.booleans())))
        for source in reads:
            alone = float(source + 1)
            price = draw(st.none() | st.floats(-1, 2))
            prices[source, number] = None if price is None else (price, alone)
    return steps, prices


@given(graphs())
def test_plans_are_right(case: tuple[list[Step], dict[tuple[int, int], tuple[float, float] | None]]) -> None:
    steps, prices = case
    plan = plan_prologues(steps, lambda step, reader: prices[step, reader])
    verify_prologues(plan, steps)
    for prologue in plan:
        assert prologue.seconds > 0
        assert not steps[prologue.step].escapes
        assert set(prologue.readers) == {n for n, step in enumerate(steps) if prologue.step in step.reads}


def test_takes_what_saves_most() -> None:
    steps = [Step("a", ()), Step("b", (0,)), Step("c", (0, 1))]
    plan = plan_prologues(steps, lambda step, reader: (0.0, 3.0 if step == 0 else 1.0))
    assert [(item.step, item.readers) for item in plan] == [(0, (1, 2))]


def test_refuses_what_others_read() -> None:
    steps = [Step("a", ()), Step("b", (0,)), Step("c", (0,))]
    with pytest.raises(GraphError, match="'c' reads 'a', whose result is not stored"):
        verify_prologues([Prologue(0, (1,), 1.0)], steps)


def test_refuses_a_result_of_the_function() -> None:
    with pytest.raises(GraphError, match="'a' is read outside of kernels"):
        verify_prologues([Prologue(0, (1,), 1.0)], [Step("a", (), True), Step("b", (0,))])


def test_refuses_two_in_one() -> None:
    steps = [Step("a", ()), Step("b", ()), Step("c", (0, 1))]
    with pytest.raises(GraphError, match="'c' would hold 2 others"):
        verify_prologues([Prologue(0, (2,), 1.0), Prologue(1, (2,), 1.0)], steps)
