from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from tvm_ext.bench.busyness import BusynessMeter, machine_seconds, processor_seconds


@pytest.fixture
def spinning() -> Iterator[int]:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        time.sleep(0.2)
        yield process.pid
        process.kill()


def test_processor_time_of_a_spinning_process_grows(spinning: int) -> None:
    before, start = processor_seconds(spinning), time.monotonic()
    used = 0.0
    while used < 0.1:  # soon, if the machine has nothing else to do
        assert time.monotonic() - start < 30
        time.sleep(0.1)
        used = processor_seconds(spinning) - before
    assert used <= time.monotonic() - start + 0.05


def test_a_process_that_is_gone_has_used_nothing() -> None:
    assert processor_seconds(2**22 + 1) == 0.0


def test_others_are_told_from_ours(spinning: int) -> None:
    if machine_seconds() is None:
        pytest.skip("/proc/stat is not readable here")
    theirs, ours = BusynessMeter([]), BusynessMeter([spinning])
    time.sleep(1.0)
    with_it, without_it = theirs.other_cores(), ours.other_cores()
    assert with_it is not None
    assert without_it is not None
    assert with_it - without_it > 0.2  # the spinning process has a core, or its share of one


def test_unknown_where_proc_stat_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tvm_ext.bench.busyness.machine_seconds", lambda: None)
    assert BusynessMeter([]).other_cores() is None
