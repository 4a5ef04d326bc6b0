"""An accelerator on another machine, through TVM's RPC: the functions that a board serves, and their other end.

Each function returns bytes, the first of which tells whether it went well; otherwise the error's sentence follows,
because TVM's RPC keeps no class of an error.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import astuple
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tvm_ext.backends.vta.board.device import Device
from tvm_ext.backends.vta.board.registers import BaseAddresses
from tvm_ext.backends.vta.config import VTAConfig
from tvm_ext.errors import TvmExtError, VTADeviceError
from tvm_ext.system.rpc import Address, connect_server, one_line, request_session

PREFIX = "tvm_ext.vta.board."
PROTOCOL = 1
CHUNK_BYTES = 8 << 20
_GOOD, _BAD = b"\0", b"\1"


class BoardFunctions:
    """What a board serves; the device is opened at the first call.

    Parameters
    ----------
    open_device : callable
    """

    def __init__(self, open_device: Callable[[], Device]) -> None:
        self._open = open_device
        self._opened: Device | None = None

    @property
    def device(self) -> Device:
        """The device; raises VTADeviceError if it cannot be opened."""
        if self._opened is None:
            self._opened = self._open()
        return self._opened

    def describe(self) -> bytes:
        """Version of these functions, and the configuration, as JSON."""
        return json.dumps({"protocol": PROTOCOL, "config": self.device.config.to_json()}).encode()

    def allocate(self, nbytes: int) -> bytes:
        """See :meth:`Device.allocate`."""
        return struct.pack("<Q", self.device.allocate(nbytes))

    def free(self, address: int) -> bytes:
        """See :meth:`Device.free`."""
        self.device.free(address)
        return b""

    def write(self, address: int, contents: bytes) -> bytes:
        """See :meth:`Device.write`."""
        self.device.write(address, np.frombuffer(contents, np.uint8))
        return b""

    def read(self, address: int, nbytes: int) -> bytes:
        """See :meth:`Device.read`."""
        return self.device.read(address, nbytes).tobytes()

    def run(self, address: int, count: int, bases: str, seconds: float) -> bytes:
        """See :meth:`Device.run`; the base addresses are a JSON list."""
        return struct.pack("<d", self.device.run(address, count, BaseAddresses(*json.loads(bases)), seconds))

    @classmethod
    def serve(cls, open_device: Callable[[], Device]) -> None:
        """Register the functions for a device; what :func:`tvm_ext.system.rpc_server.start_server` is to call."""
        cls(open_device).register()

    def register(self) -> None:
        """Make them known to TVM's RPC server in this process."""
        import tvm

        for name in ("describe", "allocate", "free", "write", "read", "run"):
            tvm.register_global_func(PREFIX + name, _answering(getattr(self, name)), override=True)


def _answering(function: Callable[..., bytes]) -> Callable[..., bytearray]:
    def answer(*arguments: Any) -> bytearray:
        try:
            return bytearray(_GOOD + function(*arguments))
        except TvmExtError as error:
            return bytearray(_BAD + str(error).encode())

    return answer


class RemoteDevice:
    """A device that another machine serves.

    Parameters
    ----------
    session : tvm.rpc.RPCSession
    place : str
        Where it is, for messages.

    Raises
    ------
    VTADeviceError
        If the machine serves no board, or serves it otherwise.
    """

    def __init__(self, session: Any, place: str) -> None:
        self._session, self._place = session, place
        self._functions: dict[str, Any] = {}
        description = json.loads(self._call("describe"))
        if description["protocol"] != PROTOCOL:
            raise VTADeviceError(
                f"the server at {place} speaks version {description['protocol']} of the board functions, this is "
                f"version {PROTOCOL}; install the same release of tvm-ext on both"
            )
        self.config = VTAConfig.from_json(description["config"], f"the configuration of {place}")

    def allocate(self, nbytes: int) -> int:
        """Return the address of a new buffer."""
        (address,) = struct.unpack("<Q", self._call("allocate", nbytes))
        return int(address)

    def free(self, address: int) -> None:
        """Give a buffer back."""
        self._call("free", address)

    def write(self, address: int, contents: NDArray[np.uint8]) -> None:
        """Copy bytes into a buffer."""
        for start in range(0, contents.size, CHUNK_BYTES):
            self._call("write", address + start, bytearray(contents[start : start + CHUNK_BYTES].tobytes()))

    def read(self, address: int, nbytes: int) -> NDArray[np.uint8]:
        """Copy bytes from a buffer."""
        parts = [
            self._call("read", address + start, min(CHUNK_BYTES, nbytes - start))
            for start in range(0, nbytes, CHUNK_BYTES)
        ]
        return np.frombuffer(b"".join(parts), np.uint8)

    def run(self, address: int, count: int, bases: BaseAddresses, seconds: float) -> float:
        """Run instructions to their end, and return the seconds that it took on the board."""
        (taken,) = struct.unpack("<d", self._call("run", address, count, json.dumps(astuple(bases)), float(seconds)))
        return float(taken)

    def close(self) -> None:
        """End the session; the server then gives all buffers back."""
        self._functions.clear()
        self._session = None

    def _call(self, name: str, *arguments: Any) -> bytes:
        try:
            if name not in self._functions:
                self._functions[name] = self._session.get_function(PREFIX + name)
            answer = bytes(self._functions[name](*arguments))
        except AttributeError:
            raise VTADeviceError(
                f"the server at {self._place} serves no VTA board; start it there with: tvm-ext vta serve"
            ) from None
        except (RuntimeError, OSError, ValueError) as error:
            raise VTADeviceError(
                f"the board at {self._place} did not answer {name!r}: {one_line(error)}; is its server still running?"
            ) from None
        if answer[:1] == _BAD:
            raise VTADeviceError(f"board at {self._place}: {answer[1:].decode()}")
        return answer[1:]


def connect(server: Address) -> RemoteDevice:
    """Connect to a board's server.

    Raises
    ------
    RemoteError, VTADeviceError
        If there is no server, or it serves no board.
    """
    return RemoteDevice(connect_server(server, "a board's server there: tvm-ext vta serve"), str(server))


def request(tracker: Address, key: str, seconds: float = 60.0) -> RemoteDevice:
    """Ask a tracker for a board.

    Parameters
    ----------
    tracker : Address
    key : str
        What its servers are registered as.
    seconds : float
        Time limit for waiting for a free one.

    Raises
    ------
    RemoteError, VTADeviceError
        If there is no tracker, no free server in time, or it serves no board.
    """
    return RemoteDevice(request_session(tracker, key, seconds), f"{key} of {tracker}")
