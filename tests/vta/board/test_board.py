from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NoReturn

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.vta.fake_board import FakeBoard, FakeGeneratorBoard, FakeMemory
from tests.vta.random_programs import random_program
from tests.vta.recordings import GOLDEN
from tvm_ext.backends.vta.board.board import Board
from tvm_ext.backends.vta.board.registers import BaseAddresses
from tvm_ext.backends.vta.config import VTAConfig, load_config
from tvm_ext.backends.vta.isa.assembler import assemble_program
from tvm_ext.backends.vta.isa.instructions import encode_program
from tvm_ext.backends.vta.simulate.reference import ReferenceSimulator
from tvm_ext.backends.vta.simulate.replay import Recording, load_recording
from tvm_ext.errors import VTADeviceError, VTAProgramError

PYNQ = load_config("pynq")
TINY = load_recording(GOLDEN[0])
ZERO = BaseAddresses()
ADDRESS_TOP = 1 << 32


def on_board(recording: Recording, config: VTAConfig, memory: FakeMemory | None = None) -> tuple[FakeBoard, Board]:
    fake = FakeGeneratorBoard(config) if config.target == "de10nano" else FakeBoard(config)
    fake.memory = memory or fake.memory
    return fake, Board(fake.device(config))


@pytest.mark.parametrize("target", ["pynq", "ultra96", "zcu104", "de10nano"])
@pytest.mark.parametrize(
    "stem", ["01_tiny_end_to_end", "28_tokens_double_buffer", "32_conv2d_3x3_pad1", "70_isa1_tiny"]
)
def test_recordings_on_boards(target: str, stem: str) -> None:
    recording = load_recording(next(path for path in GOLDEN if path.stem == stem))
    config = replace(recording.config, target=target)
    fake, board = on_board(recording, config)
    before = fake.memory.dram.copy()
    result = board.run(recording.words, recording.before, recording.base)
    np.testing.assert_array_equal(result.dram, recording.after)
    assert fake.runs == 3, "two streams of the self-test, then the program"
    assert not fake.memory.live
    assert 0 < result.seconds < 5
    # Nothing but buffers was touched: the pages between them are as they were.
    pages = (fake.memory.dram != before).reshape(-1, 4096).any(axis=1)
    assert not pages[0]
    assert not (pages[:-1] & pages[1:]).all()


@settings(max_examples=25)
@given(st.integers(0, 2**32 - 1), st.sampled_from(["pynq", "ultra96_0.0.1", "de10nano"]))
def test_random_programs_give_on_boards_what_they_give_on_the_simulator(seed: int, name: str) -> None:
    config = load_config(name)
    program = random_program(np.random.default_rng(seed), config)
    _, board = on_board(TINY, config)
    expected = ReferenceSimulator(config).run(program.words, program.dram, program.base).dram
    board._tested = True
    got = board.run(program.words, program.dram, program.base, portable=False).dram
    np.testing.assert_array_equal(got, expected)


def test_every_register_access_of_a_run() -> None:
    fake, board = on_board(TINY, PYNQ)
    with board.load(TINY.words, TINY.before, TINY.base) as loaded:
        fake.log.clear()
        loaded.run()
        instructions = fake.memory.live[1].address
    assert fake.log == [
        ("write", 0x10, len(TINY.words)),
        ("write", 0x18, instructions),
        *[("write", register, 0) for register in (0x1010, 0x1018, 0x2020, 0x2028, 0x3010)],
        ("write", 0x0, 0x01),
        *[("write", block, 0x81) for block in (0x1000, 0x2000, 0x3000)],
        ("read", 0x2018, 0),
        ("read", 0x2018, 0),
    ]


def test_every_register_access_of_the_generators_design() -> None:
    config = load_config("de10nano")
    fake, board = on_board(TINY, config)
    with board.load(TINY.words, TINY.before, TINY.base) as loaded:
        fake.log.clear()
        loaded.run()
        instructions = fake.memory.live[1].address + 0x80000000
    assert fake.log == [
        ("write", 0x04, 0),
        ("write", 0x08, len(TINY.words)),
        ("write", 0x0C, instructions),
        *[("write", register, 0) for register in range(0x10, 0x24, 4)],
        ("write", 0x0, 1),
        ("read", 0x0, 0),
        ("read", 0x0, 0),
    ]


def test_a_loaded_program_runs_again_on_other_data() -> None:
    fake, board = on_board(TINY, PYNQ)
    region = next(region for region in TINY.regions if region["name"].startswith("out"))
    start = region["phys"] - TINY.base
    with board.load(TINY.words, TINY.before, TINY.base) as loaded:
        for _ in range(2):
            loaded.write(region["phys"], np.zeros(region["bytes"], np.uint8))
            loaded.run()
            out = loaded.read(region["phys"], region["bytes"])
            np.testing.assert_array_equal(out, TINY.after[start : start + region["bytes"]])
        for address, nbytes in ((TINY.base - 1, 4), (TINY.base + TINY.before.size - 2, 4), (0, 1)):
            with pytest.raises(VTADeviceError, match="are not within the program's memory image"):
                loaded.read(address, nbytes)
            with pytest.raises(VTADeviceError, match="are not within the program's memory image"):
                loaded.write(address, np.zeros(nbytes, np.uint8))
    assert not fake.memory.live


