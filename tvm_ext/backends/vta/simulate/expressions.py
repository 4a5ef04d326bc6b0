"""Expressions of the compiled simulator: fields of instructions, sizes, results of ALU; and how a fault is reported."""

from __future__ import annotations

# mypy: ignore-errors
# (everything here makes TVM expressions, which are Any)
from enum import IntEnum

from tvm.script import tirx as T

from tvm_ext.backends.vta.config import UOP_BYTES, VTAConfig
from tvm_ext.backends.vta.isa.faults import FIELDS, Fault
from tvm_ext.backends.vta.isa.instructions import AluOpcode, MemoryType, Opcode, fields, uop_fields
from tvm_ext.backends.vta.isa.modules import Module


class Status(IntEnum):
    """What the interpreter reports: the first refusal, then counters."""

    FAULT = 0
    INSTRUCTION = 1
    FIELD = 2
    VALUE = 3
    UOP = 4
    GEMM = 5
    RESET = 6
    ALU = 7
    UOP_BYTES = 8
    WGT_BYTES = 9
    INP_BYTES = 10
    ACC_BYTES = 11
    OUT_BYTES = 12
    ACC_8BIT_BYTES = 13
    TOKENS = 14  # four of them, in the order of Queue
    HEADS = 18  # three, in the order of Module: instructions of each module that ran
    TAILS = 21  # three: instructions of each module
    SIZE = 24


def fields_of(opcode, config):
    """Return what reads a field of an instruction by its name."""
    table = {field.name: field for field in fields(opcode, config)}

    def get(stream, index, name):
        field = table[name]
        value = (stream[index, field.word] >> field.shift) & T.int64((1 << field.width) - 1)
        return (value ^ T.int64(1 << 15)) - T.int64(1 << 15) if field.signed else value

    return get


def module_of(opcode, memory_type):
    """Find the module that runs an instruction."""
    loads = T.Or(memory_type == int(MemoryType.INP), memory_type == int(MemoryType.WGT))
    loader = T.Select(loads, T.int64(int(Module.LOAD)), T.int64(int(Module.COMPUTE)))
    other = T.Select(opcode == int(Opcode.STORE), T.int64(int(Module.STORE)), T.int64(int(Module.COMPUTE)))
    return T.Select(opcode == int(Opcode.LOAD), loader, other)


def result_of(opcode, x, y):
    """Apply an ALU operation to ``x``, unsigned, and ``y``, signed; a shift keeps five bits of its distance."""
    signed, bits = T.cast(x, "int32"), T.cast(y, "uint32")
    right = T.cast(signed >> (y & 31), "uint32")
    left = x << ((T.uint32(32) - (bits & T.uint32(31))) & T.uint32(31))
    results = {
        AluOpcode.MAX: T.cast(T.max(signed, y), "uint32"),
        AluOpcode.ADD: x + bits,
        AluOpcode.SHR: T.Select(y >= 0, right, left),
        AluOpcode.MUL: x * bits,
    }
    chosen = T.cast(T.min(signed, y), "uint32")
    for known, result in results.items():
        chosen = T.Select(opcode == int(known), result, chosen)
    return chosen


def word_at(dram, address):
    """Four bytes of DRAM, the lowest first."""
    word = T.cast(dram[address], "uint32")
    for byte in range(1, 4):
        word = word | (T.cast(dram[address + byte], "uint32") << T.uint32(8 * byte))
    return word


def _choose(value, cases, otherwise):
    """Choose a number by the value of an expression."""
    chosen = T.int64(otherwise)
    for case, number in cases.items():
        chosen = T.Select(value == int(case), T.int64(number), chosen)
    return chosen


def refuse_if(status, condition, fault, index, field, value, uop=-1):
    """Report a fault, unless there is one already."""
    with T.If(T.And(condition, status[0] == T.int64(0))):
        with T.Then():
            for slot, reported in enumerate((int(fault), index, FIELDS.index(field), value, uop)):
                T.buffer_store(status, T.cast(reported, "int64"), [slot])


class ConfigExpressions:
    """Expressions that depend on the configuration.

    Parameters
    ----------
    config : VTAConfig
    """

    def __init__(self, config: VTAConfig) -> None:
        self.config = config
        # LOAD and STORE have the same fields, and GEMM and ALU the same ones up to their factors.
        self.memory, self.gemm, self.alu = (
            fields_of(opcode, config) for opcode in (Opcode.LOAD, Opcode.GEMM, Opcode.ALU)
        )

    def index_of(self, word, name):
        """Read an index of a micro-op."""
        field = next(field for field in uop_fields(self.config) if field.name == name)
        return T.cast((word >> T.uint32(field.shift)) & T.uint32(field.highest), "int64")

    def element_bytes(self, memory_type):
        """Bytes in DRAM of an element of a memory."""
        config = self.config
        sizes = {
            MemoryType.UOP: UOP_BYTES,
            MemoryType.WGT: config.wgt_bytes,
            MemoryType.INP: config.inp_bytes,
            MemoryType.ACC: config.acc_bytes,
            MemoryType.OUT: config.out_bytes,
        }
        return _choose(memory_type, sizes, config.batch * config.block)

    def depth_of(self, memory_type):
        """Elements that fit the memory that a memory type means."""
        names = {MemoryType.UOP: "uop", MemoryType.WGT: "wgt", MemoryType.INP: "inp"}
        depths = {known: self.config.depths[name] for known, name in names.items()}
        return _choose(memory_type, depths, self.config.depths["acc"])

    def refuse_pads(self, status, stream, index):
        """Report a padded store."""
        for name in ("y_pad_0", "y_pad_1", "x_pad_0", "x_pad_1"):
            pad = self.memory(stream, index, name)
            refuse_if(status, pad != 0, Fault.PAD, index, name, pad)

    def check_index(self, status, stream, uop, index, k, get, operand, memory_name):
        """Refuse a micro-op whose index, at the end of both loops, is outside its memory."""
        last = self.index_of(uop[k], f"{operand}_idx")
        for loop in ("out", "in"):
            last += (get(stream, index, f"iter_{loop}") - 1) * get(stream, index, f"{operand}_factor_{loop}")
        refuse_if(status, last >= self.config.depths[memory_name], Fault.INDEX, index, f"{operand}_idx", last, k)
