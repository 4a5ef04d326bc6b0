"""Messages between the tuning process and its workers: pickled values, each after its length, on a socket."""

from __future__ import annotations

import pickle
import socket
import struct
import time
from typing import Any

_LENGTH = struct.Struct("<q")


class Closed(Exception):
    """The other side is gone."""


def send(connection: socket.socket, value: Any) -> None:
    """Send one value.

    Raises
    ------
    Closed
        If the other side is gone.
    """
    payload = pickle.dumps(value)
    try:
        connection.sendall(_LENGTH.pack(len(payload)) + payload)
    except OSError:
        raise Closed from None


def receive(connection: socket.socket, timeout: float | None = None) -> Any:
    """Receive one value.

    Parameters
    ----------
    timeout : float, optional
        Seconds until the whole value has to be there.

    Raises
    ------
    Closed
        If the other side is gone.
    TimeoutError
        If it takes too long.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    (length,) = _LENGTH.unpack(_exactly(connection, _LENGTH.size, deadline))
    return pickle.loads(_exactly(connection, length, deadline))


def _exactly(connection: socket.socket, count: int, deadline: float | None) -> bytes:
    received = bytearray()
    while len(received) < count:
        if deadline is None:
            connection.settimeout(None)
        else:
            connection.settimeout(max(deadline - time.monotonic(), 1e-3))
        try:
            part = connection.recv(min(count - len(received), 1 << 20))
        except TimeoutError:
            raise
        except OSError:
            raise Closed from None
        if not part:
            raise Closed
        received += part
    return bytes(received)
