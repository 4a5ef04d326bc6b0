"""The VTA instruction set: what instructions are, and where their fields lie in 128 bits.

There are two generations of the encoding (``VTAConfig.isa``). The second widened the memory type and the ALU opcode by
a bit, and the source indices of the ALU to the depth of the accumulator memory; everything above them moved.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tvm_ext.backends.vta.config import VTAConfig
from tvm_ext.errors import VTAProgramError

Words = NDArray[np.uint64]


class Opcode(IntEnum):
    """What an instruction does."""

    LOAD = 0
    STORE = 1
    GEMM = 2
    FINISH = 3
    ALU = 4


class MemoryType(IntEnum):
    """A memory, as LOAD and STORE name it; ``ACC_8BIT`` loads bytes and extends their sign to accumulators."""

    UOP = 0
    WGT = 1
    INP = 2
    ACC = 3
    OUT = 4
    ACC_8BIT = 5


class AluOpcode(IntEnum):
    """Element-wise operation; SHR by a negative amount shifts left."""

    MIN = 0
    MAX = 1
    ADD = 2
    SHR = 3
    MUL = 4


@dataclass(frozen=True, kw_only=True)
class Instruction:
    """Dependency flags, which every instruction has.

    The load module's next neighbour is compute, compute's are load (previous) and store (next), and store's previous
    one is compute. Before an instruction runs it takes a token from each queue it pops; afterwards it gives one to
    each queue it pushes.
    """

    OPCODE: ClassVar[Opcode]

    pop_prev: bool = False
    pop_next: bool = False
    push_prev: bool = False
    push_next: bool = False


@dataclass(frozen=True, kw_only=True)
class Load(Instruction):
    """Copy ``y_size`` rows of ``x_size`` elements from DRAM, padded with zeros; no elements: only the flags act.

    ``sram_base`` and ``dram_base`` count elements of the memory type, as ``x_stride`` does (from row to row in DRAM).
    """

    OPCODE = Opcode.LOAD

    memory_type: int = MemoryType.INP
    sram_base: int = 0
    dram_base: int = 0
    y_size: int = 0
    x_size: int = 0
    x_stride: int = 0
    y_pad_0: int = 0
    y_pad_1: int = 0
    x_pad_0: int = 0
    x_pad_1: int = 0


@dataclass(frozen=True, kw_only=True)
class Store(Instruction):
    """Copy rows of accumulators to DRAM, the low bits of each; the fields are those of :class:`Load`."""

    OPCODE = Opcode.STORE

    memory_type: int = MemoryType.OUT
    sram_base: int = 0
    dram_base: int = 0
    y_size: int = 0
    x_size: int = 0
    x_stride: int = 0
    y_pad_0: int = 0
    y_pad_1: int = 0
    x_pad_0: int = 0
    x_pad_1: int = 0


@dataclass(frozen=True, kw_only=True)
class Gemm(Instruction):
    """Run the micro-ops ``uop_bgn`` up to ``uop_end`` in two loops: ``ACC[dst] += INP[src] x WGT[wgt]^T``.

    Each index is the micro-op's plus the factors times the loop variables. ``reset_reg`` writes zeros instead.
    """

    OPCODE = Opcode.GEMM

    reset_reg: bool = False
    uop_bgn: int = 0
    uop_end: int = 0
    iter_out: int = 0
    iter_in: int = 0
    dst_factor_out: int = 0
    dst_factor_in: int = 0
    src_factor_out: int = 0
    src_factor_in: int = 0
    wgt_factor_out: int = 0
    wgt_factor_in: int = 0


@dataclass(frozen=True, kw_only=True)
class Alu(Instruction):
    """Run micro-ops in two loops: ``ACC[dst] = ACC[dst] op ACC[src]``, or ``op imm``; ``reset_reg`` has no effect."""

    OPCODE = Opcode.ALU

    reset_reg: bool = False
    uop_bgn: int = 0
    uop_end: int = 0
    iter_out: int = 0
    iter_in: int = 0
    dst_factor_out: int = 0
    dst_factor_in: int = 0
    src_factor_out: int = 0
    src_factor_in: int = 0
    alu_opcode: int = AluOpcode.MIN
    use_imm: bool = False
    imm: int = 0


@dataclass(frozen=True, kw_only=True)
class Finish(Instruction):
    """The end of the stream."""

    OPCODE = Opcode.FINISH


CLASSES: dict[Opcode, type[Instruction]] = {cls.OPCODE: cls for cls in (Load, Store, Gemm, Finish, Alu)}


@dataclass(frozen=True)
class Field:
    """Where a field lies: ``width`` bits from bit ``shift`` of 64-bit word ``word``."""

    name: str
    word: int
    shift: int
    width: int
    signed: bool = False

    @property
    def lowest(self) -> int:
        """Least value."""
        return -(1 << (self.width - 1)) if self.signed else 0

    @property
    def highest(self) -> int:
        """Greatest value."""
        return (1 << (self.width - self.signed)) - 1


@lru_cache(maxsize=64)
def fields(opcode: Opcode, config: VTAConfig) -> tuple[Field, ...]:
    """Return the fields of an instruction, the opcode first, in the order in which they are packed.

    Fields fill 64-bit words from the lowest bit; one that does not fit in what is left begins the next word.
    """
    uop, inp, wgt, acc = (getattr(config, f"log_{name}_depth") for name in ("uop", "inp", "wgt", "acc"))
    second = config.isa == 2
    widths = [("opcode", 3), ("pop_prev", 1), ("pop_next", 1), ("push_prev", 1), ("push_next", 1)]
    if opcode in (Opcode.LOAD, Opcode.STORE):
        widths += [("memory_type", 3 if second else 2), ("sram_base", 16), ("dram_base", 32)]
        widths += [("y_size", 16), ("x_size", 16), ("x_stride", 16)]
        widths += [("y_pad_0", 4), ("y_pad_1", 4), ("x_pad_0", 4), ("x_pad_1", 4)]
    elif opcode in (Opcode.GEMM, Opcode.ALU):
        widths += [("reset_reg", 1), ("uop_bgn", uop), ("uop_end", uop + 1), ("iter_out", 14), ("iter_in", 14)]
        src = inp if opcode == Opcode.GEMM else config.log_alu_src_depth
        widths += [("dst_factor_out", acc), ("dst_factor_in", acc), ("src_factor_out", src), ("src_factor_in", src)]
        if opcode == Opcode.GEMM:
            widths += [("wgt_factor_out", wgt), ("wgt_factor_in", wgt)]
        else:
            widths += [("alu_opcode", 3 if second else 2), ("use_imm", 1), ("imm", 16)]
    packed, word, shift = [], 0, 0
    for name, width in widths:
        if shift + width > 64:
            word, shift = word + 1, 0
        packed.append(Field(name, word, shift, width, signed=name == "imm"))
        shift += width
    return tuple(packed)


def encode(instruction: Instruction, config: VTAConfig) -> tuple[int, int]:
    """Encode an instruction as two 64-bit words, bits 0 to 63 first.

    Raises
    ------
    VTAProgramError
        If a value does not fit its field.
    """
    words = [0, 0]
    opcode = instruction.OPCODE
    for field in fields(opcode, config):
        value = int(opcode) if field.name == "opcode" else int(getattr(instruction, field.name))
        if field.name == "memory_type" and opcode == Opcode.STORE and config.isa == 1:
            value &= 3  # OUT is 4, of which the first generation keeps the low two bits
        if not field.lowest <= value <= field.highest:
            raise VTAProgramError(
                f"{opcode.name} field {field.name} is {value}; it has {field.width} bits on VTA {config.name} with "
                f"HW_VER {config.hw_ver}, for values from {field.lowest} to {field.highest}",
                field=field.name,
            )
        words[field.word] |= (value & ((1 << field.width) - 1)) << field.shift
    return words[0], words[1]


def encode_program(instructions: Iterable[Instruction], config: VTAConfig) -> Words:
    """Encode instructions as an array of two words each.

    Raises
    ------
    VTAProgramError
        If a value does not fit its field; the message says of which instruction.
    """
    rows = []
    for index, instruction in enumerate(instructions):
        try:
            rows.append(encode(instruction, config))
        except VTAProgramError as error:
            raise VTAProgramError(f"instruction {index}: {error}", instruction=index, field=error.field) from None
    return np.array(rows, np.uint64).reshape(-1, 2)


def decode(low: int, high: int, config: VTAConfig) -> Instruction:
    """Decode two words; bits that belong to no field are ignored, as the hardware does.

    Raises
    ------
    VTAProgramError
        If the opcode is not defined.
    """
    try:
        opcode = Opcode(low & 7)
    except ValueError:
        raise VTAProgramError(
            f"opcode {low & 7} is not defined; expected one of {', '.join(f'{o.value} {o.name}' for o in Opcode)}",
            field="opcode",
        ) from None
    values: dict[str, Any] = {}
    for field in fields(opcode, config)[1:]:
        value = ((low, high)[field.word] >> field.shift) & ((1 << field.width) - 1)
        if field.signed and value > field.highest:
            value -= 1 << field.width
        values[field.name] = value
    if opcode == Opcode.STORE and config.isa == 1 and values["memory_type"] == 0:
        values["memory_type"] = MemoryType.OUT
    cls = CLASSES[opcode]
    booleans = {field.name for field in dataclasses.fields(cls) if field.type == "bool"}
    for name in booleans & values.keys():
        values[name] = bool(values[name])
    return cls(**values)


def decode_program(words: Words, config: VTAConfig) -> list[Instruction]:
    """Decode an array of two words an instruction.

    Raises
    ------
    VTAProgramError
        If the array has another form, or an opcode is not defined; the message says of which instruction.
    """
    words = as_words(words)
    instructions = []
    for index, (low, high) in enumerate(words.tolist()):
        try:
            instructions.append(decode(low, high, config))
        except VTAProgramError as error:
            raise VTAProgramError(f"instruction {index}: {error}", instruction=index, field=error.field) from None
    return instructions


def as_words(words: NDArray) -> Words:
    """Check the form of an instruction stream.

    Raises
    ------
    VTAProgramError
        If it is not an array of unsigned 64-bit integers with two columns.
    """
    words = np.asarray(words)
    if words.dtype != np.uint64 or words.ndim != 2 or words.shape[1] != 2:
        raise VTAProgramError(
            f"an instruction stream is a uint64 array [instructions, 2]; found {words.dtype}{list(words.shape)}"
        )
    return np.ascontiguousarray(words)


@dataclass(frozen=True)
class MicroOp:
    """Indices of one step, in elements; ``dst_idx`` is an accumulator's, as is ``src_idx`` in ALU instructions."""

    dst_idx: int = 0
    src_idx: int = 0
    wgt_idx: int = 0


