from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tvm_ext.bench.plan import FILL_SECONDS, MAXIMUM_RUNS, MINIMUM_RUNS, ROUNDS, plan_turns, turn_order


@given(run_seconds=st.floats(0, 1000, allow_nan=False), repeats=st.integers(10, 2000), budget=st.floats(0.01, 1000))
def test_every_plan_keeps_its_promises(run_seconds: float, repeats: int, budget: float) -> None:
    plan = plan_turns(run_seconds, repeats, budget)
    total = sum(plan.runs)
    assert len(plan.runs) == ROUNDS
    assert max(plan.runs) - min(plan.runs) <= 1
    assert total >= MINIMUM_RUNS
    assert plan.shortened == (total < repeats)
    if plan.shortened:
        assert total == MINIMUM_RUNS or total * run_seconds <= budget
    else:
        assert total <= max(repeats, MAXIMUM_RUNS)


@pytest.mark.parametrize(
    ("run_seconds", "total", "shortened", "warm_runs"),
    [
        (20.0, MINIMUM_RUNS, True, 0),
        (1.5, 10, False, 0),
        (0.01, 50, False, 1),
        (0.1, 10, False, 1),
        (1e-6, MAXIMUM_RUNS, False, 1),
    ],
)
def test_slow_models_get_fewer_runs_and_quick_ones_more(
    run_seconds: float, total: int, shortened: bool, warm_runs: int
) -> None:
    plan = plan_turns(run_seconds, repeats=10, budget=30.0)
    assert (sum(plan.runs), plan.shortened, plan.warm_runs) == (total, shortened, warm_runs)
    if not shortened and total > 10:
        assert total * run_seconds == pytest.approx(min(FILL_SECONDS, MAXIMUM_RUNS * run_seconds), rel=0.05)


def test_few_runs_are_spread_over_the_rounds() -> None:
    assert plan_turns(20.0, 10, 30.0).runs == (0, 0, 0, 1, 0, 0, 1, 0, 0, 1)


@given(st.integers(1, 9), st.integers(0, 50))
def test_each_round_asks_everybody_once(contenders: int, round_number: int) -> None:
    assert sorted(turn_order(contenders, round_number)) == list(range(contenders))


@pytest.mark.parametrize("contenders", [2, 3, 5])
def test_nobody_always_follows_the_same_engine(contenders: int) -> None:
    before = Counter()
    for round_number in range(ROUNDS):
        order = turn_order(contenders, round_number)
        before.update(pair for pair in pairwise(order) if pair[1] == 0)
    assert max(before.values(), default=0) < ROUNDS
