"""Ctrl-C and other requests to stop: one line, nothing left behind, and soon, even in the middle of C++ code.

Python runs a signal handler only between two of its own instructions; code generation can take minutes in one call of
C++. So a second thread watches too, and ends the process when the first has not done so in time.

The solver Z3, which TVM asks for proofs, replaces the handler of SIGINT while it runs and swallows what comes. So
SIGINT is blocked, and a third thread that waits for it sends SIGURG, which nobody else uses, in its place.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
GRACE_SECONDS = 1.0

_SUBSTITUTE = signal.SIGURG
_HANDLED = (_SUBSTITUTE, signal.SIGTERM, signal.SIGHUP)

# Column 0 of an empty line, cursor visible: a progress display may have been cut short.
_RESTORE_TERMINAL = "\r\x1b[K\x1b[?25h"

_received: int | None = None
_stderr = 2
_mute: Callable[[], None]
_said = threading.Lock()


def install(stderr: int = 2, mute: Callable[[], None] = lambda: None) -> None:
    """From now on, a signal of :data:`SIGNALS` raises KeyboardInterrupt, and ends the process if that does not.

    Parameters
    ----------
    stderr : int
        File descriptor for the line that says so.
    mute : callable
        Called first, to keep away what C++ code says of objects cut short, which helps nobody.
    """
    global _stderr, _mute
    _stderr, _mute = stderr, mute
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # nohup and background jobs ignore some, on purpose
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        threading.Thread(target=_substitute, name="interrupt-substitute", daemon=True).start()
    for number in _HANDLED:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _on_signal)
    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    threading.Thread(target=_watch, args=(read,), name="interrupt-watch", daemon=True).start()


def received() -> bool:
    """Tell whether a request to stop has come, whatever became of the exception."""
    return _received is not None


def exit_code() -> int:
    """Code of a process that was asked to stop: 128 plus the number of the signal, 130 for Ctrl-C."""
    return 128 + (_received or signal.SIGINT)


def finish() -> None:
    """Say, once, that the command was interrupted; clean up what is still there."""
    from tvm_ext.system.cleanup import end_children, remove_temporaries

    end_children()
    remove_temporaries()
    if _said.acquire(blocking=False):
        with contextlib.suppress(OSError):
            os.write(_stderr, f"{_RESTORE_TERMINAL if os.isatty(_stderr) else ''}tvm-ext: interrupted\n".encode())


def ignore() -> None:
    """Ignore further requests; for the moments in which the process ends anyway."""
    for number in (*SIGNALS, _SUBSTITUTE):
        signal.signal(number, signal.SIG_IGN)


def _on_signal(number: int, frame: FrameType | None) -> None:
    global _received
    if _received is None:
        _received = _meant(number)
        _mute()
        sys.stderr = open(os.devnull, "w")  # Python tells of exceptions in destructors, for one
        raise KeyboardInterrupt


def _watch(read: int) -> None:
    global _received
    number = 0
    while number not in _HANDLED:  # other signals that Python handles come by here as well
        number = os.read(read, 1)[0]
    select.select([read], [], [], GRACE_SECONDS)  # a second request ends the wait
    _received = _meant(number)
    finish()
    os._exit(exit_code())


def _substitute() -> None:
    while True:
        signal.sigwait([signal.SIGINT])
        # To the main thread: only there does it end a wait.
        signal.pthread_kill(threading.main_thread().ident or 0, _SUBSTITUTE)


def _meant(number: int) -> int:
    return signal.SIGINT if number == _SUBSTITUTE else number
