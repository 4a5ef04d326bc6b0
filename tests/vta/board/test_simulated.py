from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.vta.recordings import GOLDEN, NAMES
from tvm_ext.backends.vta.board import simulated
from tvm_ext.backends.vta.board.board import Board
from tvm_ext.backends.vta.board.registers import BaseAddresses
from tvm_ext.backends.vta.board.simulated import simulated_device
from tvm_ext.backends.vta.config import load_config
from tvm_ext.backends.vta.simulate.replay import load_recording
from tvm_ext.errors import VTADeviceError


@pytest.mark.parametrize("path", GOLDEN, ids=NAMES)
def test_recordings(path: Path) -> None:
    recording = load_recording(path)
    board = Board(simulated_device(recording.config, 8 << 20))
    result = board.run(recording.words, recording.before, recording.base, portable=False)
    np.testing.assert_array_equal(result.dram, recording.after)


def test_long_streams_run_on_the_fast_simulator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulated, "FEW_STEPS", 0)
    monkeypatch.setattr(simulated, "ReferenceSimulator", None)
    recording = load_recording(GOLDEN[0])
    board = Board(simulated_device(recording.config, 1 << 20))
    board._tested = True
    result = board.run(recording.words, recording.before, recording.base)
    np.testing.assert_array_equal(result.dram, recording.after)


def test_what_is_refused_is_said() -> None:
    device = simulated_device(load_config("pynq"), 1 << 16)
    address = device.allocate(64)
    device.write(address, np.full(64, 7, np.uint8))
    with pytest.raises(VTADeviceError, match=r"simulated board of 1x16.*: instruction 0: opcode 7 is not defined"):
        device.run(address, 4, BaseAddresses(), 1.0)
