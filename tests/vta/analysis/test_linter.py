from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.vta.random_programs import closing
from tests.vta.recordings import GOLDEN, NAMES
from tvm_ext.backends.vta.analysis.linter import lint
from tvm_ext.backends.vta.config import VTAConfig, load_config
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
    decode_program,
    encode_uops,
)
from tvm_ext.backends.vta.simulate.replay import load_recording

# Recordings that are not the same everywhere, and a rule that says why.
NOT_PORTABLE = {
    "06_gemm_accumulate_same_dst": "distance",
    "11_load_wgt_uop_pad_fsim": "pads",
    "18_alu_shr16to31_imm": "shift",
    "19_alu_mul_imm": "alu-mul",
    "26_alu_loops_factors": "stale-store",
    "30_load_acc8": "acc-8bit",
    "31_field_extremes": "uop-depth",
    "71_isa1_load_acc_pad": "pads",
    "80_fuzz_d16_0": "alu-wgt",
    "81_fuzz_b32_1000": "alu-mul",
    "84_fuzz_d16_isa1_4000": "distance",
}


@pytest.mark.parametrize("path", GOLDEN, ids=NAMES)
def test_recordings(path: Path) -> None:
    recording = load_recording(path)
    program = decode_program(recording.words, recording.config)
    rules = {finding.rule for finding in lint(program, recording.config, recording.before, recording.base)}
    if path.stem in NOT_PORTABLE:
        assert NOT_PORTABLE[path.stem] in rules
    else:
        assert rules == set()
        with np.load(path) as arrays:
            listed = set(json.loads(str(arrays["portable"])))
        # What upstream's runtime wrote was recorded on its simulator only; distances in tensors are data.
        assert listed >= {"fsim", "hls"} or path.stem.startswith("9")


UOPS = [MicroOp(0), MicroOp(1, 1), MicroOp(2, 2), MicroOp(3, 2, 1), MicroOp(1, 0), MicroOp(4, 1)]
LOAD_UOPS = Load(memory_type=MemoryType.UOP, dram_base=0x400, y_size=1, x_size=6, x_stride=6)
ALU = Alu(alu_opcode=AluOpcode.ADD, use_imm=True, uop_end=3, iter_out=1, iter_in=1)
TENSOR = replace(ALU, use_imm=False)


@pytest.mark.parametrize(
    ("instruction", "rule"),
    [
        (ALU, None),
        (replace(ALU, iter_in=0), "no-steps"),
        (replace(ALU, alu_opcode=AluOpcode.MUL), "alu-mul"),
        (replace(ALU, alu_opcode=AluOpcode.SHR, imm=-16), "shift"),
        (replace(ALU, alu_opcode=AluOpcode.SHR, imm=15), None),
        (replace(TENSOR, alu_opcode=AluOpcode.SHR, imm=1), "shift"),
        (replace(ALU, uop_bgn=2048, uop_end=2049), "uop-depth"),
        (replace(TENSOR, uop_end=1, iter_in=2, src_factor_in=1), "distance"),
        (replace(ALU, uop_end=1, iter_in=2), "distance"),
        (replace(ALU, uop_end=1, iter_out=2), "distance"),
        (replace(ALU, uop_end=1, iter_out=2, dst_factor_out=1), None),
        (TENSOR, None),
        (replace(TENSOR, uop_bgn=4, uop_end=6), "distance"),  # accumulator 1, read by the micro-op after
        (replace(TENSOR, uop_bgn=3, uop_end=4), "alu-wgt"),
        (replace(ALU, uop_bgn=3, uop_end=4), None),
        (Gemm(uop_end=3, iter_out=4, iter_in=4), None),
        (Gemm(uop_end=2, iter_out=1, iter_in=2), "distance"),
        (Gemm(uop_end=1, iter_out=1, iter_in=2), "distance"),
        (Gemm(uop_end=1, iter_out=1, iter_in=2, dst_factor_in=1), None),
        (Gemm(uop_end=1, iter_out=1, iter_in=2, reset_reg=True), None),
        (Load(memory_type=MemoryType.ACC, dram_base=0x40, x_size=1), "no-rows"),
        (Load(memory_type=MemoryType.ACC_8BIT, dram_base=0x100, x_size=1, y_size=1), "acc-8bit"),
        (Load(memory_type=MemoryType.ACC, dram_base=0x40, x_size=1, y_size=1, x_pad_0=1), None),
        (replace(LOAD_UOPS, x_pad_1=1), "pads"),
        (replace(LOAD_UOPS, y_size=2, x_size=2), "uop-rows"),
        (Load(x_pad_0=1, y_pad_1=3), None),
    ],
)
def test_rules(instruction: Instruction, rule: str | None) -> None:
    config = VTAConfig()
    dram = np.zeros(8192, np.uint8)
    dram[:24] = encode_uops(UOPS, config).view(np.uint8)
    findings = lint([LOAD_UOPS, instruction, *closing()], config, dram)
    assert [(finding.instruction, finding.rule) for finding in findings] == ([(1, rule)] if rule else [])
    if rule:
        assert str(findings[0]).startswith("instruction 1: ")
        assert str(findings[0]).endswith(f"[{rule}]")


