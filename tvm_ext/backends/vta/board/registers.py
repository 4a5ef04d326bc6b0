"""The registers of an accelerator: where they are, and how a run is started and seen to end.

Boards made by high-level synthesis (Pynq, Ultra96, ZCU104) have four register blocks, for the modules fetch, load,
compute and store. Designs of the RTL generator (DE10-Nano) have one.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tvm_ext.backends.vta.config import VTAConfig
from tvm_ext.errors import VTADeviceError

BLOCK_BYTES = 0x1000

# TARGET -> physical address of its (first) register block.
REGISTERS_OF_TARGET = {"pynq": 0x43C00000, "ultra96": 0xA0000000, "zcu104": 0xA0000000, "de10nano": 0xFF220000}

START, AUTO_RESTART = 0x01, 0x80


class Registers(Protocol):
    """32-bit registers by physical address."""

    def read(self, address: int) -> int:
        """Read a register."""
        ...

    def write(self, address: int, value: int) -> None:
        """Write a register."""
        ...


@dataclass(frozen=True)
class BaseAddresses:
    """What the hardware adds to the addresses in instructions, in bytes, by the memory that is loaded or stored."""

    uop: int = 0
    wgt: int = 0
    inp: int = 0
    acc: int = 0
    out: int = 0


class MappedRegisters:
    """Register blocks mapped from physical memory.

    Parameters
    ----------
    blocks : iterable of int
        Physical addresses of the blocks.
    path : str
        Device file of physical memory.

    Raises
    ------
    VTADeviceError
        If the file may not be opened, or a block cannot be mapped.
    """

    def __init__(self, blocks: Iterable[int], path: str = "/dev/mem") -> None:
        self._blocks: dict[int, NDArray[np.uint32]] = {}
        with physical_memory(path) as descriptor:
            for address in blocks:
                try:
                    mapped = mmap.mmap(descriptor, BLOCK_BYTES, offset=address)
                except (OSError, ValueError) as error:
                    reason = getattr(error, "strerror", None) or error
                    raise VTADeviceError(
                        f"cannot map the registers at {address:#x} from {path}: {reason}; the configuration's TARGET "
                        "must be the board's, and its kernel must allow access to device registers"
                    ) from None
                self._blocks[address] = np.frombuffer(mapped, np.uint32)

    def read(self, address: int) -> int:
        """Read a register."""
        return int(self._blocks[address // BLOCK_BYTES * BLOCK_BYTES][address % BLOCK_BYTES // 4])

    def write(self, address: int, value: int) -> None:
        """Write a register."""
        self._blocks[address // BLOCK_BYTES * BLOCK_BYTES][address % BLOCK_BYTES // 4] = value


@contextmanager
def physical_memory(path: str) -> Iterator[int]:
    """Open a device file of physical memory for uncached access; gives its descriptor.

    Raises
    ------
    VTADeviceError
        If it is not there or may not be opened.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_SYNC | os.O_CLOEXEC)
    except PermissionError as error:
        raise VTADeviceError(
            f"cannot open {path}: {error.strerror}; a board's registers and memory belong to root: use sudo"
        ) from None
    except OSError as error:
        raise VTADeviceError(
            f"cannot open {path}: {error.strerror}; run this on the board itself, or reach it from here with --rpc"
        ) from None
    try:
        yield descriptor
    finally:
        os.close(descriptor)


class Control(Protocol):
    """How a kind of hardware is started."""

    address_offset: int
    """What the accelerator sees a physical address at, less that address."""

    def start(self, address: int, count: int, bases: BaseAddresses) -> None:
        """Start ``count`` instructions from a physical address."""
        ...

    def finished(self) -> bool:
        """Tell whether FINISH was executed."""
        ...


class SynthesisControl:
    """Four blocks of registers, as high-level synthesis makes them; control of a block is at its start.

    Parameters
    ----------
    registers : Registers
    address : int
        Of the block of the fetch module; load, compute and store follow.
    """

    address_offset = 0

    def __init__(self, registers: Registers, address: int) -> None:
        self._registers = registers
        self._fetch, self._load, self._compute, self._store = self.blocks(address)

    @staticmethod
    def blocks(address: int) -> list[int]:
        """Addresses of the blocks."""
        return [address + block * BLOCK_BYTES for block in range(4)]

    def start(self, address: int, count: int, bases: BaseAddresses) -> None:
        """Start ``count`` instructions from a physical address."""
        write = self._registers.write
        write(self._fetch + 0x10, count)
        write(self._fetch + 0x18, address)
        write(self._load + 0x10, bases.inp)
        write(self._load + 0x18, bases.wgt)
        write(self._compute + 0x20, bases.uop)
        write(self._compute + 0x28, bases.acc)
        write(self._store + 0x10, bases.out)
        # Fetch runs once; the others run an instruction after the other, for ever.
        write(self._fetch, START)
        for block in (self._load, self._compute, self._store):
            write(block, START | AUTO_RESTART)

    def finished(self) -> bool:
        """Tell whether FINISH was executed."""
        return self._registers.read(self._compute + 0x18) == 1


class GeneratorControl:
    """One block of registers, as in the RTL generator's designs; addresses are seen 2 GiB higher."""

    address_offset = 0x80000000

    def __init__(self, registers: Registers, address: int) -> None:
        self._registers = registers
        self._block = address

    @staticmethod
    def blocks(address: int) -> list[int]:
        """Addresses of the blocks."""
        return [address]

    def start(self, address: int, count: int, bases: BaseAddresses) -> None:
        """Start ``count`` instructions from a physical address."""
        values = (bases.uop, bases.inp, bases.wgt, bases.acc, bases.out)
        self._registers.write(self._block + 0x04, 0)  # counter of cycles
        self._registers.write(self._block + 0x08, count)
        self._registers.write(self._block + 0x0C, address)
        for register, value in zip(range(0x10, 0x24, 4), values, strict=True):
            self._registers.write(self._block + register, value)
        self._registers.write(self._block, START)

    def finished(self) -> bool:
        """Tell whether FINISH was executed."""
        return bool(self._registers.read(self._block) & 2)


def control_class(config: VTAConfig) -> type[SynthesisControl | GeneratorControl]:
    """Return the control of a configuration's hardware.

    Raises
    ------
    VTADeviceError
        If the configuration is a simulator's.
    """
    if config.target not in REGISTERS_OF_TARGET:
        raise VTADeviceError(
            f"TARGET of the configuration is {config.target!r}, which is no board; "
            f"expected one of {', '.join(REGISTERS_OF_TARGET)}"
        )
    return GeneratorControl if config.target == "de10nano" else SynthesisControl
