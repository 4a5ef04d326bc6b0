"""Calls a function on many arguments in worker processes, so that a crash, a hang or a flood of memory ends one call.

A worker is forked from a server that has imported TVM already and handles one call after the other; one that dies, runs
past the time limit or holds too much memory is replaced, and its call is reported as such.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

POLL_SECONDS = 0.05
PAGE = os.sysconf("SC_PAGE_SIZE")
TICKS = os.sysconf("SC_CLK_TCK")
BY_THE_CLOCK = 5
"""How many times its limit of processor time a call may take by the clock: others may keep the processors busy."""


@dataclass(frozen=True)
class Outcome:
    """What became of one call.

    Attributes
    ----------
    result : Any
        What the function returned, None unless ``state`` is ``"returned"``.
    state : str
        ``"returned"``, ``"crashed"`` (the worker died), ``"hung"`` (past the time limit), ``"memory"`` (past that one).
    detail : str
        The signal or exit code of a crash.
    seconds : float
        Processor time.
    peak_bytes : int
        Largest resident memory of the worker that was seen during the call.
    """

    result: Any
    state: str
    detail: str
    seconds: float
    peak_bytes: int


class _Worker:
    """One worker process with its pipe and the call that it is at."""

    def __init__(self, context: Any, function: Callable[[Any], Any]) -> None:
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, function), daemon=True)
        self.process.start()
        theirs.close()
        with contextlib.suppress(EOFError, OSError):  # one that dies at once is found dead at its first call
            self.pipe.recv()  # it has imported what it needs: neither time nor memory of that is a call's
        self.index = -1
        self.started = self.used = 0.0
        self.peak = 0
        self.idle = self.sample()

    def begin(self, index: int, argument: Any) -> None:
        self.index, self.started, self.used, self.peak = index, time.monotonic(), self.processor_seconds(), 0
        with contextlib.suppress(OSError):
            self.pipe.send(argument)

    def processor_seconds(self) -> float:
        """Read how long the worker, and the processes that it waited for, have computed; 0 when it is gone."""
        try:
            fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return sum(map(int, fields[11:15])) / TICKS

    def sample(self) -> int:
        """Read how much memory the worker holds now."""
        try:
            pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        except (OSError, IndexError, ValueError):
            return 0
        self.peak = max(self.peak, pages * PAGE)
        return pages * PAGE

    def end(self) -> None:
        if self.process.is_alive():
            self.process.kill()
        self.process.join()
        self.pipe.close()


def run_isolated(
    function: Callable[[Any], Any],
    arguments: Sequence[Any],
    *,
    workers: int = 1,
    seconds: float = 60.0,
    memory: int = 4 << 30,
    calls: int = 400,
    preload: Sequence[str] = ("tvm_ext.compiler",),
) -> Iterator[tuple[int, Outcome]]:
    """Call ``function`` on every argument.

    Parameters
    ----------
    function : callable
        Of a module that can be imported; it and the arguments are pickled.
    arguments : sequence
    workers : int
        Processes at a time.
    seconds : float
        Limit for one call, of processor time; by the clock it may take ``BY_THE_CLOCK`` times as long.
    memory : int
        Resident bytes, beyond those that it began with, at which a worker is ended: the server of workers may have
        imported more than ``preload``, for somebody else.
    calls : int
        Calls after which a worker is replaced, so that what one leaves behind does not pile up.
    preload : sequence of str
        Modules that the server of workers imports.

    Yields
    ------
    tuple
        Index of an argument and its outcome, in the order in which they end.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(preload))
    pool: list[_Worker] = []
    waiting = iter(range(len(arguments)))
    served: dict[int, int] = {}

    def give(worker: _Worker) -> _Worker | None:
        index = next(waiting, None)
        if index is None:
            worker.end()
            return None
        if served.get(id(worker), 0) >= calls:
            worker.end()
            served.pop(id(worker), None)
            worker = _Worker(context, function)
        served[id(worker)] = served.get(id(worker), 0) + 1
        worker.begin(index, arguments[index])
        return worker

    try:
        for _ in range(min(workers, len(arguments))):
            worker = give(_Worker(context, function))
            if worker is not None:
                pool.append(worker)
        while pool:
            ready = set(wait([worker.pipe for worker in pool], POLL_SECONDS))
            after: list[_Worker] = []
            for worker in pool:
                outcome = _look(worker, worker.pipe in ready, seconds, memory)
                if outcome is None:
                    after.append(worker)
                    continue
                yield worker.index, outcome
                if outcome.state != "returned":
                    worker.end()
                    served.pop(id(worker), None)
                    worker = _Worker(context, function)
                next_worker = give(worker)
                if next_worker is not None:
                    after.append(next_worker)
            pool = after
    finally:
        for worker in pool:
            worker.end()


def _look(worker: _Worker, ready: bool, seconds: float, memory: int) -> Outcome | None:
    """Tell how the call of a worker ended, None while it runs."""
    held = worker.sample()
    elapsed, used = time.monotonic() - worker.started, max(worker.processor_seconds() - worker.used, 0.0)
    if ready:
        try:
            return Outcome(worker.pipe.recv(), "returned", "", used, worker.peak)
        except (EOFError, OSError):
            worker.process.join()
            code = worker.process.exitcode or 0
            detail = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            return Outcome(None, "crashed", detail, used, worker.peak)
    if used > seconds or elapsed > BY_THE_CLOCK * seconds:
        return Outcome(None, "hung", f"longer than {seconds:g} s", used, worker.peak)
    if held - worker.idle > memory:
        return Outcome(None, "memory", f"more than {memory / 2**30:g} GiB", used, worker.peak)
    return None


def _serve(pipe: Connection, function: Callable[[Any], Any]) -> None:
    """Answer calls until the pipe is closed; what they print is dropped."""
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    pipe.send(None)
    while True:
        try:
            argument = pipe.recv()
        except (EOFError, OSError):
            return
        pipe.send(function(argument))
