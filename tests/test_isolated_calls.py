"""Calls in worker processes: what each way of not returning is reported as."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

from scripts.trust.isolated import run_isolated
from tests.processes import output_of

SECONDS = 0.6
MEMORY = 1 << 28


def call(what: str) -> str:
    """Behave well or badly; runs in a worker."""
    if what == "compute":
        while True:
            pass
    if what == "wait":
        time.sleep(2 * SECONDS)  # past the limit by the clock, without processor time
    if what == "wait too long":
        time.sleep(60)
    if what == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "fill":
        filled = bytearray(MEMORY + MEMORY // 4)
        filled[:: os.sysconf("SC_PAGE_SIZE")] = b"x" * len(range(0, len(filled), os.sysconf("SC_PAGE_SIZE")))
        time.sleep(2 * SECONDS)
    return what


def test_every_way_of_not_returning() -> None:
    calls = ["well", "compute", "wait", "die", "well", "fill", "wait too long", "well"]
    outcomes = dict(run_isolated(call, calls, workers=2, seconds=SECONDS, memory=MEMORY, preload=()))
    states = [outcomes[index].state for index in range(len(calls))]
    assert states == ["returned", "hung", "returned", "crashed", "returned", "memory", "hung", "returned"]
    assert [outcomes[index].result for index in (0, 2, 4, 7)] == ["well", "wait", "well", "well"]
    assert outcomes[1].seconds > SECONDS > outcomes[2].seconds
    assert outcomes[3].detail == "SIGKILL"


def test_what_the_server_holds_is_not_a_call_s(tmp_path: Path) -> None:
    """There is one server of workers in a process: it may hold TVM for an earlier caller."""
    (tmp_path / "much.py").write_text(f"held = bytes({MEMORY}) + b'x'\n")
    source = f"""
        import json
        from scripts.trust.isolated import run_isolated
        from tests.test_isolated_calls import call
        calls = ["well", "wait too long"]
        outcomes = dict(run_isolated(call, calls, seconds={SECONDS}, memory={MEMORY // 2}, preload=["much"]))
        print(json.dumps([outcomes[index].state for index in range(2)]))
    """
    assert json.loads(output_of(source, PYTHONPATH=f"{tmp_path}:{Path.cwd()}")) == ["returned", "hung"]
