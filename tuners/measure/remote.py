"""Measuring on many machines: candidates are compiled here, and timed by the RPC servers of a tracker.

A candidate whose server is lost is given to another one, so that no measurement is lost with a machine. Timing goes on
while the next batch is compiled.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np

from tvm_ext.errors import RemoteError
from tvm_ext.system.rpc import Address, servers
from tvm_ext.system.threads import physical_cores
from tvm_ext.tuners.measure.measurer import Arguments, Candidate, Measurer
from tvm_ext.tuners.measure.pool import Fault, Worker
from tvm_ext.tuners.measure.scratch import ScratchFolder
from tvm_ext.tuners.measure.worker import Timing

ATTEMPTS = 3
"""Servers that a candidate may be lost with; then it is the candidate that ends them."""

MARGIN_SECONDS = 20.0
"""What connecting, uploading and answering may take beside waiting and running."""


class RemoteMeasurer(Measurer):
    """Times candidates on the servers that a tracker has for a key, as many at once as there are servers.

    The servers must be machines of one kind: their times are compared.

    Parameters
    ----------
    tracker : Address
    key : str
    workers : int, optional
        Processes that compile here; the physical cores by default.
    timing : Timing, optional
    build_timeout, run_timeout : float
        Seconds after which a candidate is given up.
    memory_bytes : int
        What compiling a candidate may allocate.
    wait_seconds : float
        How long a candidate waits for a server that is free.
    patience : float
        Seconds without any server after which measuring ends with an error.

    Raises
    ------
    RemoteError
        If there is no tracker, or it has no server with this key.
    """

    is_here = False

    def __init__(
        self,
        tracker: Address,
        key: str,
        workers: int | None = None,
        timing: Timing | None = None,
        build_timeout: float = 60.0,
        run_timeout: float = 10.0,
        memory_bytes: int = 4 << 30,
        wait_seconds: float = 60.0,
        patience: float = 30.0,
    ) -> None:
        self.tracker, self.key = tracker, key
        self.servers = servers(tracker, key)
        self.wait_seconds, self.patience = wait_seconds, patience
        self.lost = 0
        super().__init__(
            workers or physical_cores(), 1, timing, build_timeout, run_timeout, memory_bytes, overlap=False
        )
        self._folder = ScratchFolder()
        # Clients wait for servers most of the time, in processes of their own: one that hangs can be ended.
        self._clients: queue.SimpleQueue[Worker] = queue.SimpleQueue()
        for _ in range(self.servers):
            self._clients.put(Worker(self._server))
        self._threads = ThreadPoolExecutor(self.servers, thread_name_prefix="measure")
        self._bookkeeping = threading.Lock()
        self._closing = threading.Event()

    def close(self) -> None:
        """End all workers; what was not timed yet never is."""
        self._closing.set()
        self._threads.shutdown(wait=False, cancel_futures=True)
        super().close()
        self._threads.shutdown()
        self._folder.close()

    def _library(self, row: Candidate) -> Path:
        return self._folder.path / f"{row.key}.so"

    def _compile(self, row: Candidate, worker: Worker) -> None:
        worker.call(self.build_timeout, "export", row.module_json, row.target_json, str(self._library(row)))

    def _held(self, row: Candidate) -> bool:
        """Whether the library is there."""
        return self._library(row).exists()

    def run_all(self, rows: Sequence[tuple[Candidate, str, Arguments]]) -> list[Future[Candidate]]:
        """Have candidates timed, each by the next server that is free; gives at once what will be done."""
        return [self._threads.submit(self._run_row, *row) for row in rows]

    def run(self, row: Candidate, device_type: str, arguments: Arguments) -> None:
        """Time a candidate that was not timed yet; afterwards ``seconds`` or ``error`` is set.

        Raises
        ------
        RemoteError
            If there has been no server for :attr:`patience` seconds.
        """
        if row.error is not None or row.seconds is not None:
            return
        workload = (device_type, arguments)
        best = self._best.get(workload)
        start = time.perf_counter()
        try:
            seconds = self._time_somewhere(row, device_type, arguments, best[0] if best else None)
        except Fault as fault:
            with self._bookkeeping:
                row.error = f"running {fault}"
                self.counts.failed += 1
            return
        finally:
            with self._bookkeeping:
                self.counts.run_seconds += (time.perf_counter() - start) / self.servers
        with self._bookkeeping:
            row.seconds = seconds
            self.counts.run += 1
            median, best = float(np.median(seconds)), self._best.get(workload)
            if best is None or median < best[0]:
                self._best[workload] = (median, row)

    def _time_somewhere(
        self, row: Candidate, device_type: str, arguments: Arguments, best: float | None
    ) -> list[float]:
        reason = ""
        for _ in range(ATTEMPTS):
            self._wait_for_servers()
            client = self._clients.get()
            try:
                if not self._held(row):
                    self._compile(row, client)
                limit = self.wait_seconds + self.run_timeout + MARGIN_SECONDS
                limits = (self.wait_seconds, self.run_timeout)
                place = (str(self._library(row)), self.tracker, self.key)
                result, value = client.call(limit, "time", *place, device_type, arguments, self.timing, best, limits)
            finally:
                self._clients.put(client)
                self._library(row).unlink(missing_ok=True)
            if result == "done":
                return list(value)
            reason = str(value)
            with self._bookkeeping:
                self.lost += 1
        raise Fault(f"ended the session on {ATTEMPTS} servers: a crash, or more memory than there is (last: {reason})")

    def _wait_for_servers(self) -> None:
        deadline = time.monotonic() + self.patience
        while True:
            try:
                servers(self.tracker, self.key)
                return
            except RemoteError as error:
                if time.monotonic() >= deadline:
                    self.broken = RemoteError(f"{error}; what was measured is kept, run again to go on")
                    raise self.broken from None
                if self._closing.wait(0.5):
                    raise Fault("was not finished when measuring ended") from None

    def _time(
        self, worker: Worker, row: Candidate, device_type: str, arguments: Arguments, best: float | None
    ) -> list[float]:
        try:
            return self._time_somewhere(row, device_type, arguments, best)
        except RemoteError as error:
            raise Fault(str(error)) from None