def uop_fields(config: VTAConfig) -> tuple[Field, ...]:
    """Fields of a micro-op in its 32 bits."""
    acc, src, wgt = config.log_acc_depth, config.log_uop_src_depth, config.log_wgt_depth
    return Field("dst_idx", 0, 0, acc), Field("src_idx", 0, acc, src), Field("wgt_idx", 0, acc + src, wgt)


def encode_uops(uops: Iterable[MicroOp], config: VTAConfig) -> NDArray[np.uint32]:
    """Encode micro-ops.

    Raises
    ------
    VTAProgramError
        If an index does not fit its field.
    """
    encoded = []
    for number, uop in enumerate(uops):
        word = 0
        for field in uop_fields(config):
            value = int(getattr(uop, field.name))
            if not 0 <= value <= field.highest:
                raise VTAProgramError(
                    f"micro-op {number}: {field.name} is {value}; expected 0 to {field.highest}", field=field.name
                )
            word |= value << field.shift
        encoded.append(word)
    return np.array(encoded, np.uint32)


def decode_uops(words: NDArray[np.uint32], config: VTAConfig) -> NDArray[np.int64]:
    """Decode micro-ops to an array [micro-ops, 3] of ``dst_idx``, ``src_idx``, ``wgt_idx``."""
    wide = np.asarray(words, np.uint32).astype(np.int64)
    return np.stack([(wide >> field.shift) & field.highest for field in uop_fields(config)], axis=-1)
