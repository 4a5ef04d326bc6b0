"""Addresses and errors; sessions with trackers and servers are in tests/tuners/measure/test_remote.py."""

from __future__ import annotations

import socket
import threading

import pytest

from tvm_ext.errors import OptionError, RemoteError
from tvm_ext.system.rpc import Address, connect_server, connect_tracker, one_line, parse_address, servers


@pytest.mark.parametrize("text", ["", "host", "host:", ":1", "host:0", "host:65536", "host:x", "host:-1"])
def test_addresses(text: str) -> None:
    with pytest.raises(OptionError, match="is not of the form HOST:PORT"):
        parse_address(text)
    assert parse_address("[::1]:80") == Address("::1", 80)
    assert str(parse_address("board.local:9190")) == "board.local:9190"


def test_what_listens_may_be_something_else() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = Address("127.0.0.1", listener.getsockname()[1])

        def answer() -> None:
            for _ in range(4):
                connection, _ = listener.accept()
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                connection.close()

        threading.Thread(target=answer, daemon=True).start()
        with pytest.raises(RemoteError, match=rf"what listens at {address} is no RPC tracker: "):
            connect_tracker(address)
        with pytest.raises(RemoteError, match=rf"what listens at {address} does not open a session: "):
            connect_server(address, "a server")


def test_what_listens_may_say_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tvm_ext.system.rpc.ANSWER_SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = Address("127.0.0.1", listener.getsockname()[1])
        with pytest.raises(RemoteError, match=rf"what listens at {address} took the connection .* no RPC tracker does"):
            connect_tracker(address)
        with pytest.raises(RemoteError, match=rf"what listens at {address} took .* somebody else.* or start a server"):
            connect_server(address, "a server")


def test_a_tracker_may_fall_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tvm_ext.system.rpc.ANSWER_SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = Address("127.0.0.1", listener.getsockname()[1])
        kept = []

        def answer() -> None:
            for _ in range(2):  # the first only finds out whether somebody listens
                connection, _ = listener.accept()
                kept.append(connection)
                connection.sendall(connection.recv(4))

        threading.Thread(target=answer, daemon=True).start()
        with pytest.raises(RemoteError, match=rf"what listens at {address} is no RPC tracker: .*timed out"):
            servers(address, "key")


@pytest.mark.parametrize(("text", "line"), [("", "ValueError"), ("a\n\nb c\n", "b c"), ("x" * 300, "x" * 200)])
def test_the_last_line_of_a_message_says_what_was_wrong(text: str, line: str) -> None:
    assert one_line(ValueError(text)) == line