def test_a_device_that_never_finishes(monkeypatch: pytest.MonkeyPatch) -> None:
    fake, board = on_board(TINY, PYNQ)
    with board.load(TINY.words, TINY.before, TINY.base) as loaded:
        fake.dead = True
        with pytest.raises(VTADeviceError, match=r"did not finish 10 instructions within 0\.05 s; .* load it again"):
            loaded.run(seconds=0.05)
        with pytest.raises(VTADeviceError, match="an earlier run did not end"):
            loaded.run()
    assert len(fake.memory.live) == 2, "the accelerator may still write to them"
    dead = FakeBoard(PYNQ, dead=True)
    monkeypatch.setattr("tvm_ext.backends.vta.board.selftest.SECONDS", 0.05)
    with pytest.raises(VTADeviceError, match="did not finish 6 instructions"):
        Board(dead.device(PYNQ)).self_test()


def test_programs_that_would_hang_or_stray_are_refused_before_anything_is_touched() -> None:
    fake, board = on_board(TINY, PYNQ)
    hanging = encode_program(assemble_program("LOAD UOP +pop_prev\nFINISH"), PYNQ)
    with pytest.raises(VTAProgramError, match=r"instruction 0 \(LOAD\): it would wait for ever for load to compute"):
        board.run(hanging, TINY.before)
    behind = encode_program(assemble_program("LOAD UOP +pop_prev\nLOAD UOP +pop_next\nFINISH"), PYNQ)
    with pytest.raises(VTAProgramError, match=r"instruction 0 "):
        board.run(behind, TINY.before)
    straying = encode_program(assemble_program("LOAD INP dram_base=0x9000 y_size=1 x_size=1\nFINISH"), PYNQ)
    with pytest.raises(VTAProgramError, match="touches address 0x90000 from dram_base"):
        board.run(straying, TINY.before)
    loud = load_recording(next(path for path in GOLDEN if path.stem == "19_alu_mul_imm"))
    with pytest.raises(VTAProgramError, match=r"only simulators multiply in ALU.*8 places where hardware differs"):
        board.run(loud.words, loud.before, loud.base)
    with pytest.raises(VTAProgramError, match=r"memory image begins at 0x1010; expected a multiple of 4096"):
        board.run(TINY.words, TINY.before, 0x1010)
    with pytest.raises(VTAProgramError, match="uint64 array"):
        board.run(np.zeros(3), TINY.before)
    assert not fake.log


def test_a_program_for_the_other_generation_is_refused() -> None:
    config = load_config("pynq_0.0.1")
    fake, board = on_board(TINY, config)
    with pytest.raises(VTAProgramError, match=r"probably encoded for that generation.* HW_VER 0\.0\.2"):
        board.run(TINY.words, TINY.before, TINY.base)
    assert not fake.log


def test_no_room_frees_what_was_taken() -> None:
    fake, board = on_board(TINY, PYNQ, FakeMemory(nbytes=1 << 17))
    board.self_test()
    with pytest.raises(VTADeviceError, match="no room"):
        board.run(TINY.words, np.zeros(1 << 17, np.uint8), portable=False)
    assert not fake.memory.live
    fake, board = on_board(TINY, PYNQ, FakeMemory(address=ADDRESS_TOP))
    with pytest.raises(
        VTADeviceError, match=r"at address 0x1000.* is beyond the 32 bits that the accelerator can address"
    ):
        board.self_test()
    assert not fake.memory.live


def test_the_first_failure_of_a_device_is_what_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(message: str) -> Callable[..., NoReturn]:
        def fail(*_: object) -> NoReturn:
            raise VTADeviceError(message)

        return fail

    _, board = on_board(TINY, PYNQ)
    board.self_test()
    monkeypatch.setattr(board.device, "run", failing("gone while it ran"))
    monkeypatch.setattr(board.device, "free", failing("gone"))
    with pytest.raises(VTADeviceError, match="gone while it ran"):
        board.run(TINY.words, TINY.before, TINY.base)


def test_unaligned_memory_is_refused() -> None:
    fake, board = on_board(TINY, PYNQ, FakeMemory(address=0x18000010))
    with pytest.raises(VTADeviceError, match=r"address 0x18001010, which is not a multiple of 4096; .*--memory"):
        board.self_test()
    assert not fake.memory.live
    assert not fake.log


def test_device_addresses_are_checked() -> None:
    fake = FakeBoard(PYNQ)
    device = fake.device(PYNQ)
    address = device.allocate(64)
    with pytest.raises(VTADeviceError, match="at a multiple of 16"):
        device.run(address + 8, 1, ZERO, 1.0)
    with pytest.raises(VTADeviceError, match="expected at least one"):
        device.run(address, 0, ZERO, 1.0)
    for call in (
        lambda: device.run(address, 5, ZERO, 1.0),
        lambda: device.read(address + 60, 5),
        lambda: device.write(address - 1, np.zeros(1, np.uint8)),
    ):
        with pytest.raises(VTADeviceError, match="are not within one buffer"):
            call()
    device.free(address)
    with pytest.raises(VTADeviceError, match="freed before, or never given"):
        device.free(address)
    assert not fake.log


def test_one_self_test_is_enough() -> None:
    fake, board = on_board(TINY, PYNQ)
    board.self_test()
    board.self_test()
    assert fake.runs == 2
