from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.vta.fake_board import FakeBoard, FakeGeneratorBoard
from tvm_ext.backends.vta.analysis.linter import lint
from tvm_ext.backends.vta.board.board import Board
from tvm_ext.backends.vta.board.selftest import Identity, identify, identifying_stream, memory_program
from tvm_ext.backends.vta.config import VTAConfig, config_names, load_config
from tvm_ext.backends.vta.isa.instructions import Load, Store, decode_program
from tvm_ext.errors import VTAConfigError, VTADeviceError

SHAPES = ["sim", "sim_1x32", "sim_2x16", "sim_4x8", "sim_8x8"]


def shaped(name: str, target: str, isa: int) -> VTAConfig:
    """A shipped shape on a board, speaking a generation of the encoding."""
    return replace(load_config(name), target=target, hw_ver="0.0.1" if isa == 1 else "0.0.2")


def board_with(bitstream: VTAConfig, config: VTAConfig) -> tuple[FakeBoard, Board]:
    fake = FakeGeneratorBoard(bitstream) if bitstream.target == "de10nano" else FakeBoard(bitstream)
    return fake, Board(fake.device(config))


@pytest.mark.parametrize("target", ["pynq", "de10nano"])
@pytest.mark.parametrize("isa", [1, 2])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_right_bitstream_passes(shape: str, isa: int, target: str) -> None:
    try:
        config = shaped(shape, target, isa)
    except VTAConfigError:  # some shapes are not legal on every board
        pytest.skip("not a legal configuration of this board")
    fake, board = board_with(config, config)
    board.self_test()
    assert identify(fake.device(config)) == Identity(isa, config.batch * config.block)
    assert not fake.memory.live


@pytest.mark.parametrize(("bitstream", "said"), [("pynq", "pynq_0.0.1"), ("pynq_0.0.1", "pynq")])
def test_the_other_generation_is_recognised(bitstream: str, said: str) -> None:
    fake, board = board_with(load_config(bitstream), load_config(said))
    before = fake.memory.dram.copy()
    found, expected = load_config(bitstream).hw_ver, load_config(said).hw_ver
    message = rf"decodes instructions of HW_VER {found}, the configuration says {expected}; use a .* HW_VER {found}"
    with pytest.raises(VTADeviceError, match=message):
        board.self_test()
    assert fake.runs == 1
    with pytest.raises(VTADeviceError, match=message):
        board.self_test()  # it is not taken for tested now
    # The stream was safe: only the buffer for its output differs from what the host wrote (buffers are 0xEE at first).
    pages = np.flatnonzero((fake.memory.dram != before).reshape(-1, 4096).any(axis=1))
    assert len(pages) == 2 * (1 + 1 + 2 + 1), "pages of the four buffers, twice"


@pytest.mark.parametrize("bitstream", SHAPES[1:])
def test_another_shape_is_recognised(bitstream: str) -> None:
    real = replace(load_config(bitstream), target="de10nano")
    _, board = board_with(real, load_config("de10nano"))
    with pytest.raises(
        VTADeviceError, match=rf"stores {real.batch * real.block} values an element, .* = 16; load that"
    ):
        board.self_test()


@pytest.mark.parametrize("smaller", ["log_inp_buff_size", "log_wgt_buff_size", "log_acc_buff_size"])
def test_a_smaller_memory_is_found(smaller: str, monkeypatch: pytest.MonkeyPatch) -> None:
    said = load_config("de10nano")
    real = replace(said, **{smaller: getattr(said, smaller) - 1})
    _, board = board_with(real, said)
    monkeypatch.setattr("tvm_ext.backends.vta.board.selftest.SECONDS", 0.1)
    with pytest.raises(VTADeviceError, match=r"the accelerator (computes something else|did not finish|finished the)"):
        board.self_test()


def test_a_wrong_result_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_config("pynq")
    fake, board = board_with(config, config)
    execute = fake.execute

    def broken() -> bool:
        done = execute()
        if fake.runs == 2:
            fake.memory.live[0].memory.dram[fake.memory.live[0].address - fake.memory.address + 9] ^= 4
        return done

    monkeypatch.setattr(fake, "execute", broken)
    with pytest.raises(VTADeviceError, match=r"1 bytes of the self-test differ, the first at 0x9; is the bitstream"):
        board.self_test()


def test_a_device_that_stores_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_config("pynq")
    fake, board = board_with(config, config)
    monkeypatch.setattr(fake, "execute", lambda: True)
    with pytest.raises(VTADeviceError, match=r"stored 0 bytes .* is a VTA bitstream loaded, the one of 1x16_i8w8a32"):
        board.self_test()


@pytest.mark.parametrize("name", config_names())
def test_streams_of_the_self_test(name: str) -> None:
    """Portable, and the first one with addresses that no decoding can move."""
    config = load_config(name)
    program = memory_program(config)
    assert lint(program.instructions, config, program.image.data, program.image.base) == []
    words = identifying_stream(config)
    for version in ("0.0.1", "0.0.2"):
        decoded = decode_program(words, replace(config, target="sim", hw_ver=version))
        transfers = [x for x in decoded if isinstance(x, Load | Store)]
        assert {x.dram_base for x in transfers} == {0}
        assert [x.sram_base for x in transfers if isinstance(x, Store)] == [1 if version == "0.0.1" else 0]
        assert {x.sram_base for x in transfers if isinstance(x, Load)} == {0}
