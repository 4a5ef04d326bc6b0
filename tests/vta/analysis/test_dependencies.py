"""Tokens make every schedule of the modules give what program order gives; the race finder checks them by itself."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from tests.vta.random_programs import Draw, closing
from tvm_ext.backends.vta.analysis.dependencies import add_tokens
from tvm_ext.backends.vta.analysis.races import find_races, happens_before
from tvm_ext.backends.vta.config import VTAConfig, load_config
from tvm_ext.backends.vta.isa.instructions import Finish, Gemm, Instruction, Load, MemoryType, Store, encode_program
from tvm_ext.backends.vta.isa.modules import FLAGS, Module, module_of, pops, pushes
from tvm_ext.backends.vta.simulate.reference import ReferenceSimulator
from tvm_ext.backends.vta.simulate.simulator import Simulator

ORDERS = list(itertools.permutations(Module))


def draw_body(seed: int, config: VTAConfig, length: int = 25) -> tuple[list[Instruction], Draw]:
    """A random program without tokens; some loads read what stores wrote."""
    rng = np.random.default_rng(seed)
    draw = Draw(rng, config)
    body: list[Instruction] = [draw.load(memory) for memory in ("uop", "inp", "wgt", "acc")]
    for _ in range(length):
        instruction = draw.instruction()
        if isinstance(instruction, Load) and instruction.memory_type == MemoryType.INP and rng.random() < 0.5:
            out = draw.image.regions["out"].address // config.inp_bytes
            instruction = replace(instruction, dram_base=out + int(rng.integers(40)))
        body.append(instruction)
    return body, draw


def in_program_order(body: list[Instruction]) -> list[Instruction]:
    """Make the modules take turns: a chain of tokens through all instructions."""
    chained: list[Instruction] = []
    for instruction in body:
        if chained and {module_of(chained[-1]), module_of(instruction)} == {Module.LOAD, Module.STORE}:
            chained.append(Load(memory_type=MemoryType.UOP))
        chained.append(instruction)
    for index in range(1, len(chained)):
        before, after = module_of(chained[index - 1]), module_of(chained[index])
        if before != after:
            push, pop = ("push_next", "pop_prev") if before < after else ("push_prev", "pop_next")
            chained[index - 1] = replace(chained[index - 1], **{push: True})  # type: ignore[arg-type]
            chained[index] = replace(chained[index], **{pop: True})  # type: ignore[arg-type]
    return chained + closing()


@pytest.mark.parametrize("name", ["sim", "pynq_0.0.1", "sim_4x8"])
def test_every_schedule_gives_what_program_order_gives(name: str) -> None:
    config = load_config(name)
    tokens = 0
    for seed in range(20):
        body, draw = draw_body(seed, config)
        image = draw.image
        expected = Simulator(config).run(encode_program(in_program_order(body), config), image.data, image.base)
        program = add_tokens(body, config, image.data, image.base)
        assert find_races(program, config, image.data, image.base) == []
        words = encode_program(program, config)
        assert isinstance(program[-1], Finish)
        for turns in ORDERS:
            result = ReferenceSimulator(config, turns).run(words, image.data, image.base)
            np.testing.assert_array_equal(result.dram, expected.dram)
            assert result.tokens_left == (0, 0, 0, 0)
        # Nothing but flags and empty compute instructions is added.
        plain = [replace(instruction, **dict.fromkeys(FLAGS, False)) for instruction in program[:-1]]
        added = Counter(plain) - Counter(body)
        assert set(added) <= {Load(memory_type=MemoryType.UOP)}
        tokens += sum(len(pushes(instruction)) for instruction in program)
    assert tokens


def test_no_token_can_be_left_out() -> None:
    """Without any of them there is a race, or FINISH does not come last."""
    config = VTAConfig()
    for seed in range(12):
        body, draw = draw_body(seed, config, length=12)
        program = add_tokens(body, config, draw.image.data, draw.image.base)
        givers = [(i, flag) for i, instruction in enumerate(program) for flag in pushes(instruction)]
        for giver, flag in givers:
            taken = [
                (j, pop)
                for j, instruction in enumerate(program)
                for pop, queue in pops(instruction).items()
                if queue == pushes(program[giver])[flag]
            ]
            rank = sum(1 for i, f in givers if i < giver and pushes(program[i])[f] == pushes(program[giver])[flag])
            taker, pop = taken[rank]
            fewer = list(program)
            fewer[giver] = replace(fewer[giver], **{flag: False})  # type: ignore[arg-type]
            fewer[taker] = replace(fewer[taker], **{pop: False})  # type: ignore[arg-type]
            races = find_races(fewer, config, draw.image.data, draw.image.base)
            last = happens_before(fewer)[-1]
            unordered = any(index > last[module_of(instruction)] for index, instruction in enumerate(fewer[:-1]))
            assert races or unordered


def test_a_pipeline_overlaps() -> None:
    """Loads into two halves of the input memory wait for the GEMM before the last, not for the last one."""
    config = VTAConfig()
    body: list[Instruction] = [Load(memory_type=MemoryType.UOP, dram_base=0x400, y_size=1, x_size=1)]
    for turn in range(4):
        body.append(Load(sram_base=turn % 2, dram_base=0x200 + turn, y_size=1, x_size=1))
        body.append(Gemm(uop_end=1, iter_out=1, iter_in=1, src_factor_out=turn % 2))
    dram = np.zeros(8192, np.uint8)
    program = add_tokens(body, config, dram)
    known = happens_before(program)
    loads = [
        index
        for index, instruction in enumerate(program)
        if isinstance(instruction, Load) and instruction.memory_type == 2
    ]
    gemms = [index for index, instruction in enumerate(program) if isinstance(instruction, Gemm)]
    # The micro-op has no source offset, so all GEMMs read the first element.
    assert known[loads[1], Module.COMPUTE] == -1
    assert known[loads[2], Module.COMPUTE] == gemms[1]
    assert [known[gemm, Module.LOAD] for gemm in gemms] == [loads[0], loads[0], loads[2], loads[2]]


def test_a_store_and_a_load_of_the_same_memory_are_ordered_through_compute() -> None:
    config = VTAConfig()
    body: list[Instruction] = [
        Store(dram_base=0x100, y_size=1, x_size=1),
        Load(dram_base=0x100, y_size=1, x_size=1),
        Store(dram_base=0x100, y_size=1, x_size=1),
    ]
    dram = np.zeros(4096, np.uint8)
    program = add_tokens(body, config, dram)
    assert [module_of(instruction).name[0] for instruction in program] == list("SCLCSCC")
    assert find_races(program, config, dram) == []
