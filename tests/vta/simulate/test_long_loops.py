"""Loops with many turns: nothing walks them where it can be known what they do; that is compared with walking."""

from __future__ import annotations

import itertools
import time
from dataclasses import replace

import numpy as np
import pytest

from tests.vta.random_programs import closing
from tvm_ext.backends.vta.analysis.accesses import accesses
from tvm_ext.backends.vta.analysis.linter import lint
from tvm_ext.backends.vta.analysis.step_order import reads_previous, same_destination
from tvm_ext.backends.vta.config import VTAConfig
from tvm_ext.backends.vta.isa.instructions import (
    Alu,
    AluOpcode,
    Gemm,
    Instruction,
    Load,
    MemoryType,
    MicroOp,
    Store,
    encode_program,
    encode_uops,
)
from tvm_ext.backends.vta.memory import MemoryImage
from tvm_ext.backends.vta.simulate.reference import ReferenceSimulator, repeated
from tvm_ext.backends.vta.simulate.simulator import Simulator
from tvm_ext.backends.vta.timing.costs import costs_named
from tvm_ext.backends.vta.timing.cycles import time_program
from tvm_ext.errors import VTAProgramError

CONFIG = VTAConfig()
MOST = 16383  # turns that fit the field


def image(*uops: MicroOp, seed: int = 0) -> MemoryImage:
    rng = np.random.default_rng(seed)
    found = MemoryImage()
    found.allocate("uop", encode_uops(uops, CONFIG))
    for name, size in (("inp", CONFIG.inp_bytes), ("wgt", CONFIG.wgt_bytes), ("acc", CONFIG.acc_bytes)):
        found.allocate(name, rng.integers(0, 256, 8 * size, np.uint8))
    found.allocate("out", 8 * CONFIG.out_bytes)
    return found


def stream(memory: MemoryImage, *body: Instruction) -> list[Instruction]:
    """Load everything, run ``body``, store 8 accumulators."""
    sizes = {"inp": CONFIG.inp_bytes, "wgt": CONFIG.wgt_bytes, "acc": CONFIG.acc_bytes, "uop": 4}

    def load(name: str, count: int, **flags: bool) -> Load:
        base = memory.regions[name].address // sizes[name]
        return Load(
            memory_type=MemoryType[name.upper()], dram_base=base, y_size=1, x_size=count, x_stride=count, **flags
        )

    uops = memory.regions["uop"].nbytes // 4
    store = Store(
        dram_base=memory.regions["out"].address // CONFIG.out_bytes, y_size=1, x_size=8, x_stride=8, pop_prev=True
    )
    before = [load("inp", 8), load("wgt", 8, push_next=True), load("acc", 8, pop_prev=True), load("uop", uops)]
    last = replace(body[-1], push_next=True)
    return [*before, *body[:-1], last, store, *closing()]


def gemm(**fields: int) -> Gemm:
    return replace(Gemm(uop_end=1, iter_out=MOST, iter_in=MOST), **fields)


def alu(opcode: AluOpcode, imm: int | None = None, **fields: int) -> Alu:
    plain = Alu(alu_opcode=opcode, uop_end=1, iter_out=MOST, iter_in=MOST)
    return replace(plain, use_imm=imm is not None, imm=imm or 0, **fields)


LONG = {
    "gemm along one loop": gemm(iter_in=4, dst_factor_in=1, src_factor_in=1),
    "reset": gemm(reset_reg=True),
    "add": alu(AluOpcode.ADD, 7),
    "multiply": alu(AluOpcode.MUL, 3),
    "shift right": alu(AluOpcode.SHR, 1),
    "shift left": alu(AluOpcode.SHR, -1),
    "smallest": alu(AluOpcode.MIN, 5),
    "add a tensor": alu(AluOpcode.ADD, uop_bgn=1, uop_end=2),
    "largest of itself": alu(AluOpcode.MAX),
}


@pytest.mark.parametrize("instruction", LONG.values(), ids=LONG)
def test_the_most_turns(instruction: Gemm | Alu) -> None:
    """Both simulators agree, and everything that looks at the stream takes seconds at most."""
    memory = image(MicroOp(0, 0, 0), MicroOp(1, 3, 0))
    program = stream(memory, instruction)
    start = time.process_time()
    words = encode_program(program, CONFIG)
    expected = ReferenceSimulator(CONFIG).run(words, memory.data, memory.base)
    rules = {finding.rule for finding in lint(program, CONFIG, memory.data, memory.base)}
    assert rules <= {"distance", "alu-mul", "stale-store"}
    assert ("distance" in rules) == (instruction.dst_factor_in == 0 and not getattr(instruction, "reset_reg", False))
    timeline = time_program(program, CONFIG, costs_named("chisel"))
    assert timeline.cycles > instruction.iter_out * instruction.iter_in
    assert time.process_time() - start < 5
    found = Simulator(CONFIG).run(words, memory.data, memory.base)
    np.testing.assert_array_equal(found.dram, expected.dram)
    assert found.steps == expected.steps


