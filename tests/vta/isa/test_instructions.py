from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.vta.recordings import GOLDEN, NAMES
from tvm_ext.backends.vta.config import VTAConfig, config_names, load_config
from tvm_ext.backends.vta.isa.instructions import (
    CLASSES,
    Alu,
    AluOpcode,
    Finish,
    Gemm,
    Instruction,
    Load,
    MemoryType,
    MicroOp,
    Opcode,
    Store,
    decode,
    decode_program,
    decode_uops,
    encode,
    encode_program,
    encode_uops,
    fields,
)
from tvm_ext.backends.vta.simulate.replay import load_recording
from tvm_ext.errors import VTAProgramError

CONFIGS = [load_config(name) for name in config_names()]


def bits(config: VTAConfig, opcode: Opcode) -> dict[str, tuple[int, int, int]]:
    """Word, highest and lowest bit of each field."""
    return {f.name: (f.word, f.shift + f.width - 1, f.shift) for f in fields(opcode, config)}


def test_where_the_fields_of_the_default_configuration_lie() -> None:
    second, first = load_config("sim"), load_config("pynq_0.0.1")
    load = bits(second, Opcode.LOAD)
    assert [load[name][1:] for name in ("memory_type", "sram_base", "dram_base")] == [(9, 7), (25, 10), (57, 26)]
    assert [bits(first, Opcode.LOAD)[name][1:] for name in ("memory_type", "sram_base", "dram_base")] == [
        (8, 7), (24, 9), (56, 25),
    ]  # fmt: skip
    assert load["y_size"] == (1, 15, 0)
    assert load["x_pad_1"] == (1, 63, 60)
    gemm = bits(second, Opcode.GEMM)
    assert gemm == bits(first, Opcode.GEMM)
    assert [gemm[name] for name in ("reset_reg", "uop_bgn", "uop_end", "iter_out", "iter_in")] == [
        (0, 7, 7), (0, 20, 8), (0, 34, 21), (0, 48, 35), (0, 62, 49),
    ]  # fmt: skip
    assert [gemm[name] for name in ("dst_factor_out", "src_factor_in", "wgt_factor_out", "wgt_factor_in")] == [
        (1, 10, 0), (1, 43, 33), (1, 53, 44), (1, 63, 54),
    ]  # fmt: skip
    names = ("src_factor_in", "alu_opcode", "use_imm", "imm")
    assert [bits(second, Opcode.ALU)[name][1:] for name in names] == [(43, 33), (46, 44), (47, 47), (63, 48)]
    assert [bits(first, Opcode.ALU)[name][1:] for name in names] == [(43, 33), (45, 44), (46, 46), (62, 47)]


@pytest.mark.parametrize("path", GOLDEN, ids=NAMES)
def test_recorded_streams_come_back_bit_for_bit(path: Path) -> None:
    recording = load_recording(path)
    instructions = decode_program(recording.words, recording.config)
    assert isinstance(instructions[-1], Finish)
    np.testing.assert_array_equal(encode_program(instructions, recording.config), recording.words)


@st.composite
def instructions(draw: st.DrawFn, config: VTAConfig) -> Instruction:
    cls = CLASSES[draw(st.sampled_from(list(Opcode)))]
    values = {}
    for field in fields(cls.OPCODE, config)[1:]:
        if field.width == 1:
            values[field.name] = draw(st.booleans())
        elif not (cls is Store and field.name == "memory_type"):
            edges = st.sampled_from([field.lowest, field.highest])
            values[field.name] = draw(st.integers(field.lowest, field.highest) | edges)
    return cls(**values)  # type: ignore[arg-type]


@given(st.data(), st.sampled_from(CONFIGS))
def test_decoding_undoes_encoding(data: st.DataObject, config: VTAConfig) -> None:
    instruction = data.draw(instructions(config))
    low, high = encode(instruction, config)
    assert 0 <= low < 1 << 64
    assert 0 <= high < 1 << 64
    assert decode(low, high, config) == instruction


