"""What an instruction accesses, against the reference simulator run on memories that watch."""

from __future__ import annotations

import numpy as np
import pytest

from tests.vta.random_programs import random_program
from tvm_ext.backends.vta.analysis.accesses import accesses
from tvm_ext.backends.vta.config import load_config
from tvm_ext.backends.vta.isa.instructions import Alu, Gemm, Load, MemoryType, Store, decode_uops
from tvm_ext.backends.vta.simulate.reference import ReferenceSimulator


@pytest.mark.parametrize("name", ["sim", "pynq_0.0.1", "sim_2x16"])
def test_step_by_step(name: str) -> None:
    """The loops of each instruction are walked one step, row and element at a time."""
    config = load_config(name)
    for seed in range(6):
        program = random_program(np.random.default_rng(seed), config)
        uop_words = np.zeros(config.depths["uop"], np.uint32)
        found = list(accesses(program.instructions, config, program.dram, program.base))
        for instruction, found_here in zip(program.instructions, found, strict=True):
            reads: set[tuple[str, int]] = set()
            writes: set[tuple[str, int]] = set()
            if isinstance(instruction, Load | Store) and instruction.x_size:
                memory, size = {
                    MemoryType.UOP: ("uop", 4), MemoryType.WGT: ("wgt", config.wgt_bytes),
                    MemoryType.INP: ("inp", config.inp_bytes), MemoryType.ACC: ("acc", config.acc_bytes),
                    MemoryType.OUT: ("acc", config.out_bytes), MemoryType.ACC_8BIT: ("acc", config.acc_bytes // 4),
                }[MemoryType(instruction.memory_type)]  # fmt: skip
                loads = isinstance(instruction, Load)
                at = instruction.sram_base
                for y in range(-instruction.y_pad_0, instruction.y_size + instruction.y_pad_1):
                    for x in range(-instruction.x_pad_0, instruction.x_size + instruction.x_pad_1):
                        (writes if loads else reads).add((memory, at))
                        if 0 <= y < instruction.y_size and 0 <= x < instruction.x_size:
                            element = (instruction.dram_base + y * instruction.x_stride + x) * size
                            for byte in range(element, element + size):
                                (reads if loads else writes).add(("dram", byte // 4))
                            if memory == "uop":
                                start = element - program.base
                                uop_words[at] = program.dram[start : start + 4].view(np.uint32)[0]
                        at += 1
            elif isinstance(instruction, Gemm | Alu):
                uops = decode_uops(uop_words, config).tolist()
                for i in range(instruction.iter_out):
                    for j in range(instruction.iter_in):
                        for k in range(instruction.uop_bgn, instruction.uop_end):
                            dst = uops[k][0] + i * instruction.dst_factor_out + j * instruction.dst_factor_in
                            src = uops[k][1] + i * instruction.src_factor_out + j * instruction.src_factor_in
                            reads.add(("uop", k))
                            writes.add(("acc", dst))
                            if isinstance(instruction, Alu):
                                reads |= {("acc", dst)} | (set() if instruction.use_imm else {("acc", src)})
                            elif not instruction.reset_reg:
                                wgt = uops[k][2] + i * instruction.wgt_factor_out + j * instruction.wgt_factor_in
                                reads |= {("acc", dst), ("inp", src), ("wgt", wgt)}
            for expected, arrays in ((reads, found_here.reads), (writes, found_here.writes)):
                listed = [(memory, int(index)) for memory, indices in arrays.items() for index in indices]
                assert len(listed) == len(set(listed))
                assert set(listed) == expected


def test_the_micro_ops_are_those_that_the_simulator_has() -> None:
    config = load_config("sim")
    program = random_program(np.random.default_rng(5), config)
    simulator = ReferenceSimulator(config)
    simulator.run(program.words, program.dram, program.base)
    assert simulator.uop.any()
