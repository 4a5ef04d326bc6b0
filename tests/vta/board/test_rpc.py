from __future__ import annotations

import json
import os
import signal
import socket
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from tests.commands import Commands
from tests.vta.recordings import GOLDEN
from tvm_ext.backends.vta.board.board import Board
from tvm_ext.backends.vta.board.registers import BaseAddresses
from tvm_ext.backends.vta.board.rpc import BoardFunctions, RemoteDevice, connect
from tvm_ext.backends.vta.board.simulated import simulated_device
from tvm_ext.backends.vta.config import load_config
from tvm_ext.backends.vta.simulate.replay import load_recording
from tvm_ext.errors import RemoteError, VTADeviceError, VTAProgramError
from tvm_ext.system.rpc import Address

ISA1 = next(path for path in GOLDEN if path.stem == "70_isa1_tiny")


@pytest.fixture
def remote(monkeypatch: pytest.MonkeyPatch) -> RemoteDevice:
    """A device behind the functions that a server registers, in this process; transfers are cut into small pieces."""
    from tvm import rpc

    monkeypatch.setattr("tvm_ext.backends.vta.board.rpc.CHUNK_BYTES", 1000)
    BoardFunctions(lambda: simulated_device(load_config("pynq"), 1 << 20)).register()
    return RemoteDevice(rpc.LocalSession(), "here")


def test_programs_through_the_functions(remote: RemoteDevice) -> None:
    recording = load_recording(GOLDEN[0])
    board = Board(remote)
    assert board.config == load_config("pynq")
    for _ in range(2):
        result = board.run(recording.words, recording.before, recording.base)
        np.testing.assert_array_equal(result.dram, recording.after)
    with pytest.raises(VTAProgramError, match="a stream ends with its only FINISH"):
        board.run(recording.words[:-1], recording.before, recording.base)
    remote.close()


def test_the_functions_are_those_of_the_device(remote: RemoteDevice) -> None:
    first, second = remote.allocate(5000), remote.allocate(1)
    contents = np.random.default_rng(0).integers(0, 256, 5000, np.uint8)
    remote.write(first, contents)
    np.testing.assert_array_equal(remote.read(first, 5000), contents)
    np.testing.assert_array_equal(remote.read(first + 4001, 7), contents[4001:4008])
    remote.write(second, np.zeros(0, np.uint8))
    assert remote.read(second, 0).size == 0
    remote.free(second)
    for call, message in (
        (lambda: remote.free(second), "freed before, or never given"),
        (lambda: remote.read(first + 4999, 2), "2 bytes at address .* are not within one buffer"),
        (lambda: remote.allocate(1 << 30), "no room for a buffer of 1073741824 bytes"),
        (lambda: remote.run(first, 2, BaseAddresses(), 1.0), "simulated board of 1x16"),
    ):
        with pytest.raises(VTADeviceError, match=f"board at here: .*{message}"):
            call()


def test_servers_that_serve_something_else(remote: RemoteDevice) -> None:
    import tvm
    from tvm import rpc

    newer = json.dumps({"protocol": 2}).encode()
    tvm.register_global_func("tvm_ext.vta.board.describe", lambda: bytearray(b"\0" + newer), override=True)
    with pytest.raises(
        VTADeviceError, match=r"at here speaks version 2 .* this is version 1; install the same release"
    ):
        RemoteDevice(rpc.LocalSession(), "here")
    tvm.register_global_func("tvm_ext.vta.board.describe", lambda: 1 // 0, override=True)
    with pytest.raises((VTADeviceError, ZeroDivisionError)):
        RemoteDevice(rpc.LocalSession(), "here")


def descendants(process: int) -> set[int]:
    return {child.pid for child in psutil.Process(process).children(recursive=True)}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.slow
def test_a_server_and_its_clients(commands: Commands) -> None:
    port = free_port()
    serve = ("vta", "serve", "--simulated", "--config", "pynq_0.0.1", "--port", port)
    server = commands.start(*map(str, serve))
    deadline = time.monotonic() + 60
    while "serving" not in server.read("stdout"):
        assert time.monotonic() < deadline, server.read("stderr")
        time.sleep(0.05)
    processes = descendants(server.pid)
    assert processes

    result = commands("vta", "board", "--rpc", f"127.0.0.1:{port}", ISA1)
    assert (result.code, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert lines[0] == "VTA 1x16_i8w8a32_15_15_18_17, HW_VER 0.0.1: self-test passed"
    assert lines[1].startswith(f"{ISA1}: PASS (10 instructions, ")

    device = connect(Address("127.0.0.1", port))
    address = device.allocate(10)
    processes |= descendants(server.pid)  # that of the session as well
    os.kill(server.pid, signal.SIGTERM)
    assert server.wait(30).code == 128 + signal.SIGTERM
    with pytest.raises(
        VTADeviceError, match=r"at 127\.0\.0\.1:\d+ did not answer 'read': .* is its server still running"
    ):
        device.read(address, 1)
    device.close()
    deadline = time.monotonic() + 10
    while alive := {process for process in processes if psutil.pid_exists(process)}:
        assert time.monotonic() < deadline, alive
        time.sleep(0.05)
    with pytest.raises(RemoteError, match=r"nothing listens at .* \(Connection refused\); start a board's server"):
        connect(Address("127.0.0.1", port))


def test_usage(commands: Commands, tmp_path: Path) -> None:
    commands("vta", "board", "--rpc", "here").error(2, "'here' is not of the form HOST:PORT")
    commands("vta", "board", "--rpc", "a:1", "--tracker", "b:2").error(2, "give one of them")
    for option in (["--simulated"], ["--config", "pynq"], ["--memory", "libcma"]):
        commands("vta", "board", "--rpc", "a:1", *option).error(2, f"{option[0]} is about this machine", "--rpc")
    commands("vta", "board", "--memory", "nothing").error(16, "memory 'nothing' is not known")
    commands("vta", "board", "--config", "sim").error(16, "TARGET of the configuration is 'sim', which is no board")
    commands("vta", "serve", "--tracker", f"127.0.0.1:{free_port()}").error(17, "start a tracker there: python -m")
    bad = tmp_path / "changed.npz"
    with np.load(ISA1) as arrays:
        contents = {name: arrays[name] for name in arrays.files}
    contents["dram_after"][-1] ^= 1
    np.savez(bad, **contents)
    result = commands("vta", "board", "--simulated", "--config", "pynq_0.0.1", bad)
    result.error(8, "the board differs from the recording first at address", "1 bytes differ")