@pytest.mark.parametrize("opcode", AluOpcode)
@pytest.mark.parametrize("repeats", [1, 2, 3, 33])
def test_repeated_is_one_after_the_other(opcode: AluOpcode, repeats: int) -> None:
    rng = np.random.default_rng(repeats)
    x = rng.integers(-(1 << 31), 1 << 31, (4, 16)).astype(np.int32)
    for y in (rng.integers(-(1 << 31), 1 << 31, (4, 16)).astype(np.int32), *map(np.int32, (-33, -1, 0, 1, 5, 40))):
        expected = x
        for _ in range(repeats):
            expected = repeated(opcode, expected, y, 1)
        np.testing.assert_array_equal(repeated(opcode, x, y, repeats), expected)


def test_a_loop_that_feeds_itself_is_bounded() -> None:
    """Accumulator 0 gets 1 added and 1 gets 0: neither known in advance nor ever at rest."""
    memory = image(MicroOp(0, 1), MicroOp(1, 0))
    program = stream(memory, alu(AluOpcode.ADD, uop_end=2))
    with pytest.raises(VTAProgramError, match=r"instruction 4 \(ALU\): its 536805378 steps .* iter_out") as error:
        ReferenceSimulator(CONFIG).run(encode_program(program, CONFIG), memory.data, memory.base)
    assert (error.value.instruction, error.value.field) == (4, "iter_out")


def random_loops(rng: np.random.Generator, kind: type) -> tuple[Gemm | Alu, np.ndarray]:
    uops = np.zeros((rng.integers(1, 5), 3), np.int64)
    uops[:, :2] = rng.integers(0, 4, (len(uops), 2))
    fields = {"uop_end": len(uops), "iter_out": int(rng.integers(1, 5)), "iter_in": int(rng.integers(1, 5))}
    names = ("dst_factor_out", "dst_factor_in", "src_factor_out", "src_factor_in")
    return kind(**fields, **{name: int(rng.integers(0, 4)) for name in names}), uops


def test_order_of_steps() -> None:
    """Against a list of all steps."""
    seen = set()
    for seed in range(1500):
        instruction, uops = random_loops(np.random.default_rng(seed), Alu)
        steps = [
            (
                d + i * instruction.dst_factor_out + j * instruction.dst_factor_in,
                s + i * instruction.src_factor_out + j * instruction.src_factor_in,
            )
            for i in range(instruction.iter_out)
            for j in range(instruction.iter_in)
            for d, s, _ in uops.tolist()
        ]
        for distance in (1, 2):
            same = any(a[0] == b[0] for a, b in zip(steps, steps[distance:], strict=False))
            assert same_destination(instruction, uops, distance) == same, (instruction, uops, distance)
        reads = any(a[0] == b[1] for a, b in itertools.pairwise(steps))
        assert reads_previous(instruction, uops) == reads, (instruction, uops)
        seen.add((same, reads))
    assert len(seen) == 4


def test_accesses_of_many_turns_take_no_memory() -> None:
    memory = image(MicroOp(2, 1, 3))
    found = list(accesses(stream(memory, gemm()), CONFIG, memory.data, memory.base))[4]
    assert {name: indices.tolist() for name, indices in found.reads.items()} == {
        "uop": [0], "acc": [2], "inp": [1], "wgt": [3],
    }  # fmt: skip
    assert found.writes["acc"].tolist() == [2]


def test_an_image_at_the_end_of_the_addresses() -> None:
    """What is remembered of DRAM begins where the image does."""
    memory = image(MicroOp(0))
    high = MemoryImage(base=0xF0000000)
    for name, region in memory.regions.items():
        high.allocate(name, memory.read(name, np.uint8, (region.nbytes,)))
    found = lint(stream(high, gemm(iter_out=1, iter_in=1)), CONFIG, high.data, high.base)
    assert found == lint(stream(memory, gemm(iter_out=1, iter_in=1)), CONFIG, memory.data, memory.base)
