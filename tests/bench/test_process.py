from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.bench import conftest as engines
from tests.bench.conftest import engine_file
from tvm_ext.bench.busyness import processor_seconds
from tvm_ext.bench.process import EngineFailure, WorkerProcess, thread_environment

JOB: dict[str, Any] = {"do": "prepare", "job": {}}
TIMED = {"do": "time", "warm_runs": 0, "warm_seconds": 0.0, "runs": 3}


def prepare_and_time(worker: WorkerProcess) -> None:
    worker.wait("starting", 60)
    worker.ask(JOB, "compiling", 0.5)
    worker.ask(TIMED, "running", 10)


def state(pid: int) -> str:
    """Letter of the process state: R running, S sleeping, T stopped, Z ended; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return ""


def eventually(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return False


def test_a_worker_prepares_runs_and_times(tmp_path: Path) -> None:
    with WorkerProcess(engine_file(tmp_path, "good", ""), threads=1, scratch=tmp_path) as worker:
        assert worker.wait("starting", 60) == {"version": "1.0"}
        assert worker.ask(JOB, "compiling", 10)["facts"] == {"import_seconds": 0.25, "compile_seconds": 0.5}
        assert worker.ask({"do": "first"}, "running", 10)["outputs"][0].tolist() == [0, 1, 2, 3]
        seconds = worker.ask(TIMED, "running", 10)["seconds"]
        assert len(seconds) == 3
        assert min(seconds) >= 0.001
    assert not worker.alive


def test_a_worker_loads_nothing_but_its_engine(tmp_path: Path) -> None:
    body = """
    def version():
        return ",".join(name for name in ("tvm", "torch", "tvm_ext", "onnxruntime", "rich") if name in sys.modules)
    """
    with WorkerProcess(engine_file(tmp_path, "bare", body), threads=1, scratch=tmp_path) as worker:
        assert worker.wait("starting", 60)["version"] == ""


def test_threads_are_pinned_through_the_environment(tmp_path: Path) -> None:
    body = 'def version():\n    return os.environ["OMP_NUM_THREADS"] + os.environ["TVM_NUM_THREADS"]'
    with WorkerProcess(engine_file(tmp_path, "env", body), threads=3, scratch=tmp_path) as worker:
        assert worker.wait("starting", 60)["version"] == "33"
    assert set(thread_environment(2).values()) == {"2"}


def test_a_worker_is_frozen_while_it_is_not_asked(tmp_path: Path) -> None:
    with WorkerProcess(engine_file(tmp_path, "spinner", engines.SPINNER), threads=1, scratch=tmp_path) as worker:
        worker.wait("starting", 60)
        assert eventually(lambda: state(worker.pid) == "T")
        before = processor_seconds(worker.pid)
        time.sleep(0.5)
        assert processor_seconds(worker.pid) - before <= 0.02  # its endless loop has stood still
        worker.ask(JOB, "compiling", 30)  # and it wakes up when asked
        worker.ask(TIMED, "running", 30)
        assert processor_seconds(worker.pid) > before


@pytest.mark.parametrize(
    ("body", "pattern"),
    [
        (engines.CRASH_IN_COMPILE, r"crashed with SIGSEGV while compiling"),
        (engines.EXIT_IN_COMPILE, r"exited with code 7 while compiling: the library said goodbye"),
        (engines.HANG, r"no answer within 0\.5 s while compiling; raise the time limit"),
        (engines.CRASH_IN_RUN, r"crashed with SIGSEGV while running"),
        (engines.ERROR_IN_RUN, r"running: RuntimeError: kernel 7 is missing$"),
        (engines.BROKEN_IMPORT, r"starting: ModuleNotFoundError: No module named 'a_package_that_is_not_there'"),
    ],
)
def test_every_way_to_fail_is_one_sentence_and_leaves_no_process(tmp_path: Path, body: str, pattern: str) -> None:
    with WorkerProcess(engine_file(tmp_path, "bad", body), threads=1, scratch=tmp_path) as worker:
        pid = worker.pid
        with pytest.raises(EngineFailure, match=pattern):
            prepare_and_time(worker)
        assert state(pid) == ""


def test_asking_a_worker_that_was_killed(tmp_path: Path) -> None:
    with WorkerProcess(engine_file(tmp_path, "good", ""), threads=1, scratch=tmp_path) as worker:
        worker.wait("starting", 60)
        os.kill(worker.pid, 9)
        with pytest.raises(EngineFailure, match=r"SIGKILL \(out of memory\?\) while compiling"):
            worker.ask(JOB, "compiling", 10)
        worker.close()


def test_closing_ends_what_the_engine_started(tmp_path: Path) -> None:
    with WorkerProcess(engine_file(tmp_path, "parent", engines.GRANDCHILD), threads=1, scratch=tmp_path) as worker:
        worker.wait("starting", 60)
        pid = int(worker.ask(JOB, "compiling", 10)["facts"]["notes"][0].split()[1])
        assert state(pid) != ""
    assert eventually(lambda: state(pid) in ("", "Z"))
