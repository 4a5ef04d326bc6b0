"""The server that a board runs: its accelerator for other machines, through TVM's RPC.

Every session is a process of its own that opens the device, and gives everything back when it ends.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable
from functools import partial
from typing import Any

from tvm_ext.errors import MissingPackageError, RemoteError
from tvm_ext.rpc import Address, one_line
from tvm_ext.vta.board_device import Device
from tvm_ext.vta.board_rpc import BoardFunctions

PR_SET_PDEATHSIG = 1


def start_server(
    open_device: Callable[[], Device], host: str, port: int, tracker: Address | None = None, key: str = ""
) -> Any:
    """Start a server in a process of its own.

    Parameters
    ----------
    open_device : callable
        Opens the accelerator, in each session anew; can be pickled.
    host, port : str, int
        Where to listen.
    tracker : Address, optional
        Tracker to register at, as ``key``.
    key : str

    Returns
    -------
    tvm.rpc.Server
        Ends with ``terminate()``, or with this process.

    Raises
    ------
    RemoteError
        If the port is taken.
    MissingPackageError
        If a package that TVM's RPC server needs is not installed.
    """
    from tvm import rpc

    try:
        return rpc.Server(
            host,
            port=port,
            port_end=port + 1,
            tracker_addr=(tracker.host, tracker.port) if tracker else None,
            key=key if tracker else "",  # without a tracker a key would have to be known to every client
            server_init_callback=partial(_prepare, open_device, os.getpid()),
            silent=True,
        )
    except ImportError as error:
        raise MissingPackageError(f"TVM's RPC server needs {error.name}: pip install 'tvm-ext[tune]'") from None
    except (OSError, ValueError, RuntimeError) as error:
        raise RemoteError(
            f"cannot listen at {host}:{port}: {one_line(error)}; choose another --host or --port"
        ) from None


def _prepare(open_device: Callable[[], Device], starter: int) -> None:
    """Register what is served, and make this process and its sessions end with the one that started it."""
    _end_with_parent()
    if os.getppid() != starter:
        os._exit(1)
    os.register_at_fork(after_in_child=_end_with_parent)
    BoardFunctions(open_device).register()


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
