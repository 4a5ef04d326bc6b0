"""Runs trials in processes of their own, with a time limit: a crash or a hang costs one process and is an outcome."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import resource
import signal
import time
import warnings
from multiprocessing.connection import Connection

from scripts.fuzz.seeds import Drawn, try_drawn, try_seed
from scripts.fuzz.trial import Outcome

LIMIT = 60.0
"""Seconds of processor time that one trial may take (and ten times as many by the clock)."""

SIMULATED_LIMIT = 180.0
"""The same on a simulated accelerator, whose programs take longer to make and to run."""

LIFETIME = 60
"""Trials of one process."""

MEMORY = 12 << 30
"""Bytes of address space of a worker."""


class Worker:
    """A process that tries seeds of one kind, or models, one after the other.

    Attributes
    ----------
    done : int
        Trials that came to their end.
    drawn : Drawn or None
        What the latest trial was about, as soon as that is known.
    """

    def __init__(self, threads: int, kind: str) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["scripts.fuzz.preload"])
        self._near, far = context.Pipe()
        self._process = context.Process(target=_serve, args=(far, threads, kind), daemon=True)
        self._process.start()
        far.close()
        self.done = 0
        self.drawn: Drawn | None = None

    def run(self, trial: int | Drawn, limit: float = LIMIT) -> Outcome:
        """Run one trial; after ``crash`` and ``hang`` the worker is of no more use."""
        self.drawn = trial if isinstance(trial, Drawn) else None
        self._near.send(trial)
        stage, began, spent = "start", time.monotonic(), self._seconds()
        while True:
            if self._near.poll(0.5):
                try:
                    kind, value = self._near.recv()
                except (EOFError, ConnectionResetError):
                    self._process.join()
                    return Outcome("crash", f"{_died(self._process.exitcode)} at {stage}")
                if kind == "stage":
                    stage = value
                elif kind == "drawn":
                    self.drawn = value
                else:
                    self.done += 1
                    return value
            elif self._seconds() - spent > limit or time.monotonic() - began > 10 * limit:
                used = self._seconds() - spent
                self.close()
                return Outcome("hang", f"more than {limit:.0f} s at {stage}", seconds=used)

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.join()
        self._near.close()

    def _seconds(self) -> float:
        try:
            with open(f"/proc/{self._process.pid}/stat") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Pool:
    """Runs trials one after the other, in a new process after ``LIFETIME`` of them and after each crash or hang.

    What crashes or hangs is tried once more in a fresh process, with twice the time: a crash that does not come again
    stays a crash, and says so; a trial that ends in twice the time was slow, not hanging.
    """

    def __init__(self, threads: int, limit: float = LIMIT, *, kind: str = "graphs") -> None:
        self._threads, self._limit, self._kind = threads, limit, kind
        self._worker: Worker | None = None
        self.drawn: Drawn | None = None

    def run(self, trial: int | Drawn) -> Outcome:
        """Run one trial; ``drawn`` is then what it was about, None where the seed has no model."""
        if self._worker is not None and self._worker.done >= LIFETIME:
            self.close()
        if self._worker is None:
            self._worker = Worker(self._threads, self._kind)
        outcome = self._worker.run(trial, self._limit)
        self.drawn = self._worker.drawn
        if outcome.kind in ("crash", "hang"):
            self.close()
            outcome = self._again(outcome)
        return outcome

    def _again(self, first: Outcome) -> Outcome:
        if self.drawn is None:  # drawing a model failed, which says nothing about compiling it
            return Outcome("skipped", f"draw: {first.detail}")
        worker = Worker(self._threads, self._kind)
        try:
            second = worker.run(self.drawn, 2 * self._limit)
        finally:
            worker.close()
        if second.kind == "crash" and second.detail.endswith("at reference"):
            return Outcome("skipped", f"onnxruntime {second.detail}")  # there is nothing to compare with
        if second.kind in ("crash", "hang") or first.kind == "hang":
            return second
        return Outcome("crash", f"{first.detail}; alone in a process it is {second.kind}", seconds=second.seconds)

    def close(self) -> None:
        """End the process."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None


def _died(code: int | None) -> str:
    if code is not None and code < 0:
        with contextlib.suppress(ValueError):
            return f"died of {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


def _serve(pipe: Connection, threads: int, kind: str) -> None:
    os.environ["TVM_NUM_THREADS"] = str(threads)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    warnings.simplefilter("ignore")

    def stage(name: str) -> None:
        pipe.send(("stage", name))

    while True:
        try:
            trial = pipe.recv()
        except EOFError:
            return
        signal.setitimer(
            signal.ITIMER_PROF, 4 * SIMULATED_LIMIT
        )  # ends the process if nobody is left who would end a hang
        if isinstance(trial, Drawn):
            outcome = try_drawn(trial, stage)
        else:
            outcome = try_seed(trial, kind, stage, lambda drawn: pipe.send(("drawn", drawn)))
        pipe.send(("outcome", outcome))
