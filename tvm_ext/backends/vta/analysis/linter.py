"""What makes a stream mean different things on simulators, synthesised boards and the RTL generator's designs.

The boards differ from the simulators in ways that no error shows: operations that are not there, padding that is
ignored, an output memory that only GEMM and ALU write, results that are not there yet when the next step reads them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tvm_ext.backends.vta.analysis.accesses import accesses
from tvm_ext.backends.vta.analysis.checks import step_count
from tvm_ext.backends.vta.analysis.races import find_races, happens_before
from tvm_ext.backends.vta.analysis.step_order import reads_previous, same_destination
from tvm_ext.backends.vta.config import VTAConfig
from tvm_ext.backends.vta.isa.instructions import (
    Alu,
    AluOpcode,
    Finish,
    Gemm,
    Instruction,
    Load,
    MemoryType,
    Store,
    decode_uops,
)
from tvm_ext.backends.vta.isa.modules import Queue, module_of, pops, pushes

RTL_UOP_DEPTH = 2048
# A step of GEMM must not accumulate into what one of the two steps before it did.
GEMM_DISTANCE = 2
TOKENS = 255  # an eight-bit counter
SHIFT = 15


@dataclass(frozen=True)
class Finding:
    """A place where implementations may differ.

    Attributes
    ----------
    instruction : int
    rule : str
        Short name of the rule.
    sentence : str
        What is wrong, and what to do.
    """

    instruction: int
    rule: str
    sentence: str

    def __str__(self) -> str:
        return f"instruction {self.instruction}: {self.sentence} [{self.rule}]"


def lint(
    program: Sequence[Instruction], config: VTAConfig, dram: NDArray[np.uint8], base: int = 0x1000
) -> list[Finding]:
    """Check a stream that the simulators accept against the portable subset.

    Parameters
    ----------
    program : sequence of Instruction
    config : VTAConfig
    dram : NDArray[np.uint8]
        Memory image before the run; micro-ops are read from it.
    base : int
        Address of its first byte.

    Returns
    -------
    list of Finding
        In program order; empty for a portable stream.
    """
    findings = [finding for index, x in enumerate(program) for finding in _fields(index, x, config)]
    findings += _memories(program, config, dram, base)
    findings += _order(program, config, dram, base)
    return sorted(findings, key=lambda finding: finding.instruction)


def _fields(index: int, instruction: Instruction, config: VTAConfig) -> Iterator[Finding]:
    if isinstance(instruction, Gemm | Alu):
        if not step_count(instruction):
            yield Finding(index, "no-steps", "a loop without turns never ends in hardware; leave the instruction out")
        if instruction.uop_end > RTL_UOP_DEPTH:
            yield Finding(
                index, "uop-depth",
                f"uop_end is {instruction.uop_end}, but hardware may hold {RTL_UOP_DEPTH}; use fewer micro-ops at once",
            )  # fmt: skip
    if isinstance(instruction, Alu):
        if instruction.alu_opcode == AluOpcode.MUL:
            yield Finding(index, "alu-mul", "only simulators multiply in ALU; shift, or scale the weights")
        if instruction.alu_opcode == AluOpcode.SHR:
            if instruction.use_imm and abs(instruction.imm) > SHIFT:
                yield Finding(
                    index, "shift", f"hardware shifts by at most {SHIFT}, found {instruction.imm}; shift twice"
                )
            if not instruction.use_imm and instruction.imm:
                yield Finding(index, "shift", f"imm of a shift by a tensor is {instruction.imm}; set it to 0")
    if isinstance(instruction, Load | Store) and instruction.x_size and not instruction.y_size:
        yield Finding(index, "no-rows", "y_size is 0 where x_size is not, which never ends in hardware")
    if isinstance(instruction, Load) and instruction.x_size:
        memory = MemoryType(instruction.memory_type)
        padded = instruction.y_pad_0 or instruction.y_pad_1 or instruction.x_pad_0 or instruction.x_pad_1
        if memory == MemoryType.ACC_8BIT:
            yield Finding(index, "acc-8bit", "only simulators load bytes into accumulators; load ACC")
        if padded and memory in (MemoryType.UOP, MemoryType.WGT):
            yield Finding(index, "pads", f"hardware ignores the padding of {memory.name}; store the zeros in DRAM")
        if padded and memory == MemoryType.ACC and config.isa == 1:
            yield Finding(index, "pads", "the published bitstreams ignore the padding of ACC; reset it with GEMM")
        if memory == MemoryType.UOP and instruction.y_size > 1:
            yield Finding(index, "uop-rows", "hardware loads one row of micro-ops; use a LOAD for each")


def _memories(
    program: Sequence[Instruction], config: VTAConfig, dram: NDArray[np.uint8], base: int
) -> Iterator[Finding]:
    """Rules about what was in the memories before: micro-ops, and who wrote an accumulator last."""
    stored_as_computed = np.zeros(config.depths["acc"], bool)
    uops = np.zeros((config.depths["uop"], 3), np.int64)
    for index, (instruction, found) in enumerate(zip(program, accesses(program, config, dram, base), strict=True)):
        if isinstance(instruction, Store) and instruction.x_size:
            stale = found.reads["acc"][~stored_as_computed[found.reads["acc"]]]
            if stale.size:
                yield Finding(
                    index, "stale-store",
                    f"accumulator {int(stale[0])} was not last written by ALU or by a GEMM that accumulates, so "
                    "hardware stores something older; shift it by 0 first",
                )  # fmt: skip
        elif isinstance(instruction, Load) and instruction.memory_type == MemoryType.UOP and instruction.x_size:
            written, columns = found.writes["uop"], instruction.x_pad_0 + instruction.x_size + instruction.x_pad_1
            loaded = np.zeros((len(written) // columns, columns, 3), np.int64)
            for row in range(instruction.y_size):
                start = (instruction.dram_base + row * instruction.x_stride) * 4 % (1 << 32) - base
                words = dram[start : start + instruction.x_size * 4].view(np.uint32)
                at = instruction.x_pad_0
                loaded[instruction.y_pad_0 + row, at : at + instruction.x_size] = decode_uops(words, config)
            uops[written] = loaded.reshape(-1, 3)
        elif isinstance(instruction, Gemm | Alu) and step_count(instruction):
            yield from _steps(index, instruction, uops[instruction.uop_bgn : instruction.uop_end])
        if "acc" in found.writes:
            computed = isinstance(instruction, Alu) or (isinstance(instruction, Gemm) and not instruction.reset_reg)
            stored_as_computed[found.writes["acc"]] = computed


def _steps(index: int, instruction: Gemm | Alu, uops: NDArray[np.int64]) -> Iterator[Finding]:
    """Rules about steps that follow each other."""
    if isinstance(instruction, Alu):
        if not instruction.use_imm and uops[:, 2].any():
            yield Finding(
                index, "alu-wgt", "wgt_idx of a micro-op of ALU must be 0: hardware takes it for more of src_idx"
            )
        if same_destination(instruction, uops, 1):
            yield Finding(index, "distance", "two steps of ALU in a row write the same accumulator; change their order")
        if not instruction.use_imm and reads_previous(instruction, uops):
            yield Finding(index, "distance", "a step of ALU reads what the step before it writes; change their order")
    elif not instruction.reset_reg:
        for distance in range(1, GEMM_DISTANCE + 1):
            if same_destination(instruction, uops, distance):
                yield Finding(
                    index, "distance",
                    f"GEMM accumulates into what it wrote {distance} steps before, which hardware may not have "
                    "finished; let the columns of the output be the innermost loop",
                )  # fmt: skip
                break


def _order(program: Sequence[Instruction], config: VTAConfig, dram: NDArray[np.uint8], base: int) -> Iterator[Finding]:
    """Rules about tokens."""
    known = happens_before(program)
    for race in find_races(program, config, dram, base):
        yield Finding(race.second, "race", f"it shares memory with instruction {race.first}, and nothing orders them")
    end = len(program) - 1
    if program and isinstance(program[end], Finish):
        for index, instruction in enumerate(program[:end]):
            if index > known[end, module_of(instruction)]:
                yield Finding(index, "finish", "nothing orders it before FINISH, so the run may end without it")
    for queue in Queue:
        given = [index for index, x in enumerate(program) if queue in pushes(x).values()]
        taken = [index for index, x in enumerate(program) if queue in pops(x).values()]
        if len(given) > len(taken):
            yield Finding(
                given[-1], "token-left",
                f"{len(given)} tokens are given to the queue {queue}, {len(taken)} taken; the next run has the rest",
            )  # fmt: skip
        if not taken:
            continue
        taker = module_of(program[taken[0]])
        for number, index in enumerate(given):
            surely_taken = int(np.searchsorted(taken, known[index, taker], side="right"))
            if number + 1 - surely_taken > TOKENS:
                yield Finding(
                    index, "token-count",
                    f"more than {TOKENS} tokens may wait in the queue {queue}, and hardware loses the others",
                )  # fmt: skip
                break
