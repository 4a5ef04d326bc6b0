"""TVM's RPC: addresses, and sessions with a time limit and errors that say what is missing."""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm_ext.errors import OptionError, RemoteError

CONNECT_SECONDS = 5.0

ANSWER_SECONDS = 30.0
"""Time limit of what opens a session; TVM's own client waits for ever for one that listens and says nothing."""


@dataclass(frozen=True)
class Address:
    """Where a tracker or a server listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """Parse ``HOST:PORT``.

    Raises
    ------
    OptionError
        If it has another form.
    """
    host, separator, port = text.rpartition(":")
    if not separator or not host or not (port.isascii() and port.isdigit()) or not 0 < int(port) < 65536:
        raise OptionError(f"{text!r} is not of the form HOST:PORT, for example 192.168.2.99:9091")
    return Address(host.removeprefix("[").removesuffix("]"), int(port))


def reach(address: Address, what: str) -> None:
    """Find out whether something listens at an address.

    Raises
    ------
    RemoteError
        If nothing does; ``what`` is its name and how to start it.
    """
    try:
        socket.create_connection((address.host, address.port), CONNECT_SECONDS).close()
    except OSError as error:
        reason = error.strerror or str(error)
        raise RemoteError(f"nothing listens at {address} ({reason}); start {what}") from None


def connect_tracker(tracker: Address) -> Any:
    """Connect to a tracker, a ``tvm.rpc.TrackerSession``.

    Raises
    ------
    RemoteError
        If there is none.
    """
    from tvm import rpc

    reach(tracker, f"a tracker there: python -m tvm.exec.rpc_tracker --host 0.0.0.0 --port {tracker.port}")
    try:
        return _in_time(lambda: rpc.connect_tracker(tracker.host, tracker.port), ANSWER_SECONDS)
    except TimeoutError:
        raise RemoteError(
            f"what listens at {tracker} took the connection and did not answer for {ANSWER_SECONDS:g} s, as no RPC "
            f"tracker does; give the address of one: python -m tvm.exec.rpc_tracker --host 0.0.0.0 --port PORT"
        ) from None
    except (RuntimeError, OSError) as error:
        raise RemoteError(f"what listens at {tracker} is no RPC tracker: {one_line(error)}") from None


def servers(tracker: Address, key: str) -> int:
    """Count the servers that a tracker has for a key, busy ones too.

    Raises
    ------
    RemoteError
        If there is no tracker, or it has none; the message names the keys that it has.
    """
    session = connect_tracker(tracker)
    session._sock.settimeout(ANSWER_SECONDS)
    try:
        summary = session.summary()
    except (RuntimeError, OSError, ValueError) as error:
        raise RemoteError(f"what listens at {tracker} is no RPC tracker: {one_line(error)}") from None
    finally:
        session.close()
    keys = [str(server["key"]).partition(":")[2] for server in summary["server_info"]]
    if key not in keys:
        known = ", ".join(sorted(set(keys))) or "no server at all"
        raise RemoteError(
            f"the tracker at {tracker} has no server with key {key!r}; it has {known}; start one on each machine: "
            f"python -m tvm.exec.rpc_server --tracker {tracker} --key {key}"
        )
    return keys.count(key)


def request_session(tracker: Address, key: str, seconds: float, session_seconds: float = 0.0) -> Any:
    """Wait for a free server.

    Parameters
    ----------
    tracker : Address
    key : str
    seconds : float
        Time limit.
    session_seconds : float
        The server ends the session after this time; 0: never.

    Returns
    -------
    tvm.rpc.RPCSession

    Raises
    ------
    RemoteError
        If there is no tracker, no server with this key, or none is free in time.
    """
    servers(tracker, key)
    session = connect_tracker(tracker)
    # TVM's own client waits for ever for a server that is free.
    deadline = time.monotonic() + seconds
    session._sock.settimeout(seconds)
    try:
        return _in_time(
            lambda: session.request(key, session_timeout=session_seconds, max_retry=1), seconds + ANSWER_SECONDS
        )
    except TimeoutError:
        raise RemoteError(
            f"the tracker at {tracker} gave a server that took the connection and did not answer for "
            f"{ANSWER_SECONDS:g} s; start it again"
        ) from None
    except (RuntimeError, OSError) as error:
        if time.monotonic() >= deadline:
            raise RemoteError(
                f"no server with key {key!r} of the tracker at {tracker} was free for {seconds:g} s"
            ) from None
        raise RemoteError(f"the tracker at {tracker} gave a server that does not answer: {one_line(error)}") from None
    finally:
        session.close()


def connect_server(server: Address, what: str, session_seconds: float = 0.0) -> Any:
    """Connect to a server, a ``tvm.rpc.RPCSession``; see :func:`reach` for ``what``.

    Raises
    ------
    RemoteError
        If there is none, or it does not answer in :data:`ANSWER_SECONDS`.
    """
    from tvm import rpc

    reach(server, what)
    try:
        return _in_time(lambda: rpc.connect(server.host, server.port, session_timeout=session_seconds), ANSWER_SECONDS)
    except TimeoutError:
        raise RemoteError(
            f"what listens at {server} took the connection and did not answer for {ANSWER_SECONDS:g} s: it is busy "
            f"with somebody else's session, or no RPC server; try again later, or start {what}"
        ) from None
    except (RuntimeError, OSError) as error:
        raise RemoteError(f"what listens at {server} does not open a session: {one_line(error)}") from None


def _in_time(call: Callable[[], Any], seconds: float) -> Any:
    """Call something that may wait for ever in C++, in a thread that is left behind when it does.

    Raises
    ------
    TimeoutError
        If it has neither returned nor raised in time.
    """
    answers: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()

    def answer() -> None:
        try:
            answers.put((call(), None))
        except Exception as error:  # raised again below
            answers.put((None, error))

    threading.Thread(target=answer, name="rpc-connect", daemon=True).start()
    try:
        value, error = answers.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError from None
    if error is not None:
        raise error
    return value


def one_line(error: BaseException) -> str:
    """Return the last line of an error's message: TVM's messages end with what was wrong, after a trace."""
    return (str(error).strip().splitlines() or [type(error).__name__])[-1].strip()[-200:]
