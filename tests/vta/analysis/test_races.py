"""What is surely over when an instruction starts, against all schedules of small programs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tvm_ext.backends.vta.analysis.races import Race, find_races, happens_before
from tvm_ext.backends.vta.config import VTAConfig
from tvm_ext.backends.vta.isa.instructions import Finish, Gemm, Instruction, Load, MemoryType, Store
from tvm_ext.backends.vta.isa.modules import POPS, PUSHES, Module, Queue, module_of, pops, pushes

INSTRUCTION_OF = {Module.LOAD: Load, Module.COMPUTE: Gemm, Module.STORE: Store}


@st.composite
def programs(draw: st.DrawFn) -> list[Instruction]:
    program: list[Instruction] = []
    for _ in range(draw(st.integers(0, 7))):
        module = draw(st.sampled_from(list(Module)))
        flags = {flag: draw(st.booleans()) for flag in (*POPS[module], *PUSHES[module])}
        program.append(INSTRUCTION_OF[module](**flags))
    return program


def ended_in_all_schedules(program: list[Instruction]) -> list[set[int] | None]:
    """Walk through every order of starts and ends; for each instruction, what has ended in all of them at its start."""
    members = {module: [i for i, x in enumerate(program) if module_of(x) == module] for module in Module}
    ended: list[set[int] | None] = [None] * len(program)
    seen = set()
    states = [(0, 0, 0, 0, 0, 0)]  # instructions started by each module, and ended
    while states:
        state = states.pop()
        if state in seen:
            continue
        seen.add(state)
        over = {index for module in Module for index in members[module][: state[3 + module]]}
        begun = [index for module in Module for index in members[module][: state[module]]]
        tokens = dict.fromkeys(Queue, 0)
        for index in over:
            for queue in pushes(program[index]).values():
                tokens[queue] += 1
        for index in begun:
            for queue in pops(program[index]).values():
                tokens[queue] -= 1
        for module in Module:
            after = list(state)
            if state[module] > state[3 + module]:
                after[3 + module] += 1
                states.append(tuple(after))
            elif state[module] < len(members[module]):
                index = members[module][state[module]]
                if all(tokens[queue] > 0 for queue in pops(program[index]).values()):
                    before = ended[index]
                    ended[index] = over if before is None else before & over
                    after[module] += 1
                    states.append(tuple(after))
    return ended


@given(programs())
def test_all_schedules(program: list[Instruction]) -> None:
    known = happens_before(program)
    for index, ended in enumerate(ended_in_all_schedules(program)):
        if ended is None:
            assert known[index].tolist() == [-2, -2, -2]
            continue
        for module in Module:
            own = {i for i in ended if module_of(program[i]) == module}
            expected = index if module == module_of(program[index]) else max(own, default=-1)
            assert known[index, module] == expected


def test_races_are_found() -> None:
    config = VTAConfig()
    dram = np.zeros(8192, np.uint8)
    uop = Load(memory_type=MemoryType.UOP, dram_base=0x400, y_size=1, x_size=1)
    load = Load(dram_base=0x100, y_size=1, x_size=1)
    gemm = Gemm(uop_end=1, iter_out=1, iter_in=1)
    assert find_races([uop, load, gemm, Finish()], config, dram) == [Race(1, 2)]
    ordered = [uop, replace(load, push_next=True), replace(gemm, pop_prev=True), Finish()]
    assert find_races(ordered, config, dram) == []
    assert find_races([*ordered[:3], load, Finish()], config, dram) == [Race(2, 3)]
