"""Guarded runs in a process of their own: what ends that process is a fault, not the end of the tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from queue import Empty, Queue
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Job:
    """A graph to compile for a level of the instruction set, and to run on guarded memory.

    Attributes
    ----------
    family : str
        A family of :mod:`tests.guarded.cases`, or ``zoo:`` and the name of a model.
    seed : int
    level : str
        A key of :data:`tests.guarded.cases.TARGETS`.
    """

    family: str
    seed: int
    level: str

    def __str__(self) -> str:
        return f"{self.family} {self.seed} on {self.level}"


@dataclass
class Outcome:
    """What came of a job.

    Attributes
    ----------
    rules : list of str
        For each kernel that ran on guarded memory, the schedule rule that took it.
    faults : list of str
        What touched memory that is not its own.
    wrong : str
        How the result differs from NumPy's, or nothing.
    refused : str
        Why it could not be compiled, or nothing.
    unproved : list of str
        Kernels whose vector code was thrown away, with the access that was not proved.
    """

    job: Job
    rules: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    wrong: str = ""
    refused: str = ""
    unproved: list[str] = field(default_factory=list)


def run_jobs(jobs: Sequence[Job], seconds: float = 120.0) -> Iterator[Outcome]:
    """Run jobs in a worker process, a new one after each that ended it or that took longer than ``seconds``."""
    worker: _Worker | None = None
    for job in jobs:
        worker = worker or _Worker()
        outcome, alive = worker.run(job, seconds)
        if not alive:
            worker = None
        yield outcome
    if worker is not None:
        worker.close()


class _Worker:
    def __init__(self) -> None:
        environment = {"TVM_NUM_THREADS": "2", **os.environ, "TVM_LOG_DEBUG": ""}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.guarded.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=ROOT,
            env=environment,
        )
        self._lines: Queue[str | None] = Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def run(self, job: Job, seconds: float) -> tuple[Outcome, bool]:
        """Run a job; the second value says whether the process can run another."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asdict(job)) + "\n")
        self._process.stdin.flush()
        reached = "before the first kernel"
        while True:
            try:
                line = self._lines.get(timeout=seconds)
            except Empty:
                self.close()
                return Outcome(job, faults=[f"{reached}: took longer than {seconds:g} s"]), False
            if line is None:
                code = self._process.wait()
                return Outcome(job, faults=[f"{reached}: ended the process with code {code}"]), False
            event = json.loads(line)
            if "before" in event:
                reached = str(event["before"])
            else:
                return Outcome(job, **event), True

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()


def levels_of_this_machine(levels: Sequence[str]) -> list[str]:
    """Leave out the levels whose instructions this machine lacks."""
    needs: dict[str, str] = {"x86-64-v2": "sse4_2", "haswell": "avx2", "skylake-avx512": "avx512bw"}
    try:
        flags: Any = set(Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").split())
    except OSError:
        return []
    return [level for level in levels if needs[level] in flags]
