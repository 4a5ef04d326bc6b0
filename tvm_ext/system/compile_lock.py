"""One compilation at a time in a process: TVM keeps what it is building in variables that all threads share.

``te.tag_scope`` and ``relax.BlockBuilder`` are two of them: a second thread that imports or legalises a model meanwhile
finds the first one's state and takes it for its own. Running a compiled model needs none of it, and never waits here.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import ParamSpec, TypeVar

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

_lock = threading.RLock()


@contextmanager
def one_compilation() -> Iterator[None]:
    """Wait until no other thread compiles, and keep others waiting; the thread that compiles may enter again.

    The wait of a main thread ends with KeyboardInterrupt at Ctrl-C, like any wait in Python.
    """
    lock = _lock  # after a fork in the middle, what is left is the lock that was entered
    with lock:
        yield


def one_at_a_time(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Make a function that imports, lowers or builds modules safe to be called from several threads."""

    @wraps(function)
    def exclusive(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        with one_compilation():
            return function(*args, **kwargs)

    return exclusive


def _renew() -> None:
    """Make a new lock in a forked child: the thread that held the old one is not there to release it."""
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_renew)
