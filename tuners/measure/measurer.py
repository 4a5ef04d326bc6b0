"""Compiles and times candidates: what is equal is measured once, what fails costs only itself."""

from __future__ import annotations

import itertools
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, Self

import numpy as np
import tvm
import tvm_ffi
from tvm.s_tir import meta_schedule as ms

from tvm_ext.errors import OptionError, TvmExtError
from tvm_ext.relax_utils import plain
from tvm_ext.system.threads import physical_cores
from tvm_ext.system.threads import threads as kernel_threads
from tvm_ext.tuners.measure.pool import Fault, Worker, WorkerServer
from tvm_ext.tuners.measure.worker import Timing

CORES_TO_OVERLAP = 4

Arguments = tuple[tuple[tuple[int, ...], str], ...]
"""Shape and dtype of each argument of a kernel."""


@dataclass
class Candidate:
    """One kernel to measure.

    Attributes
    ----------
    key : str
        Equal for kernels that are structurally equal and compiled for the same target.
    error : str or None
        Why it could not be compiled or run.
    seconds : list of float or None
        Its times, once it has run.
    """

    key: str
    module_json: str
    target_json: dict[str, Any]
    worker: Worker | None = None
    generation: int = -1
    error: str | None = None
    seconds: list[float] | None = None


@dataclass
class Counts:
    """What was done, and the seconds it took."""

    built: int = 0
    run: int = 0
    repeated: int = 0
    failed: int = 0
    build_seconds: float = 0.0
    run_seconds: float = 0.0
    noise: list[float] = field(default_factory=list)


