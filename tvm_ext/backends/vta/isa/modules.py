"""The three modules that run instructions, and the four token queues between them."""

from __future__ import annotations

from enum import IntEnum

from tvm_ext.backends.vta.isa.instructions import Instruction, Load, MemoryType, Store


class Module(IntEnum):
    """A module; each runs its own instructions in program order."""

    LOAD = 0
    COMPUTE = 1
    STORE = 2


class Queue(IntEnum):
    """A token queue, from the module that pushes to the module that pops."""

    LOAD_TO_COMPUTE = 0
    COMPUTE_TO_LOAD = 1
    COMPUTE_TO_STORE = 2
    STORE_TO_COMPUTE = 3

    def __str__(self) -> str:
        return self.name.lower().replace("_", " ")


# For each module and each of its legal flags, the queue that the flag takes a token from or gives one to.
POPS: dict[Module, dict[str, Queue]] = {
    Module.LOAD: {"pop_next": Queue.COMPUTE_TO_LOAD},
    Module.COMPUTE: {"pop_prev": Queue.LOAD_TO_COMPUTE, "pop_next": Queue.STORE_TO_COMPUTE},
    Module.STORE: {"pop_prev": Queue.COMPUTE_TO_STORE},
}
PUSHES: dict[Module, dict[str, Queue]] = {
    Module.LOAD: {"push_next": Queue.LOAD_TO_COMPUTE},
    Module.COMPUTE: {"push_prev": Queue.COMPUTE_TO_LOAD, "push_next": Queue.COMPUTE_TO_STORE},
    Module.STORE: {"push_prev": Queue.STORE_TO_COMPUTE},
}
FLAGS = ("pop_prev", "pop_next", "push_prev", "push_next")


def module_of(instruction: Instruction) -> Module:
    """Return the module that runs an instruction: micro-ops and accumulators are loaded by the compute module."""
    if isinstance(instruction, Store):
        return Module.STORE
    if isinstance(instruction, Load) and instruction.memory_type in (MemoryType.INP, MemoryType.WGT):
        return Module.LOAD
    return Module.COMPUTE


def pops(instruction: Instruction) -> dict[str, Queue]:
    """Queues that an instruction takes a token from, by flag."""
    return {flag: queue for flag, queue in POPS[module_of(instruction)].items() if getattr(instruction, flag)}


def pushes(instruction: Instruction) -> dict[str, Queue]:
    """Queues that an instruction gives a token to, by flag."""
    return {flag: queue for flag, queue in PUSHES[module_of(instruction)].items() if getattr(instruction, flag)}
