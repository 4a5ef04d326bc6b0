"""The compiled simulator agrees with the reference: on recordings, random programs, and streams of random bits."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.vta.comparing import run_both
from tests.vta.random_programs import RandomProgram, flip_bits, random_program
from tests.vta.recordings import GOLDEN, NAMES
from tvm_ext.backends.vta.config import VTAConfig, load_config
from tvm_ext.backends.vta.isa.faults import Fault, Refusal
from tvm_ext.backends.vta.isa.instructions import Finish, Gemm, Opcode, encode_program, fields
from tvm_ext.backends.vta.memory import SimulationResult
from tvm_ext.backends.vta.simulate.reference import ReferenceSimulator
from tvm_ext.backends.vta.simulate.replay import load_recording
from tvm_ext.backends.vta.simulate.simulator import Simulator
from tvm_ext.errors import VTAConfigError, VTAProgramError

CONFIGS = ("sim", "pynq_0.0.1", "sim_1x32", "sim_2x16", "sim_4x8", "sim_8x8")


@pytest.mark.parametrize("path", GOLDEN, ids=NAMES)
def test_recordings(path: Path) -> None:
    recording = load_recording(path)
    result = Simulator(recording.config).run(recording.words, recording.before, recording.base)
    np.testing.assert_array_equal(result.dram, recording.after)
    program = RandomProgram(recording.config, [], recording.words, recording.before, recording.base)
    assert isinstance(run_both(program), SimulationResult)


@pytest.mark.parametrize("name", CONFIGS[:5])  # those that recordings were made for are compiled already
def test_random_programs(name: str) -> None:
    changed = 0
    for seed in range(50):
        program = random_program(np.random.default_rng(seed), load_config(name))
        result = run_both(program)
        assert isinstance(result, SimulationResult)
        changed += not np.array_equal(result.dram, program.dram)
    assert changed == 50


@pytest.mark.parametrize("hw_ver", ["0.0.1", "0.0.2"])
def test_small_memories(hw_ver: str) -> None:
    """Short addresses pack the fields differently: some move to the other word."""
    config = VTAConfig(
        hw_ver=hw_ver,
        log_block=3,
        log_uop_buff_size=8,
        log_inp_buff_size=10,
        log_wgt_buff_size=12,
        log_acc_buff_size=11,
    )
    assert next(field.word for field in fields(Opcode.GEMM, config) if field.name == "dst_factor_out") == 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        program = random_program(rng, config)
        assert isinstance(run_both(program), SimulationResult)
        run_both(flip_bits(rng, program))


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_many_random_programs(name: str) -> None:
    for seed in range(1000, 2700):
        assert isinstance(run_both(random_program(np.random.default_rng(seed), load_config(name))), SimulationResult)


def damaged(seeds: range, name: str) -> Counter[Fault]:
    """Run damaged programs; gives how often each reason for refusal came up."""
    reasons: Counter[Fault] = Counter()
    for seed in seeds:
        rng = np.random.default_rng(seed)
        result = run_both(flip_bits(rng, random_program(rng, load_config(name), length=12)))
        reasons[result.fault if isinstance(result, Refusal) else Fault.NONE] += 1
    return reasons


@pytest.mark.parametrize("name", CONFIGS[:5])
def test_damaged_programs_are_refused_alike(name: str) -> None:
    assert len(damaged(range(80), name)) >= 5


@pytest.mark.slow
def test_every_reason_for_refusal_comes_up() -> None:
    reasons = sum((damaged(range(5000, 6500), name) for name in CONFIGS), Counter())
    assert set(reasons) == set(Fault)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_random_bits(data: st.DataObject) -> None:
    """Words of any value, the last of them FINISH or not, on an image of any size."""
    rng = np.random.default_rng(data.draw(st.integers(0, 1 << 32)))
    words = rng.integers(0, 1 << 64, (data.draw(st.integers(0, 6)), 2), np.uint64)
    narrow = np.uint64(data.draw(st.sampled_from([(1 << 64) - 1, 0x000F_000F_0003_0004, 0x7FF])))
    words[:, 1] &= narrow
    if data.draw(st.booleans()):
        words[:, 0] = words[:, 0] & ~np.uint64(0x7F) | rng.integers(0, 5, len(words), np.uint64)
    if data.draw(st.booleans()):
        words = np.concatenate([words, encode_program([Finish()], VTAConfig())])
    dram = rng.integers(0, 256, data.draw(st.sampled_from([0, 1, 4096, 70_000])), np.uint8)
    run_both(RandomProgram(load_config(data.draw(st.sampled_from(CONFIGS[:2]))), [], words, dram, 0x1000))


def test_the_image_that_is_given_is_not_changed() -> None:
    program = random_program(np.random.default_rng(3), VTAConfig())
    before = program.dram.copy()
    result = Simulator(program.config).run(program.words, program.dram, program.base)
    np.testing.assert_array_equal(program.dram, before)
    assert not np.array_equal(result.dram, before)


def test_a_loop_without_end_is_refused_at_once() -> None:
    endless = Gemm(uop_end=8192, iter_out=16383, iter_in=16383)
    with pytest.raises(
        VTAProgramError, match=r"instruction 0 \(GEMM\): the stream asks for 21987548\d+ steps"
    ) as caught:
        Simulator(VTAConfig()).run(encode_program([endless, Finish()], VTAConfig()), np.zeros(4096, np.uint8))
    assert (caught.value.instruction, caught.value.field) == (0, "iter_out")


def test_an_empty_stream_is_refused() -> None:
    with pytest.raises(VTAProgramError, match="a stream ends with its only FINISH"):
        Simulator(VTAConfig()).run(np.zeros((0, 2), np.uint64), np.zeros(4096, np.uint8))


@pytest.mark.parametrize("simulator", [ReferenceSimulator, Simulator])
def test_an_image_is_bytes_within_the_address_space(simulator: type[ReferenceSimulator | Simulator]) -> None:
    words = encode_program([Finish()], VTAConfig())
    for dram, base in ((np.zeros(4, np.int8), 0), (np.zeros((2, 2), np.uint8), 0), (np.zeros(4, np.uint8), -1)):
        with pytest.raises(VTAProgramError, match=r"a memory image is a uint8 array \[bytes\] .*; found"):
            simulator(VTAConfig()).run(words, dram, base)
    with pytest.raises(VTAProgramError, match="from address 0xfffffffd"):
        simulator(VTAConfig()).run(words, np.zeros(4, np.uint8), (1 << 32) - 3)
    simulator(VTAConfig()).run(words, np.zeros(4, np.uint8), (1 << 32) - 4)


def test_other_widths_are_not_modelled() -> None:
    with pytest.raises(VTAConfigError, match="LOG_ACC_WIDTH is 4; the simulators model 5 only"):
        Simulator(VTAConfig(log_acc_width=4, log_acc_buff_size=16))
