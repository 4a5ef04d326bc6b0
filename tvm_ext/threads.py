"""Threads of the TVM runtime: as many as this process may use cores, without a trace in its environment.

TVM's own default is half of the logical processors, which is right with two-way simultaneous multithreading and leaves
half of the machine idle without it. Its pool belongs to the thread that calls kernels: each calling thread has one.
When TVM makes a pool, it binds the calling thread to processors, also to some that it was kept from; here the calling
thread stays where it was.
"""

from __future__ import annotations

import itertools
import math
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

import tvm_ffi

from tvm_ext.cgroup import cpu_quota

VARIABLES = ("TVM_NUM_THREADS", "OMP_NUM_THREADS")
"""What the TVM runtime reads, in this order."""

ONE_EACH, SHARED = -2, -3
"""Ways to bind threads that the runtime knows: each to a processor of its own, or all to all of them."""

Result = TypeVar("Result")

_pool = threading.local()
_first = itertools.count()
_helpers: dict[int, ThreadPoolExecutor] = {}


@lru_cache(maxsize=1)
def physical_cores() -> int:
    """Count the physical cores this process may use (SMT siblings counted once), at most its quota of them."""
    quota = cpu_quota()
    cores = len(_one_of_each_core())
    return cores if quota is None else max(1, min(cores, math.ceil(quota)))


def threads() -> int:
    """Count the threads that kernels run in: what the user's environment says, else :func:`physical_cores`."""
    for variable in VARIABLES:
        value = os.environ.get(variable)
        if value is not None:
            return max(1, int(value)) if value.strip().isdecimal() else 1
    return physical_cores()


def use_all_cores() -> None:
    """Give TVM's thread pool of the calling thread :func:`threads` threads, if it was not done before.

    A pool that the thread has already, because it ran kernels of another origin, keeps its size.
    """
    if getattr(_pool, "process", None) is not None:
        return
    allowed = os.sched_getaffinity(0)
    configure = tvm_ffi.get_global_func("runtime.config_threadpool")
    count = threads()
    cores = _one_of_each_core()
    try:
        if count == len(cores) and next(_first) == 0:
            configure(ONE_EACH, count, [str(cpu) for cpu in cores])
        else:
            # Further pools of this process share the cores with the first, and threads of other processes that have
            # fewer than all cores would all sit on the same ones: the system places them.
            processors = [str(cpu) for cpu in sorted(allowed)]
            configure(SHARED, count, (processors * count)[:count])  # makes as many threads as there are entries
            if count < len(processors):
                configure(SHARED, count, processors)
    finally:
        os.sched_setaffinity(0, allowed)
    _pool.process = os.getpid()


def with_pool(function: Callable[[], Result]) -> Result:
    """Call a function that runs kernels, in a thread whose pool works.

    That is the calling thread, except in a child process that was forked after the thread had made its pool: threads
    of a pool do not survive a fork, and kernels would wait for them forever.
    """
    use_all_cores()
    process = os.getpid()
    if _pool.process == process:
        return function()
    if process not in _helpers:
        _helpers[process] = ThreadPoolExecutor(1, "tvm_ext", initializer=use_all_cores)
    return _helpers[process].submit(function).result()


def _one_of_each_core() -> list[int]:
    """List the first processor of each physical core that this process may run on."""
    allowed = sorted(os.sched_getaffinity(0))
    cores: dict[str, int] = {}
    for cpu in allowed:
        siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        try:
            cores.setdefault(siblings.read_text().strip(), cpu)
        except OSError:
            return allowed
    return list(cores.values())
