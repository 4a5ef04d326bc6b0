"""Threads that are bound to cores are released where others want the cores, and bound again when they do not."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.processes import output_of
from tvm_ext.system import bound_pool, threads
from tvm_ext.system.bound_pool import BETWEEN_SAMPLES, FIRST_TRIAL, LAST_TRIAL, ONE_EACH, SHARED, BoundPool

DECISION = 5 * BETWEEN_SAMPLES
"""Seconds in which the runs of these tests decide: three of 11 ms are enough."""


class Machine:
    """Two cores and a clock; a run takes 11 ms, in which the only other thread waits as long as ``delay`` says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.waited, self.delay = 1000.0, 0.0, 0.0
        self.modes: list[int] = []
        listed = iter([{1}, {1, 2}])
        monkeypatch.setattr(bound_pool, "current_processor", lambda: 0)
        monkeypatch.setattr(bound_pool, "configure", lambda mode, *_: self.modes.append(mode))
        monkeypatch.setattr(bound_pool, "_native_threads", lambda: next(listed))
        monkeypatch.setattr(bound_pool, "_seconds_waited", self.seconds_waited)
        monkeypatch.setattr(bound_pool.time, "monotonic", lambda: self.now)

    def seconds_waited(self, thread: int) -> float:
        assert thread == 2
        return self.waited

    def run(self) -> None:
        self.now += 0.011
        self.waited += self.delay

    def pass_seconds(self, seconds: float, call: Callable[[], None]) -> None:
        """Run without pauses for a time."""
        end = self.now + seconds
        while self.now < end:
            call()


def test_threads_that_wait_for_their_cores_are_released_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    pool = BoundPool([0, 1])
    machine.pass_seconds(5, lambda: pool.call(machine.run))
    assert machine.modes == [ONE_EACH]  # nobody waits
    machine.delay = 0.005
    machine.pass_seconds(DECISION, lambda: pool.call(machine.run))
    assert machine.modes == [ONE_EACH, SHARED]
    machine.pass_seconds(0.9 * FIRST_TRIAL - DECISION, lambda: pool.call(machine.run))
    assert machine.modes == [ONE_EACH, SHARED]
    machine.pass_seconds(0.2 * FIRST_TRIAL + DECISION, lambda: pool.call(machine.run))
    assert machine.modes == [ONE_EACH, SHARED] * 2
    # Each trial that fails doubles the time until the next.
    machine.pass_seconds(1000, lambda: pool.call(machine.run))
    trials = machine.modes.count(ONE_EACH) - 2
    assert 1000 / LAST_TRIAL <= trials <= 1000 / LAST_TRIAL + 6
    machine.delay = 0.0
    machine.pass_seconds(1.1 * LAST_TRIAL, lambda: pool.call(machine.run))
    assert machine.modes[-1] == ONE_EACH
    # After one that went well for as long, the next comes soon again.
    machine.pass_seconds(2 * LAST_TRIAL, lambda: pool.call(machine.run))
    machine.delay = 0.005
    machine.pass_seconds(FIRST_TRIAL + 2 * DECISION, lambda: pool.call(machine.run))
    assert machine.modes[-3:] == [ONE_EACH, SHARED, ONE_EACH] or machine.modes[-4:] == [ONE_EACH, SHARED] * 2


def test_what_counts_is_the_time_of_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs with long pauses between them: a thread that waits for half of a run waits for little of the time."""
    machine = Machine(monkeypatch)
    pool = BoundPool([0, 1])
    machine.delay = 0.005
    for _ in range(3):
        machine.now += 10
        pool.call(machine.run)
    assert machine.modes == [ONE_EACH, SHARED]


def test_a_run_that_fails_is_looked_at_too(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    pool = BoundPool([0, 1])
    machine.now += 1

    def fail() -> None:
        machine.now += 1
        machine.waited += 1
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        pool.call(fail)
    assert machine.modes == [ONE_EACH, SHARED]


def test_calling_thread_is_moved_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    pool = BoundPool([0, 1])
    allowed, moves = {0, 1, 2}, []
    monkeypatch.setattr(bound_pool, "current_processor", lambda: 2)
    monkeypatch.setattr(bound_pool.os, "sched_getaffinity", lambda thread: allowed)
    monkeypatch.setattr(bound_pool.os, "sched_setaffinity", lambda thread, cores: moves.append(cores))
    for part in (0, 0.5, 1):
        pool.leave_bound_cores(machine.now + part * bound_pool.BETWEEN_MOVES)
    assert moves == [{0}, allowed, {0}, allowed]


@pytest.mark.skipif(threads.physical_cores() < 2, reason="one core")
@pytest.mark.slow
def test_a_program_on_one_core_does_not_hold_up_every_kernel() -> None:
    """Bound threads wait for a time slice of it at each kernel: MobileNetV2 takes twenty times as long."""
    source = """
    import time
    import numpy as np
    import tvm_ext
    from tests.modules import convolutions
    from tvm_ext.inputs import random_inputs
    from tvm_ext.system import threads

    model = tvm_ext.compile(convolutions(20))
    given = random_inputs(model.inputs)

    def median():
        times = []
        for _ in range(30):
            started = time.perf_counter()
            model.run(given)
            times.append(time.perf_counter() - started)
        return np.median(times)

    median()
    released = median()
    pool = threads._pool.bound
    assert not pool._is_bound
    pool._bind(time.monotonic())
    pool._next_sample = float('inf')
    print(released < median())
    """
    core = threads._one_of_each_core()[1]
    program = f"import os\nos.sched_setaffinity(0, {{{core}}})\nwhile True: pass"
    busy = subprocess.Popen([sys.executable, "-c", program])
    try:
        assert output_of(source) == "True"
    finally:
        busy.kill()
        busy.wait()
