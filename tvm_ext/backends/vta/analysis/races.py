"""Find races: instructions that share memory while nothing orders them. Made from the flags of a finished stream."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tvm_ext.backends.vta.analysis.dependencies import conflicts
from tvm_ext.backends.vta.config import VTAConfig
from tvm_ext.backends.vta.isa.instructions import Instruction
from tvm_ext.backends.vta.isa.modules import Module, Queue, module_of, pops, pushes


@dataclass(frozen=True)
class Race:
    """Two instructions of different modules that access the same memory in an order that is left to chance."""

    first: int
    second: int


def happens_before(program: Sequence[Instruction]) -> NDArray[np.int64]:
    """For each instruction, the latest one of every module that has surely ended when it starts.

    Returns
    -------
    NDArray[np.int64]
        [instructions, 3]; -1 for none; an instruction counts itself for its own module.

    Notes
    -----
    The k-th token taken from a queue is the k-th given to it. Instructions that can never start keep -2.
    """
    waiting = {module: deque(i for i, x in enumerate(program) if module_of(x) == module) for module in Module}
    known = np.full((len(program), 3), -2, np.int64)
    current = {module: np.full(3, -1, np.int64) for module in Module}
    tokens: dict[Queue, deque[NDArray[np.int64]]] = {queue: deque() for queue in Queue}
    progress = True
    while progress:
        progress = False
        for module, indices in waiting.items():
            while indices and all(tokens[queue] for queue in pops(program[indices[0]]).values()):
                index = indices.popleft()
                for queue in pops(program[index]).values():
                    current[module] = np.maximum(current[module], tokens[queue].popleft())
                current[module] = current[module].copy()
                current[module][module] = index
                known[index] = current[module]
                for queue in pushes(program[index]).values():
                    tokens[queue].append(current[module])
                progress = True
    return known


def find_races(
    program: Sequence[Instruction], config: VTAConfig, dram: NDArray[np.uint8], base: int = 0x1000
) -> list[Race]:
    """Find instructions that conflict with an earlier one of another module that they are not ordered after.

    Parameters
    ----------
    program : sequence of Instruction
        A stream that the simulators accept.
    config : VTAConfig
    dram : NDArray[np.uint8]
        Memory image before the run; micro-ops are read from it.
    base : int
        Address of its first byte.
    """
    known = happens_before(program)
    return [
        Race(earlier, index)
        for index, latest in conflicts(program, config, dram, base)
        for module, earlier in latest.items()
        if module != module_of(program[index]) and earlier > known[index, module]
    ]
