from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.vta.board.test_memory import udmabuf
from tvm_ext.backends.vta.board.device import open_device
from tvm_ext.backends.vta.board.memory import udmabuf_memory
from tvm_ext.backends.vta.board.registers import BaseAddresses, MappedRegisters, SynthesisControl
from tvm_ext.backends.vta.config import load_config
from tvm_ext.errors import VTADeviceError

PYNQ = load_config("pynq")
FETCH = 0x43C00000


def physical(folder: Path) -> Path:
    """A file with a hole up to the registers of the Pynq."""
    path = folder / "mem"
    with open(path, "wb") as file:
        file.truncate(FETCH + 0x4000)
    return path


def test_mapped_registers_are_words_of_physical_memory(tmp_path: Path) -> None:
    path = physical(tmp_path)
    registers = MappedRegisters(SynthesisControl.blocks(FETCH), str(path))
    control = SynthesisControl(registers, FETCH)
    control.start(0x16500000, 3, BaseAddresses(1, 2, 3, 4, 5))
    with open(path, "r+b") as file:
        file.seek(FETCH)
        words = np.frombuffer(file.read(0x4000), "<u4").reshape(4, -1)
        expected = np.zeros_like(words)
        expected[0, [0, 4, 6]] = (0x01, 3, 0x16500000)
        expected[1, [0, 4, 6]] = (0x81, 3, 2)
        expected[2, [0, 8, 10]] = (0x81, 1, 4)
        expected[3, [0, 4]] = (0x81, 5)
        np.testing.assert_array_equal(words, expected)
        assert not control.finished()
        file.seek(FETCH + 0x2018)
        file.write(b"\1\0\0\0")
    assert control.finished()


def test_registers_that_cannot_be_mapped(tmp_path: Path) -> None:
    (tmp_path / "short").write_bytes(bytes(4096))
    with pytest.raises(VTADeviceError, match=r"cannot map the registers at 0x43c00000 .* TARGET must be the board's"):
        MappedRegisters([FETCH], str(tmp_path / "short"))
    with pytest.raises(VTADeviceError, match=r"cannot open .*none: .*reach it from here with --rpc"):
        MappedRegisters([FETCH], str(tmp_path / "none"))


def test_only_one_process_drives_a_board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, files = physical(tmp_path), udmabuf(tmp_path / "u")
    monkeypatch.setattr("tvm_ext.backends.vta.board.device.memory_opener", lambda _: lambda: udmabuf_memory(**files))
    device = open_device(PYNQ, registers=str(path))
    other = f"import fcntl; fcntl.flock(open({str(path)!r}), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    run = [sys.executable, "-c", other]
    assert subprocess.run(run, stderr=subprocess.DEVNULL, timeout=60, check=False).returncode
    with pytest.raises(VTADeviceError, match=r"another process drives the accelerator.* use it with --rpc"):
        open_device(PYNQ, registers=str(path))
    assert device.allocate(5) == 0x16500000
    device.close()
    open_device(PYNQ, registers=str(path)).close()


def test_configurations_that_are_no_boards() -> None:
    with pytest.raises(
        VTADeviceError, match=r"TARGET of the configuration is 'sim', which is no board; expected one of"
    ):
        open_device(load_config("sim"))
    with pytest.raises(VTADeviceError, match="'tsim'"):
        open_device(replace(PYNQ, target="tsim"))
