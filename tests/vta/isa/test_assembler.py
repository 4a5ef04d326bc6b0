from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.vta.isa.test_instructions import instructions
from tests.vta.recordings import GOLDEN, NAMES
from tvm_ext.backends.vta.config import VTAConfig
from tvm_ext.backends.vta.isa.assembler import assemble, assemble_program, disassemble, disassemble_program
from tvm_ext.backends.vta.isa.instructions import Alu, AluOpcode, Finish, Gemm, Load, MemoryType, Store, decode_program
from tvm_ext.backends.vta.simulate.replay import load_recording
from tvm_ext.errors import VTAProgramError


def test_the_text_of_instructions() -> None:
    program = [
        Load(memory_type=MemoryType.INP, dram_base=0x108, y_size=1, x_size=4, x_stride=4, pop_next=True),
        Load(memory_type=7),
        Gemm(reset_reg=True, uop_end=1, iter_out=1, iter_in=4, push_prev=True, push_next=True),
        Alu(alu_opcode=AluOpcode.SHR, use_imm=True, imm=-8),
        Alu(alu_opcode=AluOpcode.ADD, use_imm=True),
        Alu(alu_opcode=AluOpcode.MAX, imm=3),
        Store(sram_base=2, x_size=1, pop_prev=True),
        Finish(),
    ]
    text = disassemble_program(program)
    assert text == (
        "LOAD INP dram_base=0x108 y_size=1 x_size=4 x_stride=4 +pop_next\n"
        "LOAD 7\n"
        "GEMM reset_reg=1 uop_end=1 iter_out=1 iter_in=4 +push_prev +push_next\n"
        "ALU SHR imm=-8\n"
        "ALU ADD imm=0\n"
        "ALU MAX use_imm=0 imm=3\n"
        "STORE OUT sram_base=2 x_size=1 +pop_prev\n"
        "FINISH\n"
    )
    assert assemble_program(f"; a comment\n\n{text}  ; another") == program


@given(st.data())
def test_assembling_undoes_disassembling(data: st.DataObject) -> None:
    instruction = data.draw(instructions(VTAConfig()))
    assert assemble(disassemble(instruction)) == instruction


@pytest.mark.parametrize("path", GOLDEN[::7], ids=NAMES[::7])
def test_recorded_streams_survive_as_text(path: Path) -> None:
    recording = load_recording(path)
    program = decode_program(recording.words, recording.config)
    assert assemble_program(disassemble_program(program)) == program


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("FINISH\nHALT", r"line 2: no instruction 'HALT'; expected one of LOAD, STORE, GEMM, FINISH, ALU"),
        ("LOAD", r"line 1: LOAD is followed by 'nothing'; expected one of UOP, WGT"),
        ("LOAD x_size=3", r"LOAD is followed by 'x_size=3'; expected one of UOP"),
        ("ALU SUB", r"ALU is followed by 'SUB'; expected one of MIN, MAX, ADD, SHR, MUL"),
        ("GEMM size=3", r"'size=3': 'size' is not a field of GEMM; write NAME=VALUE with one of reset_reg, uop_bgn"),
        ("GEMM uop_end", r"'uop_end': 'uop_end' is not a field"),
        ("GEMM uop_end=", r"'uop_end=': '' is not a whole number"),
        ("GEMM uop_end=1.5", r"'1.5' is not a whole number"),
        ("GEMM uop_end=1 uop_end=2", r"'uop_end=2': 'uop_end' is given twice"),
        ("GEMM reset_reg=2", r"'reset_reg=2': expected 0 or 1"),
        ("FINISH +pop", r"'\+pop': 'pop' is not a field of FINISH"),
        ("FINISH pop_prev=1", r"'pop_prev=1': 'pop_prev' is not a field of FINISH"),
    ],
)
def test_text_that_is_no_instruction(text: str, message: str) -> None:
    with pytest.raises(VTAProgramError, match=message):
        assemble_program(text)


@given(st.text(max_size=60) | st.from_regex(r"(LOAD|ALU|GEMM) [A-Z0-9]{1,3} \+?[a-z_=0-9 ]{0,30}"))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        program = assemble_program(text)
    except VTAProgramError:
        return
    assert assemble_program(disassemble_program(program)) == program


def test_one_instruction_is_expected() -> None:
    with pytest.raises(VTAProgramError, match="expected one instruction, found 2"):
        assemble("FINISH\nFINISH")
