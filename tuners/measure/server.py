"""The process that imports TVM once and forks a worker whenever one is asked for.

It runs as ``python -m tvm_ext.tuners.measure.server DESCRIPTOR``: a socket on which each message asks for one worker
and carries the socket that worker is to listen on. When the socket is closed, also because the tuning process is gone,
the server ends and its workers with it: the kernel kills a worker whose server ends.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import socket
import struct
import sys
from contextlib import suppress

PR_SET_PDEATHSIG = 1


def serve(descriptor: int) -> None:
    """Answer requests on a socket until it is closed."""
    # tvm-ffi imports PyTorch where it is installed; a worker has no use for it, and it costs a second.
    sys.modules["torch"] = None  # type: ignore[assignment]
    from tvm_ext.tuners.measure import worker

    worker.warm_up()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # workers are not waited for
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the tuning process's to handle
    connection = socket.socket(fileno=descriptor)
    connection.sendall(b"r")
    while True:
        message, descriptors, _, _ = socket.recv_fds(connection, 8, 1)
        if not message:
            return
        (memory_bytes,) = struct.unpack("q", message)
        server = os.getpid()
        process = os.fork()
        if process == 0:
            connection.close()
            code = 1
            with suppress(BaseException):
                _become_worker(server, memory_bytes)
                worker.work(socket.socket(fileno=descriptors[0]))
                code = 0
            os._exit(code)
        for received in descriptors:
            os.close(received)
        connection.sendall(struct.pack("q", process))


def _become_worker(server: int, memory_bytes: int) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != server:  # it ended in between
        os._exit(1)
    quiet = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(quiet, stream)
    if memory_bytes:
        with open("/proc/self/statm") as file:
            held = int(file.read().split()[0]) * resource.getpagesize()
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        wanted = held + memory_bytes if hard == resource.RLIM_INFINITY else min(held + memory_bytes, hard)
        resource.setrlimit(resource.RLIMIT_AS, (wanted, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


if __name__ == "__main__":
    serve(int(sys.argv[1]))
