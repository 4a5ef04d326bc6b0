"""What each instruction costs in cycles, for each implementation of VTA: one row each."""

from __future__ import annotations

from dataclasses import dataclass

from tvm_ext.backends.vta.analysis.checks import step_count
from tvm_ext.backends.vta.config import INSTRUCTION_BYTES, VTAConfig
from tvm_ext.backends.vta.isa.faults import dram_address, element_bytes
from tvm_ext.backends.vta.isa.instructions import Alu, Gemm, Instruction, Load, Store
from tvm_ext.errors import OptionError

PIPELINE = 7
"""Cycles from the issue of the last step of GEMM or ALU to the next instruction, in all implementations."""


@dataclass(frozen=True)
class CycleCosts:
    """Costs of one implementation, in cycles unless said otherwise.

    Attributes
    ----------
    name : str
    clock_mhz : int
    pipeline : int
        From the issue of the last step of GEMM or ALU to the next instruction.
    alu_immediate, alu_tensor : int
        From one step of ALU to the next, with an immediate and with two tensors.
    empty : int
        An instruction that moves nothing.
    bus_bytes : int
        Bytes that the memory bus moves in a cycle.
    burst_bytes : int
        A transfer is cut where addresses are multiples of this, and at the end of each row.
    read_latency : int
        Until the first data of a load.
    store_burst : int
        Handshake of each burst of a store; the next one begins after it was answered.
    store_element : int
        Cycles per stored element on top of its beats on the bus.
    fetch_instructions : int
        Instructions that are fetched at once; they are handed out, one a cycle, before the next ones are fetched.
    queue_depth : int
        Instructions that wait for a module; fetching stalls beyond.
    """

    name: str
    clock_mhz: int
    pipeline: int = PIPELINE
    alu_immediate: int = 1
    alu_tensor: int = 2
    empty: int = 2
    bus_bytes: int = 8
    burst_bytes: int = 2048
    read_latency: int = 25
    store_burst: int = 6
    store_element: int = 1
    fetch_instructions: int = 128
    queue_depth: int = 512

    def bursts(self, instruction: Load | Store, config: VTAConfig) -> int:
        """Bursts on the bus that a transfer is cut into."""
        size = element_bytes(instruction, config)
        first, length = dram_address(instruction, config), instruction.x_size * size
        starts = (first + row * instruction.x_stride * size for row in range(instruction.y_size))
        return sum((start + length - 1) // self.burst_bytes - start // self.burst_bytes + 1 for start in starts)

    def data_cycles(self, load: Load, config: VTAConfig) -> int:
        """Cycles that a load keeps the bus busy with."""
        row = -(-load.x_size * element_bytes(load, config) // self.bus_bytes)
        return load.y_size * row + self.bursts(load, config)

    def pad_cycles(self, load: Load) -> int:
        """Zero elements that a load writes; it does so while no data comes in."""
        rows = load.y_pad_0 + load.y_size + load.y_pad_1
        columns = load.x_pad_0 + load.x_size + load.x_pad_1
        return rows * columns - load.y_size * load.x_size

    def cycles(self, instruction: Instruction, config: VTAConfig) -> int:
        """Cycles that an instruction keeps its module busy with, when nobody else uses the bus."""
        if isinstance(instruction, Gemm):
            return step_count(instruction) + self.pipeline
        if isinstance(instruction, Alu):
            interval = self.alu_immediate if instruction.use_imm else self.alu_tensor
            return interval * step_count(instruction) + self.pipeline
        if isinstance(instruction, Load) and instruction.x_size:
            data = self.data_cycles(instruction, config) if instruction.y_size else 0
            return max(self.read_latency + data, self.pad_cycles(instruction))
        if isinstance(instruction, Store) and instruction.x_size:
            beats = -(-config.out_bytes // self.bus_bytes)
            elements = instruction.x_size * instruction.y_size
            return self.store_burst * self.bursts(instruction, config) + elements * (beats + self.store_element)
        return self.empty

    def fetch_cycles(self, instructions: int) -> int:
        """Cycles that the bus is busy with fetching so many instructions."""
        nbytes = instructions * INSTRUCTION_BYTES
        return -(-nbytes // self.bus_bytes) + -(-nbytes // self.burst_bytes)


# Upstream's RTL generator as its cycle-accurate simulator and the DE10-Nano run it; both boards clock it at 100 MHz.
# The high-level synthesis on Zynq starts an ALU step every second cycle in all cases and loads by memory copies over a
# 64-bit or 128-bit bus. Nobody has published its latencies: its rows take the RTL's where there is nothing better.
COSTS = {
    row.name: row
    for row in (
        CycleCosts("chisel", 100),
        CycleCosts("de10nano", 100, burst_bytes=128, fetch_instructions=8),
        CycleCosts("pynq", 100, alu_immediate=2, read_latency=30),
        CycleCosts("ultra96", 333, alu_immediate=2, read_latency=30, bus_bytes=16, burst_bytes=4096),
    )
}


def costs_named(name: str) -> CycleCosts:
    """Return a row of :data:`COSTS`.

    Raises
    ------
    OptionError
        If there is no such row.
    """
    if name not in COSTS:
        raise OptionError(f"no cycle costs named {name!r}; expected one of {', '.join(COSTS)}")
    return COSTS[name]


def costs_of_config(config: VTAConfig) -> CycleCosts:
    """Return the row of the implementation that a configuration is for: that of its board, else ``chisel``."""
    return COSTS[{"zcu104": "ultra96"}.get(config.target, config.target if config.target in COSTS else "chisel")]
