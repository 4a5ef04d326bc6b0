"""Keeps the log of TVM's C++ code off the terminal: its warnings are for developers, and come beside our one line.

File descriptor 2 becomes a pipe to a small process that passes on everything but warnings. It is a process, so that
nothing is lost when this one crashes: what C++ said last is then what matters most.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys

# [12:34:56] /project/src/relax/ir/block_builder.cc:67: Warning: ...
_WARNING = re.compile(rb"^\[\d\d:\d\d:\d\d\] \S+:\d+: (Warning|Info|Debug): ")
_END, _MUTE = b"\0end\n", b"\0mute\n"
_CRASHED = (
    b"tvm-ext: error: the process ended without notice: it crashed in native code, or was killed "
    b"(out of memory?); the next command removes what it may have left beside the output\n"
)
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StderrFilter:
    """The filter while it is in place; ``sys.stderr`` goes past it, straight to where stderr went before.

    To be made before the process has a second thread.

    Attributes
    ----------
    stderr : int
        File descriptor of what was stderr before.
    """

    def __init__(self) -> None:
        if sys.stderr is not None:
            sys.stderr.flush()
        read, write = os.pipe()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # an interrupt is not for the new process
        self._process = os.fork()
        if self._process == 0:
            os.close(write)
            _pass_on(read)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(read)
        self.stderr = os.dup(2)
        os.dup2(write, 2)
        os.close(write)
        if sys.stderr is not None:
            sys.stderr = open(self.stderr, "w", buffering=1, errors="backslashreplace", closefd=False)

    def mute(self) -> None:
        """From now on, pass on nothing."""
        with contextlib.suppress(OSError):
            os.write(2, _MUTE)
        # The filter ends now; a write to a pipe without a reader would fail.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 2)
        os.close(nowhere)

    def close(self) -> None:
        """Put stderr back, once everything was passed on."""
        with contextlib.suppress(OSError):
            os.write(2, _END)
        os.dup2(self.stderr, 2)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._process, 0)


def _pass_on(read: int) -> None:
    """Run in the process that filters, until nobody can write to the pipe any more, or the end is announced."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # one that ends all children ends this one too
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    try:
        with open(read, "rb") as stream:
            for line in stream:
                if line.endswith(_MUTE):
                    os._exit(0)
                if not _WARNING.match(line):
                    os.write(2, line.removesuffix(_END))
                if line.endswith(_END):
                    os._exit(0)
        os.write(2, _CRASHED)
    finally:
        os._exit(0)
