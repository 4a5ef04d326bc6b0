from __future__ import annotations

import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tvm
from hypothesis import given
from hypothesis import strategies as st

from tvm_ext.tuners.measure.worker import FLUSH, MOST_COLD_RUNS, Timing

SECONDS = st.floats(1e-6, 1.0)


@given(st.lists(SECONDS, min_size=5, max_size=5), st.lists(SECONDS, min_size=2, max_size=2), st.none() | SECONDS)
def test_figures_are_taken_while_there_is_hope(ahead: list[float], first: list[float], best: float | None) -> None:
    timing = Timing(repeats=5)
    waiting = iter(ahead)
    taken = timing.figures(lambda: next(waiting), first, best)
    if best is not None and min(first) > 3.0 * best:
        assert taken == first
        assert list(waiting) == ahead
        return
    assert taken == ahead[: len(taken)]
    hope = [best is None or min(ahead[:count]) <= 1.25 * best for count in range(1, 6)]
    assert len(taken) == (hope.index(False) + 1 if False in hope else 5)
    if best is not None and min(taken) <= 1.25 * best:
        assert len(taken) == 5, "whatever may be the best is measured in full"


@pytest.mark.parametrize(("first", "number"), [([0.02, 0.01], 2), ([1.0, 2.0], 1), ([0.0, 1.0], 200000)])
def test_figures_last_long_enough(first: Sequence[float], number: int) -> None:
    assert Timing(seconds=0.02).number(first) == number


class _Module:
    """Notes how it is timed."""

    def __init__(self) -> None:
        self.asked: tuple[Any, ...] = ()

    def time_evaluator(self, name: str, device: Any, number: int, repeat: int, f_preproc: str = "") -> Any:
        self.asked = (name, number, repeat, f_preproc)
        return lambda *tensors: SimpleNamespace(results=[3.0, 1.0, 2.0][:repeat])


@pytest.mark.parametrize(
    ("device", "timing", "asked", "figure"),
    [
        (tvm.cpu(), Timing(), ("main", 1, 20, FLUSH), 2.0),
        (tvm.runtime.device(tvm.cpu().dlpack_device_type() + 128, 0), Timing(), ("main", 1, 20, FLUSH), 2.0),
        (tvm.cpu(), Timing(seconds=10.0), ("main", 1, MOST_COLD_RUNS, FLUSH), 2.0),
        (tvm.cpu(), Timing(flush=False), ("main", 20, 1, ""), 3.0),
        (tvm.cuda(), Timing(), ("main", 20, 1, ""), 3.0),
    ],
)
def test_weights_of_kernels_on_a_cpu_come_from_memory(
    device: Any, timing: Timing, asked: tuple[Any, ...], figure: float
) -> None:
    module = _Module()
    assert timing.stopwatch(module, device, [], [0.001])() == figure
    assert module.asked == asked


def _sleeps_and_works(*tensors: Any) -> None:
    """Take 20 ms of the clock and 5 of the processor."""
    time.sleep(0.015)
    end = time.thread_time() + 0.005
    while time.thread_time() < end:
        pass


@pytest.mark.parametrize("flush", [True, False])
def test_by_the_processor_waiting_does_not_count(flush: bool) -> None:
    timing = Timing(flush=flush, by_processor=True)
    array = tvm.runtime.tensor(np.zeros(4, "float32"))
    figure = timing.stopwatch({"main": _sleeps_and_works}, tvm.cpu(), [array, array], [0.005])()
    assert 0.005 <= figure < 0.012
    assert timing.clock(tvm.cpu()) is time.thread_time
    # What runs elsewhere takes none of this thread's time.
    for elsewhere in (tvm.cuda(), tvm.runtime.device(tvm.cpu().dlpack_device_type() + 128, 0)):
        assert timing.clock(elsewhere) is time.perf_counter
