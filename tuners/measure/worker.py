"""What a worker does: compile candidates, keep them, and time them."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm.runtime.device import RPC_SESS_MASK

from tvm_ext.tuners.measure import remote_worker
from tvm_ext.tuners.measure.channel import Closed, receive, send
from tvm_ext.tuners.measure.code import build

FLUSH = "cache_flush_cpu_non_first_arg"
"""TVM's function that empties the caches of all arguments but the first."""


MOST_COLD_RUNS = 100


@dataclass(frozen=True)
class Timing:
    """How a candidate is timed.

    Attributes
    ----------
    repeats : int
        Number of figures.
    seconds : float
        Each figure is a mean over runs that last at least so long together.
    hopeless : float
        A candidate whose first runs take this many times the best time is not repeated.
    behind : float
        Nor is one whose figures are all at least this many times the best time, after each further figure.
    flush : bool
        Whether a CPU's caches are emptied of all arguments but the first before each run, as in a model, where the
        weights were last read when it ran before. A figure is then the median of the runs.
    by_processor : bool
        Whether the time of the processor counts that the calling thread gets, instead of the clock's: beside other work
        a kernel on one thread takes as much of it as it does alone. Servers and other devices are timed by the clock.
    """

    repeats: int = 3
    seconds: float = 0.02
    hopeless: float = 3.0
    behind: float = 1.25
    flush: bool = True
    by_processor: bool = False

    def clock(self, device: Any) -> Callable[[], float]:
        """Give the clock for kernels on a device."""
        here = device.dlpack_device_type() == tvm.cpu().dlpack_device_type()
        return time.thread_time if self.by_processor and here else time.perf_counter

    def number(self, first: Sequence[float]) -> int:
        """Give the runs that one figure is the mean of, from the seconds of the first runs."""
        return max(1, round(self.seconds / max(min(first), 1e-7)))

    def stopwatch(
        self, module: Any, device: Any, tensors: Sequence[Any], first: Sequence[float]
    ) -> Callable[[], float]:
        """Make the function that takes one figure of ``main`` of a module, here or on a server."""
        number = self.number(first)
        if (clock := self.clock(device)) is time.thread_time:
            return lambda: self._processor_seconds(module["main"], tensors, number, clock)
        if self.flush and device.dlpack_device_type() % RPC_SESS_MASK == tvm.cpu().dlpack_device_type():
            cold = module.time_evaluator("main", device, 1, min(number, MOST_COLD_RUNS), f_preproc=FLUSH)
            return lambda: float(np.median(cold(*tensors).results))
        warm = module.time_evaluator("main", device, number, 1)
        return lambda: float(warm(*tensors).results[0])

    def _processor_seconds(
        self, function: Callable[..., Any], tensors: Sequence[Any], number: int, clock: Callable[[], float]
    ) -> float:
        """Take one figure by the processor's time of this thread."""
        if not self.flush:
            start = clock()
            for _ in range(number):
                function(*tensors)
            return (clock() - start) / number
        flush, taken = tvm.get_global_func(FLUSH), []
        for _ in range(min(number, MOST_COLD_RUNS)):
            flush(*tensors)
            start = clock()
            function(*tensors)
            taken.append(clock() - start)
        return float(np.median(taken))

    def figures(self, measure: Callable[[], float], first: Sequence[float], best: float | None) -> list[float]:
        """Take figures until there are enough, or the candidate is seen to be behind.

        Parameters
        ----------
        measure : callable
            Takes one figure, in seconds.
        first : sequence of float
            Seconds of the first runs.
        best : float, optional
            Best time so far.

        Returns
        -------
        list of float
            The figures; the first runs, where those are hopeless.
        """
        if best is not None and min(first) > self.hopeless * best:
            return list(first)
        taken: list[float] = []
        while len(taken) < self.repeats:
            taken.append(measure())
            if best is not None and min(taken) > self.behind * best:
                break
        return taken


