"""A thread pool that is bound to cores, one thread to each, while nobody else wants them.

Bound threads keep apart from each other and from the calling one, also in the first run after a pause. But a kernel
ends when all of its threads have ended, and one whose core another program took waits for a time slice of it at every
kernel, while other cores may be free. So the threads are released where they wait for their cores, and bound again for
a trial later.

Measured on two cores of Zen 3, MobileNetV2: 6 ms bound and 11 ms released where the machine is idle and a run comes
every 0.2 s (without pauses both 6 ms); 131 ms bound and 9 ms released beside a program that keeps one core busy.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import tvm_ffi

ONE_EACH, SHARED = -2, -3
"""Ways to bind threads that the runtime knows: each to a processor of its own, or all to all of them."""

BETWEEN_MOVES = 0.01
"""Seconds between moves of a calling thread at least, for where it runs is the system's to say in the long run."""

BETWEEN_SAMPLES = 0.1
"""Seconds between runs during which one looks how long the threads wait for their cores."""

ENOUGH_SECONDS, ENOUGH_SAMPLES = 0.03, 20
"""How long such runs take together, or how many they are, until one decides."""

LONGEST_WAIT = 0.15
"""Threads are released where one of them waits for its core for more than this part of the time that runs take."""

FIRST_TRIAL, LAST_TRIAL = 1.0, 64.0
"""Seconds until released threads are bound again for a trial: at first, and at most; each failure doubles them."""

Result = TypeVar("Result")

current_processor: Callable[[], int] | None = getattr(ctypes.CDLL(None), "sched_getcpu", None)  # of the C library


def configure(mode: int, count: int, processors: Iterable[int]) -> None:
    """Bind the threads of the calling thread's pool, which is made if there is none, and leave the calling one alone.

    Parameters
    ----------
    mode : int
        :data:`ONE_EACH` or :data:`SHARED`.
    count : int
        Threads, the calling one among them.
    processors : iterable of int
        The runtime makes as many threads as there are entries in the first call.
    """
    allowed = os.sched_getaffinity(0)
    try:
        tvm_ffi.get_global_func("runtime.config_threadpool")(mode, count, [str(cpu) for cpu in processors])
    finally:
        os.sched_setaffinity(0, allowed)


class BoundPool:
    """The pool of the calling thread, made with a thread for each of ``cores``, of which the first is the caller's.

    Parameters
    ----------
    cores : sequence of int
        Processors of different cores.
    """

    def __init__(self, cores: Sequence[int]) -> None:
        self._cores = list(cores)
        before = _native_threads()
        configure(ONE_EACH, len(self._cores), self._cores)
        self._threads = sorted(_native_threads() - before)
        self._is_bound = True
        self._next_move = self._next_trial = 0.0
        self._until_trial = FIRST_TRIAL
        self._samples, self._ran, self._waited = 0, 0.0, 0.0
        self._begin_trial(time.monotonic())

    def call(self, function: Callable[..., Result], *arguments: object) -> Result:
        """Call a function that runs kernels, and see to the threads before and after it."""
        now = time.monotonic()
        if self._is_bound:
            self.leave_bound_cores(now)
        elif now >= self._next_trial:
            self._bind(now)
        if not self._is_bound or now < self._next_sample:
            return function(*arguments)
        before = self._seconds_waited()
        try:
            return function(*arguments)
        finally:
            ended = time.monotonic()
            waited = (new - old for new, old in zip(self._seconds_waited(), before, strict=True))
            self._take_sample(ended, ended - now, max(waited, default=0.0))

    def leave_bound_cores(self, now: float) -> None:
        """Move the calling thread to the core that its pool leaves to it, and let it go where it may from there.

        The system wakes a thread where another one rang it, which can be on a core that a thread of the pool is bound
        to: both then share it, in the first runs after each pause, until the system evens that out. A model that a
        request came for takes twice its time.
        """
        core = self._cores[0]
        if current_processor is None or now < self._next_move or current_processor() == core:
            return
        self._next_move = now + BETWEEN_MOVES
        allowed = os.sched_getaffinity(0)
        if core in allowed:
            os.sched_setaffinity(0, {core})
            os.sched_setaffinity(0, allowed)

    def _take_sample(self, now: float, ran: float, waited: float) -> None:
        """Release the threads if one of them waited for its core for a good part of the runs that were looked at."""
        self._samples += 1
        self._ran += ran
        self._waited += waited
        self._next_sample = now + BETWEEN_SAMPLES
        if self._ran < ENOUGH_SECONDS and self._samples < ENOUGH_SAMPLES:
            return
        if self._waited > LONGEST_WAIT * self._ran:
            self._release(now)
        elif now - self._bound_since > self._until_trial:
            self._until_trial = FIRST_TRIAL
        self._samples, self._ran, self._waited = 0, 0.0, 0.0

    def _release(self, now: float) -> None:
        configure(SHARED, len(self._cores), sorted(os.sched_getaffinity(0)))
        self._is_bound = False
        self._next_trial = now + self._until_trial
        self._until_trial = min(2 * self._until_trial, LAST_TRIAL)

    def _bind(self, now: float) -> None:
        configure(ONE_EACH, len(self._cores), self._cores)
        self._is_bound = True
        self._begin_trial(now)

    def _begin_trial(self, now: float) -> None:
        self._bound_since, self._next_sample = now, now + BETWEEN_SAMPLES
        self._samples, self._ran, self._waited = 0, 0.0, 0.0

    def _seconds_waited(self) -> list[float]:
        return [_seconds_waited(thread) for thread in self._threads]


def _native_threads() -> set[int]:
    """List the threads of this process; none where the system does not list them."""
    try:
        return {int(name) for name in os.listdir("/proc/self/task")}
    except OSError:
        return set()


def _seconds_waited(thread: int) -> float:
    """Read how long a thread was ready to run and did not, so far; 0 where the system does not say."""
    try:
        with open(f"/proc/self/task/{thread}/schedstat") as file:
            return int(file.read().split()[1]) * 1e-9
    except (OSError, ValueError, IndexError):
        return 0.0
