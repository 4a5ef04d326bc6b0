"""Hardware for tests: registers that check every access, memory behind a cache, and a bitstream that may be another.

What the host wrote reaches the accelerator only when it is flushed, and what the accelerator wrote reaches the host
only when it is invalidated. A stream that the simulator refuses hangs, as it would on a board.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from tvm_ext.backends.vta.board.device import BoardDevice
from tvm_ext.backends.vta.board.registers import REGISTERS_OF_TARGET, GeneratorControl, SynthesisControl
from tvm_ext.backends.vta.config import VTAConfig
from tvm_ext.backends.vta.isa.instructions import Instruction, Load, MemoryType, Store, decode, encode_program
from tvm_ext.backends.vta.memory import ADDRESS_SPACE
from tvm_ext.backends.vta.simulate.reference import ReferenceSimulator
from tvm_ext.errors import VTADeviceError, VTAProgramError

PAGE = 4096


class FakeMemory:
    """DRAM of a board, from ``address``: the accelerator's view of it, and the host's of each buffer."""

    def __init__(self, address: int = 0x18000000, nbytes: int = 1 << 19) -> None:
        self.address = address
        self.dram = np.random.default_rng(0).integers(0, 256, nbytes, np.uint8)
        self.live: list[FakeAllocation] = []
        self._next = address + PAGE

    def allocate(self, nbytes: int) -> FakeAllocation:
        address = self._next
        self._next += -(-nbytes // PAGE) * PAGE + PAGE  # a page between them, which must stay as it is
        if self._next > self.address + self.dram.size:
            raise VTADeviceError("the fake board has no room")
        self.live.append(FakeAllocation(self, address, nbytes))
        return self.live[-1]


class FakeAllocation:
    def __init__(self, memory: FakeMemory, address: int, nbytes: int) -> None:
        self.memory, self.address = memory, address
        self.contents: NDArray[np.uint8] = np.full(nbytes, 0xEE, np.uint8)
        start = address - memory.address
        self._seen = memory.dram[start : start + nbytes]

    def flush(self) -> None:
        self._seen[:] = self.contents

    def invalidate(self) -> None:
        self.contents[:] = self._seen

    def free(self) -> None:
        self.memory.live.remove(self)


@dataclass
class FakeBoard:
    """Registers and what is behind them.

    Attributes
    ----------
    bitstream : VTAConfig
        What the accelerator really is.
    polls : int
        How often FINISH is asked for before it is there.
    dead : bool
        Nothing ever happens.
    """

    bitstream: VTAConfig
    memory: FakeMemory = field(default_factory=FakeMemory)
    polls: int = 2
    dead: bool = False
    log: list[tuple[str, int, int]] = field(default_factory=list)
    values: dict[int, int] = field(default_factory=dict)
    waiting: int = -1
    runs: int = 0

    def device(self, config: VTAConfig) -> BoardDevice:
        """A driver that takes the board for ``config``."""
        kind = GeneratorControl if config.target == "de10nano" else SynthesisControl
        return BoardDevice(config, kind(self, REGISTERS_OF_TARGET[config.target]), self.memory)

    @property
    def block(self) -> int:
        return REGISTERS_OF_TARGET[self.bitstream.target]

    def write(self, address: int, value: int) -> None:
        assert type(value) is int
        assert 0 <= value < 1 << 32, f"{value:#x} is no value of a 32-bit register"
        self.log.append(("write", address - self.block, value))
        assert address - self.block in self.writable, f"nothing to write at {address:#x}"
        self.values[address - self.block] = value
        if self.started():
            self.runs += 1
            finished = not self.dead and self.execute()
            self.waiting = self.polls if finished else -1
            self.values = {}  # a run needs all of them anew

    def read(self, address: int) -> int:
        self.log.append(("read", address - self.block, 0))
        assert address - self.block == self.status, f"nothing to read at {address:#x}"
        if self.waiting > 0:
            self.waiting -= 1
        return self.done if self.waiting == 0 else 0

    # High-level synthesis: fetch, load, compute and store at 0, 0x1000, 0x2000 and 0x3000.
    writable: ClassVar = {0x0, 0x10, 0x18, 0x1000, 0x1010, 0x1018, 0x2000, 0x2020, 0x2028, 0x3000, 0x3010}
    status, done, offset = 0x2018, 1, 0

    def started(self) -> bool:
        running = [self.values.get(block) for block in (0, 0x1000, 0x2000, 0x3000)]
        if any(value is not None for value in running):
            assert self.writable - {0, 0x1000, 0x2000, 0x3000} <= set(self.values), "started before all arguments"
        if None in running:
            return False
        assert running == [0x01, 0x81, 0x81, 0x81]
        return True

    def arguments(self) -> tuple[int, int, dict[str, int]]:
        """Instructions, their address, base addresses."""
        values = self.values
        bases = {"inp": values[0x1010], "wgt": values[0x1018], "uop": values[0x2020], "acc": values[0x2028]}
        return values[0x10], values[0x18], {**bases, "out": values[0x3010]}

    def execute(self) -> bool:
        """Run the stream; tells whether it came to its end."""
        count, address, bases = self.arguments()
        start = address - self.memory.address - self.offset
        words = self.memory.dram[start : start + 16 * count].view(np.uint64).reshape(-1, 2)
        try:
            instructions = [self._based(decode(low, high, self.bitstream), bases) for low, high in words.tolist()]
            simulator = ReferenceSimulator(self.bitstream)
            stream = encode_program(instructions, self.bitstream)
            result = simulator.run(stream, self.memory.dram, self.memory.address + self.offset)
        except VTAProgramError:
            return False
        self.memory.dram[:] = result.dram
        return True

    def _based(self, instruction: Instruction, bases: dict[str, int]) -> Instruction:
        config = self.bitstream
        if isinstance(instruction, Store):
            name, size = "out", config.out_bytes
        elif isinstance(instruction, Load):
            byte_wide = instruction.memory_type == MemoryType.ACC_8BIT
            name = "acc" if byte_wide else MemoryType(instruction.memory_type).name.lower()
            size = 4 if name == "uop" else config.acc_bytes // 4 if byte_wide else getattr(config, f"{name}_bytes")
        else:
            return instruction
        assert bases[name] % size == 0, f"base address {bases[name]:#x} of {name} is not aligned"
        moved = (instruction.dram_base * size + bases[name]) % ADDRESS_SPACE
        return replace(instruction, dram_base=moved // size)


class FakeGeneratorBoard(FakeBoard):
    """One block of registers; the accelerator sees memory 2 GiB higher."""

    writable: ClassVar = {0x0, 0x4, 0x8, 0xC, 0x10, 0x14, 0x18, 0x1C, 0x20}
    status, done, offset = 0x0, 3, 0x80000000

    def started(self) -> bool:
        if 0 not in self.values:
            return False
        assert set(self.values) == self.writable, "started before all arguments"
        assert self.values[0] == 1
        return True

    def arguments(self) -> tuple[int, int, dict[str, int]]:
        values = [self.values[register] for register in range(0x10, 0x24, 4)]
        return self.values[8], self.values[0xC], dict(zip(("uop", "inp", "wgt", "acc", "out"), values, strict=True))
