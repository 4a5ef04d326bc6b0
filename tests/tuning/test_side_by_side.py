"""Networks in turns: blocks of runs, back and forth, and ratios that what the machine does meanwhile leaves alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tvm_ext.tuning.side_by_side import BLOCK_SECONDS, MOST_RUNS, ROUNDS, Ratio, in_turns


class Machine:
    """A clock that only runs of networks move."""

    def __init__(self) -> None:
        self.now = 0.0
        self.log: list[str] = []

    def network(self, name: str, seconds: float):  # type: ignore[no-untyped-def]
        def run() -> None:
            self.log.append(name)
            self.now += seconds

        return run

    def clock(self) -> float:
        return self.now


def test_turns_are_blocks_back_and_forth() -> None:
    machine = Machine()
    runs = [machine.network("a", BLOCK_SECONDS / 4), machine.network("b", 3 * BLOCK_SECONDS), machine.network("c", 0.0)]
    laps = in_turns(runs, 0.0, machine.clock)
    assert [len(row) for row in laps] == [ROUNDS] * 3
    for row, seconds in zip(laps, (BLOCK_SECONDS / 4, 3 * BLOCK_SECONDS, 0.0), strict=True):
        assert row == pytest.approx([seconds] * ROUNDS)
    # One run that does not count, and four that do; one of the long network; as many as allowed of one without a time.
    turn = {"a": ["a"] * 5, "b": ["b"], "c": ["c"] * (MOST_RUNS + 1)}
    warm = ["a", "a", "b", "b", "c", "c"]
    expected = sum((turn[name] for number in range(ROUNDS) for name in ("abc" if number % 2 else "cba")), warm)
    assert machine.log == expected


def test_what_is_settled_is_not_gone_on_with() -> None:
    machine = Machine()
    seen: list[int] = []

    def settled(laps) -> bool:  # type: ignore[no-untyped-def]
        seen.append(len(laps[0]))
        return len(laps[0]) == ROUNDS + 3

    laps = in_turns([machine.network("a", 1.0)] * 2, 60.0, machine.clock, settled)
    assert len(laps[1]) == ROUNDS + 3
    assert seen == [ROUNDS, ROUNDS + 1, ROUNDS + 2, ROUNDS + 3]


@given(st.integers(1, 60), st.floats(0.3, 3.0), st.integers(0, 1 << 16))
def test_a_ratio_is_that_of_the_networks_whatever_falls_on_both(count: int, ratio: float, seed: int) -> None:
    drift = np.random.default_rng(seed).uniform(0.5, 2.0, count)
    found = Ratio.of(list(drift * ratio), list(drift))
    assert found.median == pytest.approx(ratio)
    assert found.low == pytest.approx(ratio)
    assert found.high == pytest.approx(ratio)


@given(st.lists(st.floats(0.1, 10.0), min_size=1, max_size=60))
def test_the_interval_holds_the_median(laps: list[float]) -> None:
    found = Ratio.of(laps, [1.0] * len(laps))
    assert found.median == pytest.approx(float(np.median(laps)))
    assert min(laps) <= found.low <= found.median <= found.high <= max(laps)


def test_intervals_hold_the_true_median_nearly_always() -> None:
    rng = np.random.default_rng(0)
    held = [
        found.low <= 1.0 <= found.high
        for found in (Ratio.of(list(rng.lognormal(0, 0.3, 41)), [1.0] * 41) for _ in range(400))
    ]
    assert np.mean(held) > 0.97
