"""Dependency tokens from hazards: modules may run ahead of each other, but never past what they share.

An instruction depends on an earlier one of another module if both access the same element and one of them writes it. A
token from the latest such instruction orders it after all of them, because modules run in order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tvm_ext.backends.vta.analysis.accesses import DRAM_UNIT, Accesses, Indices, accesses
from tvm_ext.backends.vta.config import VTAConfig
from tvm_ext.backends.vta.isa.instructions import Finish, Instruction, Load, MemoryType
from tvm_ext.backends.vta.isa.modules import FLAGS, Module, module_of

# From the module that gives a token to the one that takes it: their flags.
EDGES = {
    (Module.LOAD, Module.COMPUTE): ("push_next", "pop_prev"),
    (Module.COMPUTE, Module.LOAD): ("push_prev", "pop_next"),
    (Module.COMPUTE, Module.STORE): ("push_next", "pop_prev"),
    (Module.STORE, Module.COMPUTE): ("push_prev", "pop_next"),
}


class LastAccesses:
    """For every element, the last instruction of each module that read it, and that wrote it.

    Parameters
    ----------
    config : VTAConfig
    dram_units : range
        Those of the memory image.
    """

    def __init__(self, config: VTAConfig, dram_units: range) -> None:
        sizes = {**config.depths, "dram": len(dram_units)}
        self._first = {"dram": dram_units.start}
        # One more than the instruction, 0 for none: pages of zeros take no memory until something is written there.
        self._read = {name: np.zeros((3, size), np.int32) for name, size in sizes.items()}
        self._written = {name: np.zeros((3, size), np.int32) for name, size in sizes.items()}

    def before(self, found: Accesses) -> dict[Module, int]:
        """Return the latest instruction of each module that conflicts with these accesses; -1 for none."""
        latest = np.zeros(3, np.int32)
        for name, indices in found.reads.items():
            latest = np.maximum(latest, self._places(self._written, name, indices).max(axis=1, initial=0))
        for name, indices in found.writes.items():
            for table in (self._read, self._written):
                latest = np.maximum(latest, self._places(table, name, indices).max(axis=1, initial=0))
        return {module: int(latest[module]) - 1 for module in Module}

    def record(self, index: int, module: Module, found: Accesses) -> None:
        """Note the accesses of an instruction."""
        for table, indices_of in ((self._read, found.reads), (self._written, found.writes)):
            for name, indices in indices_of.items():
                table[name][module, indices - self._first.get(name, 0)] = index + 1

    def _places(self, table: dict[str, NDArray[np.int32]], name: str, indices: Indices) -> NDArray[np.int32]:
        return table[name][:, indices - self._first.get(name, 0)]


def conflicts(
    program: Sequence[Instruction], config: VTAConfig, dram: NDArray[np.uint8], base: int
) -> Iterator[tuple[int, dict[Module, int]]]:
    """For each instruction, the latest one of every module that it conflicts with; -1 for none."""
    # Addresses wrap at 32 bits, but a stream that the simulators accept stays inside the image.
    last = LastAccesses(config, range(base // DRAM_UNIT, (base + dram.size) // DRAM_UNIT + 1))
    for index, found in enumerate(accesses(program, config, dram, base)):
        yield index, last.before(found)
        last.record(index, module_of(program[index]), found)


def add_tokens(
    program: Sequence[Instruction], config: VTAConfig, dram: NDArray[np.uint8], base: int = 0x1000
) -> list[Instruction]:
    """Order a stream by tokens, so that every schedule of the modules gives what program order gives.

    Parameters
    ----------
    program : sequence of Instruction
        Without FINISH; dependency flags are ignored.
    config : VTAConfig
    dram : NDArray[np.uint8]
        Memory image before the run.
    base : int
        Address of its first byte.

    Returns
    -------
    list of Instruction
        With flags, with empty compute instructions where load and store wait for each other (they share no queue), and
        with the end: everything is waited for, then FINISH. No token is left over.
    """
    plain = [replace(instruction, **dict.fromkeys(FLAGS, False)) for instruction in program]
    stream = _Stream()
    position: list[int] = []
    for index, latest in conflicts(plain, config, dram, base):
        needed = {module: position[earlier] for module, earlier in latest.items() if earlier >= 0}
        stream.append(plain[index], needed)
        position.append(len(stream.instructions) - 1)
    last = {module: at for module, at in stream.latest.items() if at >= 0}
    stream.append(Load(memory_type=MemoryType.UOP), last)
    return [*stream.instructions, Finish()]


class _Stream:
    """Instructions so far, each with its clock: the latest instruction of every module that surely ran before it."""

    def __init__(self) -> None:
        self.instructions: list[Instruction] = []
        self.latest = dict.fromkeys(Module, -1)  # index of the last instruction of each module
        self._clocks: list[dict[Module, int]] = []

    def append(self, instruction: Instruction, needed: dict[Module, int]) -> None:
        """Append an instruction that must come after those in ``needed``."""
        module = module_of(instruction)
        distant = {Module.LOAD: Module.STORE, Module.STORE: Module.LOAD}.get(module)
        if distant is not None and distant in needed:
            clock = self._clock(module, needed)
            if clock[distant] < needed[distant]:
                self.append(Load(memory_type=MemoryType.UOP), {distant: needed[distant]})
                needed = {Module.COMPUTE: len(self.instructions) - 1}
        clock = self._clock(module, {})
        for other in Module:
            giver = needed.get(other, -1)
            if other != module and other != distant and clock[other] < giver:
                push, pop = EDGES[other, module]
                self.instructions[giver] = replace(self.instructions[giver], **{push: True})
                instruction = replace(instruction, **{pop: True})
                clock = self._merge(clock, giver)
        clock[module] = self.latest[module] = len(self.instructions)
        self.instructions.append(instruction)
        self._clocks.append(clock)

    def _clock(self, module: Module, needed: dict[Module, int]) -> dict[Module, int]:
        """Clock of the next instruction of a module, if tokens order it after its neighbours in ``needed``."""
        previous = self.latest[module]
        clock = dict(self._clocks[previous]) if previous >= 0 else dict.fromkeys(Module, -1)
        for other, giver in needed.items():
            if (other, module) in EDGES:
                clock = self._merge(clock, giver)
        return clock

    def _merge(self, clock: dict[Module, int], giver: int) -> dict[Module, int]:
        known = self._clocks[giver]
        return {module: max(clock[module], known[module]) for module in Module}
