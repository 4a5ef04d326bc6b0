"""Every reason for refusal: the same from both simulators, with the instruction, the field, and what to do."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from tests.vta.comparing import run_both
from tests.vta.random_programs import RandomProgram, closing
from tests.vta.recordings import GOLDEN
from tvm_ext.backends.vta.analysis.checks import refusal_error
from tvm_ext.backends.vta.config import VTAConfig, load_config
from tvm_ext.backends.vta.isa.faults import Fault, Refusal
from tvm_ext.backends.vta.isa.instructions import (
    Alu,
    AluOpcode,
    Finish,
    Gemm,
    Instruction,
    Load,
    MemoryType,
    MicroOp,
    Store,
    encode_program,
    encode_uops,
)
from tvm_ext.backends.vta.simulate.reference import ReferenceSimulator
from tvm_ext.backends.vta.simulate.replay import load_recording
from tvm_ext.backends.vta.simulate.simulator import Simulator
from tvm_ext.errors import VTAProgramError

CONFIG = VTAConfig()
UOPS = [MicroOp(), MicroOp(2047, 0, 0), MicroOp(0, 2047, 0), MicroOp(0, 0, 1023)]
LOAD_UOPS = Load(memory_type=MemoryType.UOP, dram_base=0x400, y_size=1, x_size=4, x_stride=4)
ONCE = {"iter_out": 1, "iter_in": 1}


def refusal(program: list[Instruction], config: VTAConfig = CONFIG, finish: bool = True) -> tuple[Refusal, str]:
    """Run on an image of two pages that begins with some micro-ops; gives the refusal and its sentence."""
    dram = np.zeros(8192, np.uint8)
    dram[:16] = encode_uops(UOPS, config).view(np.uint8)
    words = encode_program([*program, *closing()] if finish else program, config)
    found = run_both(RandomProgram(config, program, words, dram, 0x1000))
    assert isinstance(found, Refusal)
    error = refusal_error(found, words.tolist(), config, (0x1000, dram.size), 20_000)
    assert (error.instruction, error.field) == (found.instruction, found.field)
    return found, str(error)


@pytest.mark.parametrize(
    ("program", "expected", "sentence"),
    [
        (
            [LOAD_UOPS, Load(memory_type=MemoryType.OUT)], Refusal(Fault.MEMORY_TYPE, 1, "memory_type", 4),
            "instruction 1 (LOAD OUT): memory_type is 4; expected UOP, WGT, INP, ACC or ACC_8BIT",
        ),
        (
            [Load(memory_type=7)], Refusal(Fault.MEMORY_TYPE, 0, "memory_type", 7),
            "instruction 0 (LOAD): memory_type is 7; expected UOP",
        ),
        (
            [Store(memory_type=MemoryType.ACC, dram_base=0x100, x_size=1, y_size=1)],
            Refusal(Fault.MEMORY_TYPE, 0, "memory_type", 3), "(STORE ACC): memory_type is 3; expected OUT (4)",
        ),
        (
            [Load(memory_type=MemoryType.WGT, push_prev=True)], Refusal(Fault.FLAG, 0, "push_prev", 1),
            "push_prev is set, but the load module has no such neighbour; its flags are pop_next, push_next",
        ),
        (
            [Load(pop_prev=True)], Refusal(Fault.FLAG, 0, "pop_prev", 1),
            "pop_prev is set, but the load module has no such neighbour",
        ),
        (
            [Store(pop_next=True)], Refusal(Fault.FLAG, 0, "pop_next", 1),
            "the store module has no such neighbour; its flags are pop_prev, push_prev",
        ),
        ([Store(push_next=True)], Refusal(Fault.FLAG, 0, "push_next", 1), "push_next is set"),
        (
            [Store(dram_base=0x100, x_size=1, y_size=1, x_pad_0=2)], Refusal(Fault.PAD, 0, "x_pad_0", 2),
            "x_pad_0 is 2, but a STORE cannot pad; set it to 0",
        ),
        (
            [Load(sram_base=2040, dram_base=0x100, x_size=3, y_size=2, y_pad_1=1)],
            Refusal(Fault.SRAM, 0, "sram_base", 2049),
            "(LOAD INP): it reaches element 2049 from sram_base 2040, but the inp memory holds 2048",
        ),
        (
            [Load(memory_type=MemoryType.ACC_8BIT, sram_base=65535, dram_base=0x100, x_size=65535, y_size=65535)],
            Refusal(Fault.SRAM, 0, "sram_base", 65535 + 65535**2), "but the acc memory holds 2048",
        ),
        (
            [Load(dram_base=0xFF, x_size=1, y_size=1)], Refusal(Fault.DRAM, 0, "dram_base", 0xFF0),
            "it touches address 0xff0 from dram_base 0xff, but the memory image spans 0x1000 to 0x3000",
        ),
        (
            [Load(dram_base=0x100, x_size=1, y_size=3, x_stride=300)], Refusal(Fault.DRAM, 0, "dram_base", 0x358F),
            "it touches address 0x358f from dram_base 0x100",
        ),
        (
            [Store(dram_base=0x2FF, x_size=2, y_size=1)], Refusal(Fault.DRAM, 0, "dram_base", 0x300F),
            "(STORE OUT): it touches address 0x300f",
        ),
        (
            [Alu(alu_opcode=6)], Refusal(Fault.ALU_OPCODE, 0, "alu_opcode", 6),
            "alu_opcode 6 is not defined; expected one of 0 MIN, 1 MAX",
        ),
        (
            [Gemm(uop_end=8193, **ONCE)], Refusal(Fault.UOP_END, 0, "uop_end", 8193),
            "uop_end is 8193, but the uop memory holds 8192",
        ),
        (
            [Gemm(uop_end=1, iter_out=100, iter_in=100), Alu(uop_end=1, iter_out=101, iter_in=100)],
            Refusal(Fault.STEPS, 1, "iter_out", 20_100), "asks for 20100 steps up to here, more than max_steps 20000",
        ),
        (
            [Finish()], Refusal(Fault.FINISH, 0, "opcode", 3),
            "instruction 0 (FINISH): a stream ends with its only FINISH",
        ),
        (
            [LOAD_UOPS, Gemm(uop_bgn=1, uop_end=2, iter_out=1, iter_in=2, dst_factor_in=1)],
            Refusal(Fault.INDEX, 1, "dst_idx", 2048, 1),
            "instruction 1 (GEMM): micro-op 1 reaches dst_idx 2048 in the loops, but the acc memory holds 2048",
        ),
        (
            [LOAD_UOPS, Gemm(uop_end=4, iter_out=2, iter_in=1, src_factor_out=1)],
            Refusal(Fault.INDEX, 1, "src_idx", 2048, 2), "src_idx 2048 in the loops, but the inp memory",
        ),
        (
            [LOAD_UOPS, Gemm(uop_end=4, iter_out=2, iter_in=1, wgt_factor_out=1)],
            Refusal(Fault.INDEX, 1, "wgt_idx", 1024, 3), "wgt_idx 1024 in the loops, but the wgt memory holds 1024",
        ),
        (
            [LOAD_UOPS, Alu(uop_end=4, iter_out=2, iter_in=1, src_factor_out=1, use_imm=True)],
            Refusal(Fault.INDEX, 1, "src_idx", 2048, 2), "src_idx 2048 in the loops, but the acc memory holds 2048",
        ),
        (
            [LOAD_UOPS, Gemm(pop_next=True), Load(pop_next=True)], Refusal(Fault.DEADLOCK, 2, "pop_next"),
            "(LOAD INP): it waits for ever: pop_next takes a token from the queue compute to load, and none is coming",
        ),
        (
            [Gemm(pop_prev=True)] * 2, Refusal(Fault.DEADLOCK, 1, "pop_prev"),
            "pop_prev takes a token from the queue load to compute",
        ),
        (
            # The store never gives what the closing instructions wait for.
            [Store(pop_prev=True)], Refusal(Fault.DEADLOCK, 3, "pop_next"),
            "instruction 3 (LOAD UOP): it waits for ever: pop_next takes a token from the queue store to compute",
        ),
    ],
)  # fmt: skip
def test_refusals(program: list[Instruction], expected: Refusal, sentence: str) -> None:
    found, message = refusal(program)
    assert found == expected
    assert sentence in message


def test_finish_before_the_end_of_a_store() -> None:
    found, message = refusal([Gemm(push_next=True), Store(pop_prev=True), Finish()], finish=False)
    assert found == Refusal(Fault.PENDING, 1, "opcode")
    assert "instruction 1 (STORE OUT): it was still waiting when FINISH ran; order it before FINISH" in message


def test_a_stream_without_finish() -> None:
    found, message = refusal([LOAD_UOPS], finish=False)
    assert found == Refusal(Fault.FINISH, 0, "opcode", 0)
    assert "instruction 0 (LOAD UOP): a stream ends with its only FINISH" in message


def test_an_undefined_opcode() -> None:
    words = encode_program([LOAD_UOPS, Finish()], CONFIG)
    words[0, 0] |= np.uint64(7)
    found = run_both(RandomProgram(CONFIG, [], words, np.zeros(8192, np.uint8), 0x1000))
    assert found == Refusal(Fault.OPCODE, 0, "opcode", 7)
    with pytest.raises(
        VTAProgramError, match="instruction 0: opcode 7 is not defined; expected one of 0 LOAD, 1 STORE"
    ):
        Simulator(CONFIG).run(words, np.zeros(8192, np.uint8))


def test_empty_transfers_and_loops_need_no_room() -> None:
    """No elements: the other fields do not matter. No turns: neither do the micro-ops."""
    program = [
        Load(sram_base=65535, dram_base=(1 << 32) - 1, y_size=9, x_pad_0=3),
        Store(memory_type=MemoryType.UOP, sram_base=65535, dram_base=7, y_size=65535, y_pad_0=1),
        Gemm(uop_bgn=3, uop_end=3, iter_out=5, iter_in=5),
        Gemm(uop_bgn=5, uop_end=3, iter_out=5, iter_in=5),
        Alu(uop_end=16383, iter_in=5),
        *closing(),
    ]
    words = encode_program(program, CONFIG)
    result = run_both(RandomProgram(CONFIG, program, words, np.zeros(0, np.uint8), 0x1000))
    assert not isinstance(result, Refusal)
    assert set(result.bytes_moved.values()) | set(result.steps.values()) == {0}


def test_a_reset_ignores_its_sources() -> None:
    program: list[Instruction] = [LOAD_UOPS, Gemm(reset_reg=True, uop_bgn=2, uop_end=4, src_factor_out=9, **ONCE)]
    words = encode_program([*program, *closing()], CONFIG)
    result = run_both(RandomProgram(CONFIG, program, words, np.zeros(8192, np.uint8), 0x1000))
    assert not isinstance(result, Refusal)


def test_the_first_generation_stores_from_either_name_of_the_accumulators() -> None:
    config = load_config("pynq_0.0.1")
    dram = np.full(4096, 9, np.uint8)
    for memory_type, legal in ((MemoryType.OUT, True), (MemoryType.ACC, True), (MemoryType.INP, False)):
        program = [Store(memory_type=memory_type, dram_base=0x100, y_size=1, x_size=1), *closing()]
        result = run_both(RandomProgram(config, program, encode_program(program, config), dram, 0x1000))
        assert isinstance(result, Refusal) != legal


@pytest.mark.parametrize("simulator", [ReferenceSimulator, Simulator])
def test_a_stream_of_the_other_generation_is_recognised(simulator: type[ReferenceSimulator | Simulator]) -> None:
    recognised = 0
    for path in GOLDEN:
        recording = load_recording(path)
        other = replace(recording.config, hw_ver="0.0.1" if recording.config.isa == 2 else "0.0.2")
        if recording.config.block != 16 or recording.config.batch != 1:
            continue
        with pytest.raises(VTAProgramError) as caught:
            simulator(other).run(recording.words, recording.before, recording.base)
        version = re.escape(recording.config.hw_ver)
        assert re.search(rf"legal for HW_VER {version}, so it was probably encoded for that", str(caught.value))
        recognised += 1
    assert recognised >= 35


def test_multiplication_in_the_first_generation_is_not_there() -> None:
    with pytest.raises(VTAProgramError, match="alu_opcode is 4"):
        encode_program([Alu(alu_opcode=AluOpcode.MUL)], load_config("pynq_0.0.1"))
