"""TVM's RPC server in a process of its own that ends with its starter, and that no session can take down."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from tvm_ext.errors import MissingPackageError, RemoteError
from tvm_ext.system.rpc import Address, one_line

PR_SET_PDEATHSIG = 1


def start_server(
    host: str,
    port: int,
    tracker: Address | None = None,
    key: str = "",
    register: Callable[[], None] = lambda: None,
    seen_as: str | None = None,
) -> Any:
    """Start a server.

    Parameters
    ----------
    host, port : str, int
        Where to listen; with a tracker, the next free port is taken where this one is not.
    tracker : Address, optional
        Tracker to register at, as ``key``.
    key : str
    register : callable
        Registers further functions to serve; called once in the server's process. It can be pickled.
    seen_as : str, optional
        Address of this machine for those whom the tracker sends; the one that the tracker sees by default.

    Returns
    -------
    tvm.rpc.Server
        Ends with ``terminate()``, or with the thread that called this.

    Raises
    ------
    RemoteError
        If the port is taken.
    MissingPackageError
        If a package that TVM's RPC server needs is not installed.
    """
    try:
        from tvm import rpc

        return rpc.Server(
            host,
            port=port,
            port_end=port + (100 if tracker else 1),
            tracker_addr=(tracker.host, tracker.port) if tracker else None,
            key=key if tracker else "",  # without a tracker, every client would have to know the key
            custom_addr=seen_as,
            server_init_callback=partial(_prepare, register, os.getpid()),
            silent=True,
        )
    except ImportError as error:
        raise MissingPackageError(f"TVM's RPC server needs {error.name}: pip install 'tvm-ext[tune]'") from None
    except (OSError, ValueError, RuntimeError) as error:
        raise RemoteError(
            f"cannot listen at {host}:{port}: {one_line(error)}; choose another --host or --port"
        ) from None


@contextmanager
def keep_serving(server: Any) -> Iterator[None]:
    """Serve after what is done within, until interrupted; the server ends in any case.

    Parameters
    ----------
    server : tvm.rpc.Server

    Raises
    ------
    RemoteError
        If the server's process ends by itself.
    """
    try:
        yield
        server.proc.join()
        raise RemoteError("the server's process ended by itself, or was ended; start it again")
    finally:
        server.terminate()


def _prepare(register: Callable[[], None], starter: int) -> None:
    """Register what is served, and make this process and its sessions end with the one that started it."""
    _end_with_parent()
    if os.getppid() != starter:
        os._exit(1)
    os.register_at_fork(after_in_child=_guard_session)
    register()


def _guard_session() -> None:
    """Let a child carry on with the session, and end well whatever becomes of it.

    TVM's server stops listening when a session's process ends otherwise, as it does after a crash.
    """
    _end_with_parent()
    guard = os.getpid()
    session = ctypes.PyDLL(None).fork()  # not os.fork, which would come by here again
    if session == 0:
        _end_with_parent()
        if os.getppid() != guard:
            os._exit(1)
        return
    if session > 0:
        ctypes.CDLL(None).waitpid(session, None, 0)
    os._exit(0)


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
