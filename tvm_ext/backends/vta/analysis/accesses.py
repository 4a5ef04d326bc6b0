"""What each instruction of a stream reads and writes: elements of the on-chip memories, and units of DRAM."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tvm_ext.backends.vta.analysis.checks import step_count
from tvm_ext.backends.vta.config import UOP_BYTES, VTAConfig
from tvm_ext.backends.vta.isa.faults import dram_address, element_bytes, memory_name
from tvm_ext.backends.vta.isa.instructions import Alu, Gemm, Instruction, Load, MemoryType, Store, decode_uops

Indices = NDArray[np.int64]
# DRAM is tracked in units of the smallest element, from address 0.
DRAM_UNIT = UOP_BYTES


@dataclass(frozen=True)
class Accesses:
    """Sorted indices without repetition, by memory: ``uop``, ``inp``, ``wgt``, ``acc``, and ``dram`` in units."""

    reads: dict[str, Indices] = field(default_factory=dict)
    writes: dict[str, Indices] = field(default_factory=dict)


def accesses(
    program: Sequence[Instruction], config: VTAConfig, dram: NDArray[np.uint8], base: int
) -> Iterator[Accesses]:
    """List what instructions access, in program order.

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
    uops = np.zeros((config.depths["uop"], 3), np.int64)
    for instruction in program:
        if isinstance(instruction, Load) and instruction.x_size:
            yield _load(instruction, config)
            if instruction.memory_type == MemoryType.UOP:
                _load_uops(instruction, config, uops, dram, base)
        elif isinstance(instruction, Store) and instruction.x_size:
            extent = instruction.y_size * instruction.x_size
            yield Accesses(
                {"acc": np.arange(instruction.sram_base, instruction.sram_base + extent)},
                {"dram": _dram_units(instruction, config)},
            )
        elif isinstance(instruction, Gemm | Alu) and step_count(instruction):
            yield _loop_nest(instruction, uops[instruction.uop_bgn : instruction.uop_end])
        else:
            yield Accesses()


def _load(load: Load, config: VTAConfig) -> Accesses:
    rows = load.y_pad_0 + load.y_size + load.y_pad_1
    columns = load.x_pad_0 + load.x_size + load.x_pad_1
    written = np.arange(load.sram_base, load.sram_base + rows * columns)
    return Accesses({"dram": _dram_units(load, config)}, {memory_name(load): written})


def _dram_units(instruction: Load | Store, config: VTAConfig) -> Indices:
    size = element_bytes(instruction, config)
    starts = dram_address(instruction, config) + np.arange(instruction.y_size) * instruction.x_stride * size
    first = starts // DRAM_UNIT
    length = -(-instruction.x_size * size // DRAM_UNIT)
    units = first[:, None] + np.arange(length)
    return units.reshape(-1) if (np.diff(first) >= length).all() else np.unique(units)


def _load_uops(load: Load, config: VTAConfig, uops: Indices, dram: NDArray[np.uint8], base: int) -> None:
    columns = load.x_pad_0 + load.x_size + load.x_pad_1
    at = load.sram_base
    uops[at : at + (load.y_pad_0 + load.y_size + load.y_pad_1) * columns] = 0
    at += load.y_pad_0 * columns + load.x_pad_0
    for row in range(load.y_size):
        start = dram_address(load, config) - base + row * load.x_stride * UOP_BYTES
        words = dram[start : start + load.x_size * UOP_BYTES].view(np.uint32)
        uops[at : at + load.x_size] = decode_uops(words, config)
        at += columns


def turns(count: int, factor: int) -> Indices:
    """List what a loop adds to an index, each value once.

    A loop that adds nothing has one value however often it runs; of one that does, a memory has no room for many.
    """
    return np.arange(count if factor else min(count, 1), dtype=np.int64) * factor


def _loop_nest(instruction: Gemm | Alu, uops: Indices) -> Accesses:
    def touched(operand: int, out: int, inner: int) -> Indices:
        outer, inside = turns(instruction.iter_out, out), turns(instruction.iter_in, inner)
        return np.unique(np.unique(outer[:, None] + inside)[:, None] + np.unique(uops[:, operand]))

    dst = touched(0, instruction.dst_factor_out, instruction.dst_factor_in)
    read = {"uop": np.arange(instruction.uop_bgn, instruction.uop_end)}
    if isinstance(instruction, Gemm):
        if not instruction.reset_reg:
            read["acc"] = dst
            read["inp"] = touched(1, instruction.src_factor_out, instruction.src_factor_in)
            read["wgt"] = touched(2, instruction.wgt_factor_out, instruction.wgt_factor_in)
    elif instruction.use_imm:
        read["acc"] = dst
    else:
        src = touched(1, instruction.src_factor_out, instruction.src_factor_in)
        read["acc"] = np.union1d(dst, src)
    return Accesses(read, {"acc": dst})