class Measurer:
    """Keeps workers warm from one batch to the next.

    Candidates are compiled by all workers at once, and timed one after the other, while nothing else runs; or, with
    ``overlap``, on a core kept for that, while the next batch is compiled on the others.

    Parameters
    ----------
    workers : int, optional
        Worker processes; the physical cores by default.
    threads : int, optional
        Threads of a kernel that runs in parallel; by default as many as compiled models have here (``TVM_NUM_THREADS``,
        or the physical cores). With one, kernels stay on one core.
    timing : Timing, optional
    build_timeout, run_timeout : float
        Seconds after which a candidate is given up.
    memory_bytes : int, optional
        What compiling a candidate, or running it on a CPU, may allocate; None for no limit. On a GPU it holds for
        compiling only: CUDA's runtime reserves more addresses than there is memory.
    overlap : bool, optional
        Whether the next batch is compiled while one is timed, for kernels on one thread; by default with four cores or
        more. With fewer, those left compile no faster than all do in turns.

    Raises
    ------
    OptionError
        If a number of workers or threads, a limit of time or of memory is not positive.
    """

    is_here = True
    """Whether it times on this machine."""

    def __init__(
        self,
        workers: int | None = None,
        threads: int | None = None,
        timing: Timing | None = None,
        build_timeout: float = 30.0,
        run_timeout: float = 10.0,
        memory_bytes: int | None = 4 << 30,
        overlap: bool | None = None,
    ) -> None:
        limits = {
            "workers": workers,
            "threads": threads,
            "build_timeout": build_timeout,
            "run_timeout": run_timeout,
            "memory_bytes": memory_bytes,
        }
        for name, value in limits.items():
            if value is not None and (not isinstance(value, Real) or not value > 0):
                raise OptionError(f"{name} of a measurer is {value!r}; expected a positive number")
        self.timing = timing or Timing()
        self.build_timeout, self.run_timeout = build_timeout, run_timeout
        self.threads = threads or kernel_threads()
        environment = {"TVM_NUM_THREADS": str(self.threads)}
        self._server = WorkerServer(memory_bytes, environment)
        self._workers = [Worker(self._server) for _ in range(workers or physical_cores())]
        self._known: dict[str, Candidate] = {}
        self._best: dict[tuple[str, Arguments], tuple[float, Candidate]] = {}
        cores = sorted(os.sched_getaffinity(0))
        overlap = len(cores) >= CORES_TO_OVERLAP if overlap is None else overlap
        self._timer = ThreadPoolExecutor(1, "time") if overlap and self.threads == 1 and len(cores) > 1 else None
        self._compiling_cores = cores[1:] if self._timer else cores
        self._timing_cores = itertools.cycle(cores[:1] if self._timer else cores)
        self.counts = Counts()
        self.broken: TvmExtError | None = None
        """Why nothing can be measured any more: TVM's callbacks let no error class through."""

    def close(self) -> None:
        """End all workers; what was not timed yet never is."""
        if self._timer is not None:
            self._timer.shutdown(wait=False, cancel_futures=True)
        self._server.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def forget(self) -> None:
        """Forget what was measured, so that a further search pays for its own measurements; workers stay."""
        self._known, self._best, self.counts = {}, {}, Counts()

    def candidate(self, mod: tvm.IRModule, target: tvm.target.Target) -> Candidate:
        """Give the candidate of a module with one kernel, ``main``; the same object for equal modules."""
        target_json = plain(target.export())
        key = f"{tvm_ffi.structural_hash(mod):x}-{hash(str(target_json)):x}"
        if key not in self._known:
            self._known[key] = Candidate(key, tvm.ir.save_json(mod), target_json)
        else:
            self.counts.repeated += 1
        return self._known[key]

    def build(self, candidates: Sequence[Candidate]) -> None:
        """Compile candidates that were not compiled yet; what fails has its ``error`` set."""
        start = time.perf_counter()
        missing = [row for row in candidates if row.error is None and row.seconds is None and not self._held(row)]
        waiting = deque({row.key: row for row in missing}.values())

        def build_some(worker: Worker) -> None:
            while waiting:
                if not worker.lock.acquire(timeout=0.02):  # it is timing
                    continue
                try:
                    self._build_one(waiting.popleft(), worker)
                except IndexError:  # another worker took the last
                    return
                finally:
                    worker.lock.release()

        with ThreadPoolExecutor(len(self._workers)) as threads:
            for future in [threads.submit(build_some, worker) for worker in self._workers]:
                future.result()
        self.counts.build_seconds += time.perf_counter() - start

    def _compile(self, row: Candidate, worker: Worker) -> None:
        if self.threads == 1:  # it may still be where it timed, on a core with another worker
            worker.call(self.build_timeout, "pin", self._compiling_cores)
        worker.call(self.build_timeout, "build", row.key, row.module_json, row.target_json)

    def _held(self, row: Candidate) -> bool:
        """Whether a worker still has the compiled candidate."""
        return row.worker is not None and row.generation == row.worker.generation and row.worker.alive

    def _build_one(self, row: Candidate, worker: Worker) -> None:
        try:
            self._compile(row, worker)
        except Fault as fault:
            row.error = f"compiling {fault}"
            self.counts.failed += 1
        else:
            row.worker, row.generation = worker, worker.generation
            self.counts.built += 1

    def run_all(self, rows: Sequence[tuple[Candidate, str, Arguments]]) -> list[Future[Candidate]]:
        """Time candidates on devices; futures are done when ``seconds`` or ``error`` of a candidate is set."""
        if self._timer is not None:
            return [self._timer.submit(self._run_row, *row) for row in rows]
        done: list[Future[Candidate]] = [Future() for _ in rows]
        for future, (row, device_type, arguments) in zip(done, rows, strict=True):
            self.run(row, device_type, arguments)
            future.set_result(row)
        return done

    def _run_row(self, row: Candidate, device_type: str, arguments: Arguments) -> Candidate:
        self.run(row, device_type, arguments)
        return row

    def run(self, row: Candidate, device_type: str, arguments: Arguments) -> None:
        """Time a candidate that was not timed yet; afterwards ``seconds`` or ``error`` is set.

        Candidates with the same arguments are compared: one that is hopeless beside the best is not repeated.
        """
        if row.error is not None or row.seconds is not None:
            return
        worker = row.worker or self._workers[0]
        with worker.lock:
            if not self._held(row):  # its worker was taken down by another candidate
                self._build_one(row, worker)
            if row.error is None:
                self._run_held(row, worker, device_type, arguments)

    def _run_held(self, row: Candidate, worker: Worker, device_type: str, arguments: Arguments) -> None:
        start = time.perf_counter()
        workload = (device_type, arguments)
        best = self._best.get(workload)
        try:
            if self.threads == 1:
                worker.call(self.run_timeout, "pin", [next(self._timing_cores)])
            row.seconds = self._time(worker, row, device_type, arguments, best[0] if best else None)
            self.counts.run += 1
            median = float(np.median(row.seconds))
            if best is None or median < best[0]:
                self._best[workload] = (median, row)
        except Fault as fault:
            row.error = f"running {fault}"
            self.counts.failed += 1
            if device_type != "cpu":  # a kernel that fails leaves a device's context of no use to those after it
                worker.kill()
        finally:
            self.counts.run_seconds += time.perf_counter() - start

    def _time(
        self, worker: Worker, row: Candidate, device_type: str, arguments: Arguments, best: float | None
    ) -> list[float]:
        return worker.call(self.run_timeout, "run", row.key, device_type, arguments, self.timing, best)

    def _compile_in_groups(self, groups: Sequence[Sequence[Candidate]]) -> list[Worker | None]:
        """Compile each group in one worker, the groups of different workers at once; None for one that failed."""

        def compile_some(worker: Worker, rows_of: Sequence[Sequence[Candidate]]) -> list[Worker | None]:
            found: list[Worker | None] = []
            for rows in rows_of:
                try:
                    for row in rows:
                        self._compile(row, worker)
                except Fault:
                    found.append(None)
                else:
                    found.append(worker)
            return found

        count = len(self._workers)
        with ThreadPoolExecutor(count) as threads:
            parts = [
                threads.submit(compile_some, worker, groups[first::count]) for first, worker in enumerate(self._workers)
            ]
            compiled: list[Worker | None] = [None] * len(groups)
            for first, part in enumerate(parts):
                compiled[first::count] = part.result()
        return compiled

    def compare(self, groups: Sequence[tuple[Sequence[Candidate], str, Arguments]]) -> list[list[list[float]] | None]:
        """Time the candidates of each group in turns, on this machine, whatever is known of them.

        Parameters
        ----------
        groups : sequence of (candidates, device type, arguments)
            Groups are compiled on all workers and timed one after the other. Workers keep what was compared, so that a
            candidate that is compared again in the same place of the list is not compiled again; an empty group keeps
            its place.

        Returns
        -------
        list of list of list of float or None
            Times of each group's candidates (seconds); None when one of them failed.
        """
        compiled = self._compile_in_groups([rows for rows, _, _ in groups])
        return [
            None if worker is None else self._compare_in(worker, *group)
            for worker, group in zip(compiled, groups, strict=True)
        ]

    def _compare_in(
        self, worker: Worker, rows: Sequence[Candidate], device_type: str, arguments: Arguments
    ) -> list[list[float]] | None:
        if not rows:
            return []
        try:
            for row in rows:  # again where another group took the worker down
                self._compile(row, worker)
            if self.threads == 1:
                worker.call(self.run_timeout, "pin", [next(self._timing_cores)])
            keys = [row.key for row in rows]
            return worker.call(len(rows) * self.run_timeout, "compare", keys, device_type, arguments, self.timing)
        except Fault:
            return None

    def check_noise(self, workloads: Sequence[tuple[str, Arguments]]) -> list[float]:
        """Time the best candidate of each workload once more, and note by how much the two times differ (a share).

        Two measurements of one thing differ by noise alone: a difference between candidates that is less says nothing.
        """
        known = [workload for workload in dict.fromkeys(workloads) if workload in self._best]
        compiled = self._compile_in_groups([[self._best[workload][1]] for workload in known])
        noise = []
        for workload, worker in zip(known, compiled, strict=True):
            before, row = self._best[workload]
            if worker is None:
                continue
            try:
                again = float(np.median(self._time(worker, row, *workload, None)))
            except Fault:
                continue
            noise.append(abs(again - before) / min(again, before))
        self.counts.noise += noise
        return noise


def measure(
    measurer: Measurer,
    kernels: Sequence[tvm.IRModule],
    target: tvm.target.Target,
    progress: Callable[[int], None] = lambda done: None,
) -> list[Candidate]:
    """Compile and time modules with one kernel each, ``main``; gives one candidate a module."""
    rows = [measurer.candidate(mod, target) for mod in kernels]
    measurer.build(rows)
    for done, (row, mod) in enumerate(zip(rows, kernels, strict=True)):
        measurer.run(row, device_of(target), arguments_of(mod))
        progress(done + 1)
    return rows


def device_of(target: tvm.target.Target) -> str:
    """Name the kind of device that a target's kernels run on."""
    return str(tvm.runtime.Device(target.get_target_device_type(), 0)).partition(":")[0]


def arguments_of(mod: tvm.IRModule) -> Arguments:
    """Shape and dtype of each argument of ``main``."""
    return tensor_arguments(ms.arg_info.ArgInfo.from_entry_func(mod, remove_preproc=True))


def tensor_arguments(infos: Sequence[Any]) -> Arguments:
    """Shape and dtype of each of MetaSchedule's argument descriptions."""
    return tuple((tuple(map(int, info.shape)), str(info.dtype)) for info in infos)