@given(st.integers(0, (1 << 64) - 1), st.integers(0, (1 << 64) - 1), st.sampled_from(CONFIGS))
def test_any_two_words_decode_or_are_refused(low: int, high: int, config: VTAConfig) -> None:
    if low & 7 > max(Opcode):
        with pytest.raises(VTAProgramError, match=f"opcode {low & 7} is not defined"):
            decode(low, high, config)
        return
    instruction = decode(low, high, config)
    if not isinstance(instruction, Store):
        again = encode(instruction, config)
        used = [0, 0]
        for field in fields(instruction.OPCODE, config):
            used[field.word] |= ((1 << field.width) - 1) << field.shift
        assert again == (low & used[0], high & used[1])


def test_a_store_is_marked_as_each_generation_does() -> None:
    for name, memory_type in (("sim", 4), ("pynq_0.0.1", 0)):
        config = load_config(name)
        low, high = encode(Store(), config)
        assert low >> 7 & 7 == memory_type
        assert decode(low, high, config) == Store()


@pytest.mark.parametrize(
    ("instruction", "field"),
    [
        (Load(sram_base=1 << 16), "sram_base"),
        (Load(memory_type=8), "memory_type"),
        (Store(x_pad_1=16), "x_pad_1"),
        (Gemm(uop_end=(1 << 14)), "uop_end"),
        (Gemm(iter_in=-1), "iter_in"),
        (Alu(imm=1 << 15), "imm"),
        (Alu(imm=-(1 << 15) - 1), "imm"),
    ],
)
def test_a_value_without_room_is_refused(instruction: Instruction, field: str) -> None:
    with pytest.raises(VTAProgramError, match=rf"instruction 1: \w+ field {field} is .*; it has \d+ bits") as caught:
        encode_program([Finish(), instruction], VTAConfig())
    assert (caught.value.instruction, caught.value.field) == (1, field)


def test_the_first_generation_has_neither_multiplication_nor_byte_loads() -> None:
    config = load_config("pynq_0.0.1")
    for instruction, field in ((Alu(alu_opcode=AluOpcode.MUL), "alu_opcode"), (Load(memory_type=5), "memory_type")):
        with pytest.raises(VTAProgramError, match=r"HW_VER 0\.0\.1, for values from 0 to 3") as caught:
            encode(instruction, config)
        assert caught.value.field == field
    assert encode(Load(memory_type=MemoryType.ACC), config)


def test_an_undefined_opcode_is_refused() -> None:
    words = np.array([[3, 0], [7, 0]], np.uint64)
    with pytest.raises(
        VTAProgramError, match=r"instruction 1: opcode 7 is not defined; expected one of 0 LOAD"
    ) as caught:
        decode_program(words, VTAConfig())
    assert caught.value.instruction == 1


def test_a_stream_is_an_array_of_word_pairs() -> None:
    for words in (np.zeros((2, 2), np.int64), np.zeros(4, np.uint64), np.zeros((2, 3), np.uint64)):
        with pytest.raises(VTAProgramError, match=r"a uint64 array \[instructions, 2\]; found"):
            decode_program(words, VTAConfig())
    assert decode_program(np.zeros((0, 2), np.uint64), VTAConfig()) == []


@given(st.data(), st.sampled_from(CONFIGS))
def test_micro_ops(data: st.DataObject, config: VTAConfig) -> None:
    depths = [config.log_acc_depth, config.log_uop_src_depth, config.log_wgt_depth]
    uops = data.draw(st.lists(st.tuples(*(st.integers(0, (1 << bits) - 1) for bits in depths)), max_size=5))
    words = encode_uops([MicroOp(*uop) for uop in uops], config)
    assert words.dtype == np.uint32
    assert decode_uops(words, config).tolist() == [list(uop) for uop in uops]
    expected = [dst | src << depths[0] | wgt << (depths[0] + depths[1]) for dst, src, wgt in uops]
    assert words.tolist() == expected


def test_a_micro_op_without_room_is_refused() -> None:
    with pytest.raises(VTAProgramError, match="micro-op 1: wgt_idx is 1024; expected 0 to 1023"):
        encode_uops([MicroOp(), MicroOp(wgt_idx=1024)], VTAConfig())


def test_instructions_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Finish().pop_prev = True  # type: ignore[misc]
