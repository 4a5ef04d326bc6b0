"""Why an instruction stream is refused: one list for both simulators, and the sentence for each reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from tvm_ext.backends.vta.config import VTAConfig
from tvm_ext.backends.vta.isa.instructions import AluOpcode, Instruction, Load, MemoryType, Opcode, Store, decode
from tvm_ext.backends.vta.isa.modules import POPS, PUSHES, module_of
from tvm_ext.backends.vta.memory import ADDRESS_SPACE
from tvm_ext.errors import VTAProgramError


class Fault(IntEnum):
    """A reason to refuse a stream; those up to ``FINISH`` are found before anything runs, in program order."""

    NONE = 0
    OPCODE = 1
    MEMORY_TYPE = 2
    FLAG = 3
    PAD = 4
    SRAM = 5
    DRAM = 6
    ALU_OPCODE = 7
    UOP_END = 8
    STEPS = 9
    FINISH = 10
    INDEX = 11
    DEADLOCK = 12
    PENDING = 13


# Fields that a refusal can name; the simulators report the position in this list.
FIELDS = (
    "opcode", "pop_prev", "pop_next", "push_prev", "push_next", "memory_type", "sram_base", "dram_base",
    "y_pad_0", "y_pad_1", "x_pad_0", "x_pad_1", "uop_end", "iter_out", "alu_opcode", "dst_idx", "src_idx", "wgt_idx",
)  # fmt: skip


@dataclass(frozen=True)
class Refusal:
    """The first thing wrong with a stream.

    Attributes
    ----------
    fault : Fault
    instruction : int
        Index in the stream.
    field : str
        One of :data:`FIELDS`.
    value : int
        What was found: the value of the field; for memories the end reached (elements of SRAM) or the first byte
        outside (address in DRAM); for steps those asked for up to there; for indices the greatest one.
    uop : int
        Micro-op whose index leaves its memory, otherwise -1.
    """

    fault: Fault
    instruction: int
    field: str
    value: int = 0
    uop: int = -1

    def error(
        self, words: Sequence[Sequence[int]], config: VTAConfig, dram: tuple[int, int], max_steps: int
    ) -> VTAProgramError:
        """Build the error that says so; ``dram`` is the address of the image and its bytes."""
        low, high = words[self.instruction] if words else (Opcode.FINISH, 0)
        if self.fault == Fault.OPCODE:
            known = ", ".join(f"{opcode.value} {opcode.name}" for opcode in Opcode)
            what, kind = f"opcode {self.value} is not defined; expected one of {known}", ""
        else:
            instruction = decode(low, high, config)
            kind = f" ({instruction.OPCODE.name}{_memory(instruction)})"
            what = self._sentence(instruction, config, dram, max_steps)
        return VTAProgramError(
            f"instruction {self.instruction}{kind}: {what}", instruction=self.instruction, field=self.field
        )

    def _sentence(self, instruction: Instruction, config: VTAConfig, dram: tuple[int, int], max_steps: int) -> str:
        module = module_of(instruction)
        name = module.name.lower()
        match self.fault:
            case Fault.MEMORY_TYPE:
                wanted = (
                    "OUT (4)" if isinstance(instruction, Store) else "UOP, WGT, INP, ACC or ACC_8BIT (0, 1, 2, 3, 5)"
                )
                return f"memory_type is {self.value}; expected {wanted}"
            case Fault.FLAG:
                legal = ", ".join([*POPS[module], *PUSHES[module]])
                return f"{self.field} is set, but the {name} module has no such neighbour; its flags are {legal}"
            case Fault.PAD:
                return f"{self.field} is {self.value}, but a STORE cannot pad; set it to 0"
            case Fault.SRAM:
                memory = memory_name(instruction)
                return (
                    f"it reaches element {self.value} from sram_base {getattr(instruction, 'sram_base', 0)}, but the "
                    f"{memory} memory holds {config.depths[memory]}; use a smaller block or sram_base"
                )
            case Fault.DRAM:
                return (
                    f"it touches address {self.value:#x} from dram_base {getattr(instruction, 'dram_base', 0):#x}, but "
                    f"the memory image spans {dram[0]:#x} to {dram[0] + dram[1]:#x}; "
                    "dram_base and x_stride count elements, not bytes"
                )
            case Fault.ALU_OPCODE:
                known = ", ".join(f"{opcode.value} {opcode.name}" for opcode in AluOpcode)
                return f"alu_opcode {self.value} is not defined; expected one of {known}"
            case Fault.UOP_END:
                return f"uop_end is {self.value}, but the uop memory holds {config.depths['uop']}"
            case Fault.STEPS:
                return f"the stream asks for {self.value} steps up to here, more than max_steps {max_steps}"
            case Fault.FINISH:
                return "a stream ends with its only FINISH; put it there, ordered after everything else"
            case Fault.INDEX:
                memory = {"dst_idx": "acc", "wgt_idx": "wgt"}.get(self.field, source_memory(instruction))
                return (
                    f"micro-op {self.uop} reaches {self.field} {self.value} in the loops, "
                    f"but the {memory} memory holds {config.depths[memory]}"
                )
            case Fault.DEADLOCK:
                queue = POPS[module][self.field]
                return f"it waits for ever: {self.field} takes a token from the queue {queue}, and none is coming"
            case _:
                return "it was still waiting when FINISH ran; order it before FINISH with tokens"


def _memory(instruction: Instruction) -> str:
    if not isinstance(instruction, Load | Store):
        return ""
    known = instruction.memory_type in list(MemoryType)
    return f" {MemoryType(instruction.memory_type).name}" if known else ""


def memory_name(instruction: Instruction) -> str:
    """On-chip memory that a LOAD or STORE works on: ``uop``, ``wgt``, ``inp`` or ``acc``."""
    memory_type = getattr(instruction, "memory_type", MemoryType.ACC)
    return {MemoryType.UOP: "uop", MemoryType.WGT: "wgt", MemoryType.INP: "inp"}.get(memory_type, "acc")


def source_memory(instruction: Instruction) -> str:
    """On-chip memory that the source index of GEMM or ALU points to."""
    return "inp" if instruction.OPCODE == Opcode.GEMM else "acc"


def element_bytes(instruction: Instruction, config: VTAConfig) -> int:
    """Bytes in DRAM of an element that a LOAD or STORE moves."""
    if isinstance(instruction, Store):
        return config.out_bytes
    sizes = {
        MemoryType.UOP: 4,
        MemoryType.WGT: config.wgt_bytes,
        MemoryType.INP: config.inp_bytes,
        MemoryType.ACC: config.acc_bytes,
        MemoryType.ACC_8BIT: config.batch * config.block,
    }
    return sizes[MemoryType(getattr(instruction, "memory_type", MemoryType.UOP))]


def dram_address(instruction: Instruction, config: VTAConfig) -> int:
    """Address of the first byte that a LOAD or STORE touches; 32 bits are kept."""
    return int(getattr(instruction, "dram_base", 0)) * element_bytes(instruction, config) % ADDRESS_SPACE
