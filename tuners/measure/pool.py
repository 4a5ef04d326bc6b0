"""Warm workers, seen from the tuning process."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import weakref
from typing import Any

from tvm_ext.errors import TuningError
from tvm_ext.tuners.measure.channel import Closed, receive, send

START_SECONDS = 120.0
"""How long the server may take to import TVM, on a machine that is busy."""


class Fault(Exception):
    """A candidate could not be compiled or run; says why."""


class WorkerServer:
    """The process from which workers are forked.

    Parameters
    ----------
    memory_bytes : int, optional
        What a worker may allocate; a candidate that wants more fails. None for no limit.
    environment : dict, optional
        Variables for the workers, such as ``TVM_NUM_THREADS``.

    Raises
    ------
    TuningError
        If it cannot be started.
    """

    def __init__(self, memory_bytes: int | None = 4 << 30, environment: dict[str, str] | None = None) -> None:
        self.memory_bytes = memory_bytes
        self._lock = threading.Lock()
        self._connection, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tvm_ext.tuners.measure.server", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=os.environ | (environment or {}),
            )
        self._finalizer = weakref.finalize(self, _close, self._connection, self._process)
        self._ready = False

    def fork(self) -> tuple[int, socket.socket]:
        """Start a worker; gives its process number and the socket to talk to it."""
        ours, theirs = socket.socketpair()
        with self._lock, theirs:
            try:
                self._connection.settimeout(START_SECONDS)
                if not self._ready:
                    self._ready = self._connection.recv(1) == b"r"
                socket.send_fds(self._connection, [struct.pack("q", self.memory_bytes or 0)], [theirs.fileno()])
                answer = self._connection.recv(8)
            except OSError:
                answer = b""
            if len(answer) != 8:
                self.close()
                raise TuningError(
                    "the process that compiles candidates did not start or was killed; "
                    "see whether `python -m tvm_ext.tuners.measure.server 0` says why"
                )
        return struct.unpack("q", answer)[0], ours

    def close(self) -> None:
        """End the server and with it all its workers."""
        self._finalizer()


def _close(connection: socket.socket, process: subprocess.Popen) -> None:
    connection.close()
    try:
        process.wait(2.0)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class Worker:
    """One worker, replaced by a new one when a candidate takes it down."""

    def __init__(self, server: WorkerServer) -> None:
        self._server = server
        self._connection: socket.socket | None = None
        self.process = 0
        self.lock = threading.RLock()
        """Held by a thread whose calls belong together; one at a time talks to the worker."""
        self.generation = 0
        """Grows with each replacement; what an earlier one compiled is lost."""

    @property
    def alive(self) -> bool:
        """Whether it runs, as far as is known."""
        return self._connection is not None

    def call(self, timeout: float, name: str, *arguments: Any) -> Any:
        """Have the worker do something.

        Raises
        ------
        Fault
            If it fails, takes longer than ``timeout`` seconds, or ends.
        """
        with self.lock:
            if self._connection is None:
                self.process, self._connection = self._server.fork()
                self.generation += 1
            try:
                send(self._connection, (name, arguments))
                works, answer = receive(self._connection, timeout)
            except TimeoutError:
                self.kill()
                raise Fault(f"took longer than {timeout:g} s and was stopped") from None
            except Closed:
                self.kill()
                raise Fault("took the worker process down: a crash, or more memory than it may have") from None
            except BaseException:  # an interrupt between question and answer: the worker is of no more use
                self.kill()
                raise
        if not works:
            raise Fault(answer)
        return answer

    def kill(self) -> None:
        """End the process, whatever it is doing."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process, signal.SIGKILL)
