"""What can be said against an instruction stream before it runs: in program order, the first thing wrong."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tvm_ext.backends.vta.config import VTAConfig
from tvm_ext.backends.vta.isa.faults import Fault, Refusal, dram_address, element_bytes, memory_name
from tvm_ext.backends.vta.isa.instructions import (
    Alu,
    AluOpcode,
    Finish,
    Gemm,
    Instruction,
    Load,
    MemoryType,
    Opcode,
    Store,
    decode,
)
from tvm_ext.backends.vta.isa.modules import FLAGS, POPS, PUSHES, module_of
from tvm_ext.backends.vta.memory import ADDRESS_SPACE
from tvm_ext.errors import VTAProgramError

LOADABLE = (MemoryType.UOP, MemoryType.WGT, MemoryType.INP, MemoryType.ACC, MemoryType.ACC_8BIT)


def check_stream(
    words: Sequence[Sequence[int]], config: VTAConfig, dram: tuple[int, int], max_steps: int
) -> Refusal | None:
    """Check a stream.

    Parameters
    ----------
    words : sequence of (int, int)
        Two words an instruction.
    config : VTAConfig
    dram : tuple of int
        Address of the memory image, and its bytes.
    max_steps : int
        Most steps of GEMM and ALU that the whole stream may ask for.

    Returns
    -------
    Refusal or None
        The first thing wrong; None if the stream may run.
    """
    steps = 0
    for index, (low, high) in enumerate(words):
        if low & 7 not in list(Opcode):
            return Refusal(Fault.OPCODE, index, "opcode", low & 7)
        instruction = decode(low, high, config)
        refusal = _check_instruction(index, instruction, config, dram)
        if refusal is not None:
            return refusal
        if isinstance(instruction, Gemm | Alu):
            steps += step_count(instruction)
            if steps > max_steps:
                return Refusal(Fault.STEPS, index, "iter_out", steps)
        if isinstance(instruction, Finish) and index != len(words) - 1:
            return Refusal(Fault.FINISH, index, "opcode", Opcode.FINISH)
    if not words or words[-1][0] & 7 != Opcode.FINISH:
        return Refusal(Fault.FINISH, max(len(words) - 1, 0), "opcode", words[-1][0] & 7 if words else 0)
    return None


def check_fields(words: NDArray[np.uint64], config: VTAConfig) -> None:
    """Check what can be said against a stream without its DRAM; it may end without FINISH, and loops may be long.

    Raises
    ------
    VTAProgramError
        Naming the first instruction that is illegal, and its field.
    """
    pairs, every = words.tolist(), (0, ADDRESS_SPACE)
    refusal = check_stream(pairs, config, every, sys.maxsize)
    if refusal is not None and refusal.fault != Fault.FINISH:
        raise refusal_error(refusal, pairs, config, every, sys.maxsize)


def step_count(instruction: Gemm | Alu) -> int:
    """Micro-ops that an instruction executes; no loop runs when one of its bounds is zero."""
    return instruction.iter_out * instruction.iter_in * max(instruction.uop_end - instruction.uop_bgn, 0)


def refusal_error(
    refusal: Refusal, words: Sequence[Sequence[int]], config: VTAConfig, dram: tuple[int, int], max_steps: int
) -> VTAProgramError:
    """Build the error for a refused stream; it says so if the stream is legal in the other generation's encoding."""
    error = refusal.error(words, config, dram, max_steps)
    other = dataclasses.replace(config, hw_ver="0.0.2" if config.isa == 1 else "0.0.1")
    if check_stream(words, other, dram, max_steps) is not None:
        return error
    message = (
        f"{error}; the whole stream is legal for HW_VER {other.hw_ver}, so it was probably encoded for that generation "
        f"and not for {config.hw_ver}: use a configuration with HW_VER {other.hw_ver}"
    )
    return VTAProgramError(message, instruction=error.instruction, field=error.field)


def _check_instruction(
    index: int, instruction: Instruction, config: VTAConfig, dram: tuple[int, int]
) -> Refusal | None:
    if isinstance(instruction, Load) and instruction.memory_type not in LOADABLE:
        return Refusal(Fault.MEMORY_TYPE, index, "memory_type", instruction.memory_type)
    module = module_of(instruction)
    for flag in FLAGS:
        if getattr(instruction, flag) and flag not in POPS[module] and flag not in PUSHES[module]:
            return Refusal(Fault.FLAG, index, flag, 1)
    if isinstance(instruction, Load | Store) and instruction.x_size:
        return _check_transfer(index, instruction, config, dram)
    if isinstance(instruction, Alu) and instruction.alu_opcode not in list(AluOpcode):
        return Refusal(Fault.ALU_OPCODE, index, "alu_opcode", instruction.alu_opcode)
    if isinstance(instruction, Gemm | Alu) and step_count(instruction) and instruction.uop_end > config.depths["uop"]:
        return Refusal(Fault.UOP_END, index, "uop_end", instruction.uop_end)
    return None


def _check_transfer(index: int, instruction: Load | Store, config: VTAConfig, dram: tuple[int, int]) -> Refusal | None:
    if isinstance(instruction, Store):
        # The first generation's memory type has two bits, which make 0 of OUT; its simulator takes ACC (3) as well.
        legal = (MemoryType.OUT,) if config.isa == 2 else (MemoryType.OUT, MemoryType.ACC)
        if instruction.memory_type not in legal:
            return Refusal(Fault.MEMORY_TYPE, index, "memory_type", instruction.memory_type)
        for pad in ("y_pad_0", "y_pad_1", "x_pad_0", "x_pad_1"):
            if value := getattr(instruction, pad):
                return Refusal(Fault.PAD, index, pad, value)
    rows = instruction.y_pad_0 + instruction.y_size + instruction.y_pad_1
    columns = instruction.x_pad_0 + instruction.x_size + instruction.x_pad_1
    end = instruction.sram_base + rows * columns
    if end > config.depths[memory_name(instruction)]:
        return Refusal(Fault.SRAM, index, "sram_base", end)
    if instruction.y_size:
        first = dram_address(instruction, config)
        elements = (instruction.y_size - 1) * instruction.x_stride + instruction.x_size
        last = first + elements * element_bytes(instruction, config) - 1
        if not dram[0] <= first < dram[0] + dram[1]:
            return Refusal(Fault.DRAM, index, "dram_base", first)
        if last >= dram[0] + dram[1]:
            return Refusal(Fault.DRAM, index, "dram_base", last)
    return None
