"""Threads of the TVM runtime: as many as there are physical cores.

TVM's own default is half of the logical processors, which is right with two-way simultaneous multithreading and leaves
half of the machine idle without it.
"""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

VARIABLE = "TVM_NUM_THREADS"


@lru_cache(maxsize=1)
def physical_cores() -> int:
    """Count the physical cores this process may run on (SMT siblings counted once)."""
    allowed = os.sched_getaffinity(0)
    cores = set()
    for cpu in allowed:
        siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        try:
            cores.add(siblings.read_text().strip())
        except OSError:
            return len(allowed)
    return len(cores)


def use_physical_cores() -> None:
    """Let TVM's thread pool of this process have one thread for each physical core.

    Does nothing when the user has set ``TVM_NUM_THREADS``, or when the pool exists already (it is made by the first
    kernel that runs in parallel).
    """
    os.environ.setdefault(VARIABLE, str(physical_cores()))
