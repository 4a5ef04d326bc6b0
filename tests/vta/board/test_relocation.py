from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.vta.random_programs import random_program
from tvm_ext.backends.vta.board.registers import BaseAddresses
from tvm_ext.backends.vta.board.relocation import relocate
from tvm_ext.backends.vta.config import load_config
from tvm_ext.backends.vta.isa.instructions import Instruction, Load, MemoryType, Store, decode_program, encode_program
from tvm_ext.errors import VTAProgramError

PAGES = st.integers(-(1 << 19), 1 << 19).map(lambda pages: 4096 * pages)


@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from(["sim", "pynq_0.0.1", "sim_4x8", "sim_1x32"]),
    st.builds(BaseAddresses, PAGES, PAGES, PAGES, PAGES, PAGES),
)
def test_it_is_what_rewriting_the_instructions_gives(seed: int, name: str, distances: BaseAddresses) -> None:
    config = load_config(name)
    program = random_program(np.random.default_rng(seed), config, 12)
    sizes = {
        MemoryType.UOP: ("uop", 4),
        MemoryType.WGT: ("wgt", config.wgt_bytes),
        MemoryType.INP: ("inp", config.inp_bytes),
        MemoryType.ACC: ("acc", config.acc_bytes),
        MemoryType.ACC_8BIT: ("acc", config.acc_bytes // 4),
        MemoryType.OUT: ("out", config.out_bytes),
    }

    def moved(instruction: Instruction) -> Instruction:
        if not isinstance(instruction, Load | Store):
            return instruction
        memory, size = sizes[MemoryType(instruction.memory_type)]
        return replace(instruction, dram_base=(instruction.dram_base + getattr(distances, memory) // size) % (1 << 32))

    expected = encode_program([moved(instruction) for instruction in program.instructions], config)
    before = program.words.copy()
    np.testing.assert_array_equal(relocate(program.words, config, distances), expected)
    np.testing.assert_array_equal(program.words, before)
    back = BaseAddresses(*(-distance for distance in vars(distances).values()))
    np.testing.assert_array_equal(relocate(expected, config, back), before)
    assert [type(x) for x in decode_program(expected, config)] == [type(x) for x in program.instructions]


def test_distances_are_whole_elements() -> None:
    config = load_config("sim")
    program = random_program(np.random.default_rng(0), config)
    with pytest.raises(
        VTAProgramError, match=r"buffers of wgt cannot move by 0x80 bytes, .* multiple of the element's 256"
    ):
        relocate(program.words, config, BaseAddresses(wgt=128))
