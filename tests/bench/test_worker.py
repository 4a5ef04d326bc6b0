from __future__ import annotations

import gc

import pytest

from tvm_ext.bench.worker import MESSAGE_CHARACTERS, answer, describe, time_runs
from tvm_ext.errors import ModelError


class Clock:
    """Time that passes only when told to, and never by itself."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("tvm_ext.bench.worker.time.perf_counter_ns", clock)
    return clock


def test_each_run_is_timed_on_its_own(clock: Clock) -> None:
    durations = iter([7_000_000, 1_000_000, 2_000_000, 3_000_000])

    def run() -> None:
        clock.now += next(durations)

    assert time_runs(run, warm_runs=1, warm_seconds=0.0, runs=3) == [0.001, 0.002, 0.003]


@pytest.mark.parametrize(("warm_runs", "warm_seconds", "expected"), [(0, 9.0, 0), (2, 0.0, 2), (1, 0.010, 10)])
def test_warm_up_lasts_for_its_runs_and_its_time(
    clock: Clock, warm_runs: int, warm_seconds: float, expected: int
) -> None:
    calls = 0

    def run() -> None:
        nonlocal calls
        calls += 1
        clock.now += 1_000_000

    time_runs(run, warm_runs, warm_seconds, runs=5)
    assert calls == expected + 5


def test_garbage_collector_rests_while_timing_and_is_back_after_an_error() -> None:
    states = []

    def run() -> None:
        states.append(gc.isenabled())
        raise RuntimeError

    with pytest.raises(RuntimeError):
        time_runs(run, 0, 0.0, 1)
    assert states == [False]
    assert gc.isenabled()


def test_errors_are_one_line() -> None:
    assert describe(ModelError("x.onnx is damaged")) == "x.onnx is damaged"
    assert describe(ValueError("\n  first \nsecond")) == "ValueError: first"
    assert describe(ValueError()) == "ValueError: no message"
    assert len(describe(ValueError("x" * 1000))) == MESSAGE_CHARACTERS


def test_requests_out_of_order_or_unknown_are_refused() -> None:
    with pytest.raises(RuntimeError, match="before 'prepare'"):
        answer(None, None, {"do": "first"})
    with pytest.raises(ValueError, match="unknown request 'dance'"):
        answer(None, object(), {"do": "dance"})  # type: ignore[arg-type]
