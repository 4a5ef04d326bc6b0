"""How much of the machine others used while a measurement ran."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def processor_seconds(pid: int) -> float:
    """Processor time (seconds, all threads, user and system) of a process so far; 0 when it is gone."""
    try:
        # The second field is the program's name in parentheses and may hold anything; what we want follows it.
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND


def machine_seconds() -> float | None:
    """Seconds all processors have been busy or taken by the hypervisor; None where /proc/stat does not say."""
    try:
        fields = Path("/proc/stat").read_text(encoding="utf-8").splitlines()[0].split()
        user, nice, system, _idle, _wait, irq, softirq, steal = map(int, fields[1:9])
    except (OSError, ValueError, IndexError):
        return None
    return (user + nice + system + irq + softirq + steal) / TICKS_PER_SECOND


class BusynessMeter:
    """Measures the processors that processes other than ours keep busy.

    Parameters
    ----------
    pids : iterable of int
        Our processes, besides this one.
    """

    def __init__(self, pids: Iterable[int]) -> None:
        self._pids = [os.getpid(), *pids]
        self._own = {pid: processor_seconds(pid) for pid in self._pids}
        self._spent = dict.fromkeys(self._pids, 0.0)
        self._machine = machine_seconds()
        self._start = time.monotonic()

    def update(self) -> None:
        """Look at our processes; call it now and then, since a process that ends can no longer be asked."""
        for pid, before in self._own.items():
            self._spent[pid] = max(self._spent[pid], processor_seconds(pid) - before)

    def other_cores(self) -> float | None:
        """Processors that others kept busy, on average since the start; None when that cannot be known."""
        self.update()
        now, elapsed = machine_seconds(), time.monotonic() - self._start
        if now is None or self._machine is None or elapsed <= 0:
            return None
        return max(0.0, now - self._machine - sum(self._spent.values())) / elapsed
