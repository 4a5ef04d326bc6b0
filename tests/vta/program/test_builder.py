"""The builder: micro-op kernels come and go as they fit, tokens are added, what cannot be is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tvm_ext.backends.vta.config import VTAConfig
from tvm_ext.backends.vta.isa.instructions import Alu, AluOpcode, Finish, Gemm, Load, MemoryType
from tvm_ext.backends.vta.memory import MemoryImage
from tvm_ext.backends.vta.program.builder import Program, ProgramBuilder, read_outputs
from tvm_ext.backends.vta.simulate.reference import ReferenceSimulator, alu
from tvm_ext.backends.vta.simulate.simulator import Simulator
from tvm_ext.errors import VTAProgramError

CONFIG = VTAConfig()
ELEMENTS = 12


def image_of(values: np.ndarray) -> MemoryImage:
    image = MemoryImage()
    image.allocate("values", values)
    image.allocate("out", values.size)
    return image


def uop_loads(program: Program) -> list[Load]:
    loads = [x for x in program.instructions if isinstance(x, Load) and x.memory_type == MemoryType.UOP]
    return [load for load in loads if load.x_size]


Operation = tuple[AluOpcode, int | None, list[tuple[int, int]]]
INDEX = st.integers(0, ELEMENTS - 1)
OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from([AluOpcode.MIN, AluOpcode.MAX, AluOpcode.ADD, AluOpcode.SHR]),
        st.none() | st.integers(-15, 15),
        st.lists(st.tuples(INDEX, INDEX), min_size=1, max_size=9),
    ),
    min_size=1, max_size=12,
)  # fmt: skip


@settings(max_examples=50, deadline=None)
@given(OPERATIONS, st.sampled_from([3, 5, 9, 2048]), st.integers(0, 99))
def test_any_steps_in_any_micro_op_memory(operations: list[Operation], depth: int, seed: int) -> None:
    values = np.random.default_rng(seed).integers(-(1 << 20), 1 << 20, (ELEMENTS, 16)).astype(np.int32)
    builder = ProgramBuilder(CONFIG, image_of(values), depth)
    builder.load(MemoryType.ACC, "values", 0, 0, ELEMENTS)
    expected = values.copy()
    for opcode, imm, steps in operations:
        builder.alu(opcode, np.array(steps), imm)
        for dst, src in steps:
            expected[dst] = alu(opcode, expected[dst], expected[src] if imm is None else np.int32(imm))
    builder.store("out", 0, 0, ELEMENTS)
    program = builder.build()
    result = Simulator(CONFIG).run(program.words, program.image.data, program.image.base)
    found = read_outputs(program, "out", (ELEMENTS, 16), result.dram)
    np.testing.assert_array_equal(found, expected.astype(np.int8))
    assert all(load.sram_base + load.x_size <= depth for load in uop_loads(program))


def kernels(depth: int) -> Program:
    """Three kernels of four micro-ops each, used in turn, twice."""
    builder = ProgramBuilder(CONFIG, image_of(np.zeros((ELEMENTS, 16), np.int32)), depth)
    builder.load(MemoryType.ACC, "values", 0, 0, ELEMENTS)
    for _ in range(2):
        for first in range(3):
            builder.alu(AluOpcode.ADD, np.array([(0, first), (3, 1), (1, first), (7, 2)]))
    return builder.build()


@pytest.mark.parametrize(("depth", "sizes"), [(12, [12]), (11, [4] * 6), (8, [4] * 6), (4, [4] * 6)])
def test_kernels_are_loaded_together_if_they_fit_else_when_needed(depth: int, sizes: list[int]) -> None:
    program = kernels(depth)
    assert [load.x_size for load in uop_loads(program)] == sizes


def test_a_kernel_that_is_still_there_is_not_loaded_again() -> None:
    builder = ProgramBuilder(CONFIG, image_of(np.zeros((ELEMENTS, 16), np.int32)), 6)
    builder.load(MemoryType.ACC, "values", 0, 0, ELEMENTS)
    long, short = np.array([(0, 1), (3, 1), (1, 1), (7, 2)]), np.array([(2, 5), (9, 1), (3, 3)])
    for steps in (long, long, short, short, long):
        builder.alu(AluOpcode.MAX, steps)
    assert [load.x_size for load in uop_loads(builder.build())] == [4, 3, 4]


def test_equal_steps_share_a_kernel_and_regular_ones_a_micro_op() -> None:
    builder = ProgramBuilder(CONFIG, image_of(np.zeros((ELEMENTS, 16), np.int32)))
    row = np.arange(8)
    for _ in range(3):
        builder.gemm(np.stack([row, 0 * row, 0 * row], axis=1), reset=True)
        builder.alu(AluOpcode.SHR, row[:, None], 3)
    program = builder.build()
    assert [load.x_size for load in uop_loads(program)] == [1]
    nests = [x for x in program.instructions if isinstance(x, Gemm | Alu)]
    assert {(x.uop_bgn, x.uop_end, x.iter_out * x.iter_in, x.dst_factor_out) for x in nests} == {(0, 1, 8, 1)}


def test_an_empty_program_only_ends() -> None:
    program = ProgramBuilder(CONFIG, image_of(np.zeros((1, 16), np.int32))).build()
    assert isinstance(program.instructions[-1], Finish)
    result = ReferenceSimulator(CONFIG).run(program.words, program.image.data, program.image.base)
    np.testing.assert_array_equal(result.dram, program.image.data)


def test_what_cannot_be_built() -> None:
    builder = ProgramBuilder(CONFIG, image_of(np.zeros((1, 16), np.int32)))
    with pytest.raises(VTAProgramError, match="the memory image has no buffer 'weights'; it has values, out"):
        builder.load(MemoryType.WGT, "weights", 0, 0, 1)
    odd = MemoryImage(base=0x1010)
    odd.allocate("weights", 256)
    with pytest.raises(
        VTAProgramError, match="'weights' begins at address 0x1010, not at a multiple of the element's 256"
    ):
        ProgramBuilder(CONFIG, odd).load(MemoryType.WGT, "weights", 0, 0, 1)
    builder.load(MemoryType.INP, "values", 0, 0, 1, pads=(16, 0, 0, 0))
    with pytest.raises(VTAProgramError, match=r"LOAD field y_pad_0 is 16; it has 4 bits"):
        builder.build()