def test_padding_of_weights_and_accumulators() -> None:
    dram = np.zeros(8192, np.uint8)
    padded = Load(memory_type=MemoryType.ACC, dram_base=0x40, x_size=1, y_size=1, y_pad_0=1)
    for name, expected in (("sim", []), ("pynq_0.0.1", ["pads"])):
        assert [finding.rule for finding in lint([padded, *closing()], load_config(name), dram)] == expected
    weights = replace(padded, memory_type=MemoryType.WGT, dram_base=0x10)
    assert [finding.rule for finding in lint([weights, *closing()], VTAConfig(), dram)] == ["pads"]


def test_the_last_writer_of_what_is_stored() -> None:
    config = VTAConfig()
    dram = np.zeros(8192, np.uint8)
    dram[:24] = encode_uops(UOPS, config).view(np.uint8)
    store = Store(dram_base=0x100, y_size=1, x_size=1, pop_prev=True)
    gemm = Gemm(uop_end=1, iter_out=1, iter_in=1, push_next=True)
    load = Load(memory_type=MemoryType.ACC, dram_base=0x40, x_size=1, y_size=1, push_next=True)
    for writer, rules in (
        (gemm, []),
        (replace(gemm, reset_reg=True), ["stale-store"]),
        (load, ["stale-store"]),
        (replace(ALU, push_next=True), []),
    ):
        program = [LOAD_UOPS, replace(ALU, uop_end=1), writer, store, *closing()]
        findings = lint(program, config, dram)
        assert [finding.rule for finding in findings] == rules
        assert all(finding.instruction == 3 for finding in findings)


def test_tokens() -> None:
    config = VTAConfig()
    dram = np.zeros(8192, np.uint8)
    load = Load(dram_base=0x100, y_size=1, x_size=1)
    gemm = Gemm(uop_end=1, iter_out=1, iter_in=1)

    def rules(*program: Instruction) -> list[tuple[int, str]]:
        return [(finding.instruction, finding.rule) for finding in lint([*program], config, dram)]

    assert rules(load, gemm, *closing()) == [(1, "race")]
    assert rules(load, Finish()) == [(0, "finish")]
    # The first token is taken for the second one, which makes the closing load end unseen.
    assert rules(Load(push_next=True), *closing()) == [(2, "finish"), (2, "token-left")]
    empty = Load(memory_type=MemoryType.UOP, pop_prev=True)
    for count, expected in ((254, []), (256, [(255, "token-count")])):
        assert rules(*[Load(push_next=True)] * count, *[empty] * count, *closing()) == expected
    assert lint([], config, dram) == []
