"""Addresses and errors; sessions with trackers and servers are in tests/tuners/measure/test_remote.py."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from tvm_ext.errors import OptionError, RemoteError
from tvm_ext.system.rpc import Address, connect_server, connect_tracker, one_line, parse_address, servers


@pytest.mark.parametrize("text", ["", "host", "host:", ":1", "host:0", "host:65536", "host:x", "host:-1"])
def test_addresses(text: str) -> None:
    with pytest.raises(OptionError, match="is not of the form HOST:PORT"):
        parse_address(text)
    assert parse_address("[::1]:80") == Address("::1", 80)
    assert str(parse_address("board.local:9190")) == "board.local:9190"


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """Something that listens and is no RPC server: nobody answers, unless a test does."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


def address_of(listener: socket.socket) -> Address:
    return Address("127.0.0.1", listener.getsockname()[1])


def answer_with(listener: socket.socket, times: int, talk: Callable[[socket.socket], None]) -> None:
    """Take connections in a thread of its own."""

    def answer() -> None:
        for _ in range(times):
            talk(listener.accept()[0])

    threading.Thread(target=answer, daemon=True).start()


def test_what_listens_may_be_something_else(listener: socket.socket) -> None:
    def refuse(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        connection.close()

    answer_with(listener, 4, refuse)
    address = address_of(listener)
    with pytest.raises(RemoteError, match=rf"what listens at {address} is no RPC tracker: "):
        connect_tracker(address)
    with pytest.raises(RemoteError, match=rf"what listens at {address} does not open a session: "):
        connect_server(address, "a server")


def test_what_listens_may_say_nothing(listener: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tvm_ext.system.rpc.ANSWER_SECONDS", 0.3)
    address = address_of(listener)
    with pytest.raises(RemoteError, match=rf"what listens at {address} took the connection .* no RPC tracker does"):
        connect_tracker(address)
    with pytest.raises(RemoteError, match=rf"what listens at {address} took .* somebody else.* or start a server"):
        connect_server(address, "a server")


def test_a_tracker_may_fall_silent(listener: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tvm_ext.system.rpc.ANSWER_SECONDS", 0.3)
    kept = []

    def greet(connection: socket.socket) -> None:
        kept.append(connection)
        connection.sendall(connection.recv(4))

    answer_with(listener, 2, greet)  # the first connection only finds out whether somebody listens
    address = address_of(listener)
    with pytest.raises(RemoteError, match=rf"what listens at {address} is no RPC tracker: .*timed out"):
        servers(address, "key")


@pytest.mark.parametrize(("text", "line"), [("", "ValueError"), ("a\n\nb c\n", "b c"), ("x" * 300, "x" * 200)])
def test_the_last_line_of_a_message_says_what_was_wrong(text: str, line: str) -> None:
    assert one_line(ValueError(text)) == line