def warm_up() -> None:
    """Go once through all that a candidate goes through before machine code, so that every worker has it loaded."""


def work(connection: socket.socket) -> None:
    """Answer requests, (name, arguments), with (True, result) or (False, sentence), until the socket is closed."""
    modules: dict[str, Any] = {}
    tasks: dict[str, Callable[..., Any]] = {
        "build": _build,
        "run": _run,
        "compare": _compare,
        "pin": _pin,
        "export": remote_worker.export,
        "time": remote_worker.time_on_server,
    }
    while True:
        try:
            name, arguments = receive(connection)
        except Closed:
            return
        try:
            answer = (True, tasks[name](modules, *arguments))
        except MemoryError:
            answer = (False, "needed more memory than it may have")
        except Exception as error:  # whatever TVM raised is the candidate's fault, and its only
            answer = (False, f"failed: {type(error).__name__}: {' '.join(str(error).split())[:300]}")
        send(connection, answer)


def _build(modules: dict[str, Any], key: str, module_json: str, target_json: dict[str, Any]) -> float:
    """Compile a module and keep it; gives seconds."""
    start = time.perf_counter()
    if key not in modules:
        compiled = build(tvm.ir.load_json(module_json), tvm.target.Target(target_json))
        executable = compiled.jit() if hasattr(compiled, "jit") else compiled
        _ = executable["main"]  # code is generated when a function is first asked for
        modules[key] = executable
    return time.perf_counter() - start


def _run(
    modules: dict[str, Any],
    key: str,
    device_type: str,
    arguments: list[tuple[tuple[int, ...], str]],
    timing: Timing,
    best: float | None,
) -> list[float]:
    """Time a kept module; gives seconds of a run, ``timing.repeats`` of them or fewer for a hopeless one."""
    device = _device(device_type)
    tensors = [tvm.runtime.tensor(_values(shape, dtype), device) for shape, dtype in arguments]
    executable = modules.pop(key)
    first = _first_runs(executable, device, tensors, timing)
    return timing.figures(timing.stopwatch(executable, device, tensors, first), first, best)


def _compare(
    modules: dict[str, Any],
    keys: list[str],
    device_type: str,
    arguments: list[tuple[tuple[int, ...], str]],
    timing: Timing,
) -> list[list[float]]:
    """Time kept modules in turns; gives ``timing.repeats`` times (seconds) of each."""
    device = _device(device_type)
    tensors = [tvm.runtime.tensor(_values(shape, dtype), device) for shape, dtype in arguments]
    executables = [modules[key] for key in keys]  # kept for the next comparison
    watches = [
        timing.stopwatch(executable, device, tensors, _first_runs(executable, device, tensors, timing))
        for executable in executables
    ]
    return np.transpose([[watch() for watch in watches] for _ in range(timing.repeats)]).tolist()


def _device(device_type: str) -> Any:
    """Give the device; for one with a driver, the limit of memory is lifted first.

    CUDA's runtime reserves more addresses than there is memory, and says that memory is full where it may not.
    """
    device = tvm.device(device_type, 0)
    if device.dlpack_device_type() != tvm.cpu().dlpack_device_type():
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
    return device


def _first_runs(executable: Any, device: Any, tensors: Sequence[Any], timing: Timing) -> list[float]:
    """Give the seconds of two runs, which are not the first."""
    function, clock = executable["main"], timing.clock(device)
    function(*tensors)  # pages touched, threads started
    first = []
    for _ in range(2):
        device.sync()
        start = clock()
        function(*tensors)
        device.sync()
        first.append(clock() - start)
    return first


def _values(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Values that no kernel is slow on: small, positive, no denormal numbers."""
    pattern = np.resize(np.linspace(0.5, 1.5, 251), shape) if np.prod(shape, dtype=int) else np.empty(shape)
    return pattern.astype(dtype)


def _pin(modules: dict[str, Any], cores: list[int]) -> None:
    """Keep the process on these cores, where the system lets it."""
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, cores)
