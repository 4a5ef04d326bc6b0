"""The driver of an accelerator: memory that it can read, and runs with a time limit."""

from __future__ import annotations

import fcntl
import time
from typing import IO, Protocol

import numpy as np
from numpy.typing import NDArray

from tvm_ext.backends.vta.board.memory import Allocation, ContiguousMemory, memory_opener
from tvm_ext.backends.vta.board.registers import (
    REGISTERS_OF_TARGET,
    BaseAddresses,
    Control,
    MappedRegisters,
    control_class,
)
from tvm_ext.backends.vta.config import INSTRUCTION_BYTES, VTAConfig
from tvm_ext.backends.vta.memory import ADDRESS_SPACE, PAGE_BYTES
from tvm_ext.errors import VTADeviceError

SETTLE_SECONDS = 1e-6
POLL_SECONDS = 50e-6


class Device(Protocol):
    """What a driver does; addresses are those that the accelerator sees.

    Attributes
    ----------
    config : VTAConfig
        What the accelerator is meant to be.
    """

    config: VTAConfig

    def allocate(self, nbytes: int) -> int:
        """Return the address of a new buffer in one piece, which begins on a page."""
        ...

    def free(self, address: int) -> None:
        """Give a buffer back, by its address."""
        ...

    def write(self, address: int, contents: NDArray[np.uint8]) -> None:
        """Copy bytes to any address within a buffer."""
        ...

    def read(self, address: int, nbytes: int) -> NDArray[np.uint8]:
        """Copy bytes from any address within a buffer."""
        ...

    def run(self, address: int, count: int, bases: BaseAddresses, seconds: float) -> float:
        """Run instructions to their end.

        Parameters
        ----------
        address : int
            Of the first instruction.
        count : int
        bases : BaseAddresses
        seconds : float
            Time limit.

        Returns
        -------
        float
            Seconds that it took.

        Raises
        ------
        VTADeviceError
            If it takes longer than the limit; the device can then not be used any more.
        """
        ...

    def close(self) -> None:
        """Give all buffers back."""
        ...


class BoardDevice:
    """The driver on the board itself.

    Parameters
    ----------
    config : VTAConfig
    control : Control
        Starts a run.
    memory : ContiguousMemory
    lock : file, optional
        Keeps other processes away until it is closed.
    """

    def __init__(
        self, config: VTAConfig, control: Control, memory: ContiguousMemory, lock: IO[bytes] | None = None
    ) -> None:
        self.config = config
        self._control, self._memory, self._lock = control, memory, lock
        self._buffers: dict[int, Allocation] = {}
        self._hung = False

    def allocate(self, nbytes: int) -> int:
        """Return the address of a new buffer.

        Raises
        ------
        VTADeviceError
            If there is no room, or it is not aligned or beyond 32 bits.
        """
        allocation = self._memory.allocate(nbytes)
        address = allocation.address + self._control.address_offset
        wrong = ""
        if address % PAGE_BYTES:
            wrong = f"is not a multiple of {PAGE_BYTES}"
        elif address + nbytes > ADDRESS_SPACE:
            wrong = "is beyond the 32 bits that the accelerator can address"
        if wrong:
            allocation.free()
            raise VTADeviceError(
                f"the board gave a buffer of {nbytes} bytes at address {address:#x}, which {wrong}; "
                "choose other memory for the accelerator (--memory)"
            )
        self._buffers[address] = allocation
        return address

    def free(self, address: int) -> None:
        """Give a buffer back; after a run that did not end it is kept, as the accelerator may still write to it."""
        allocation = self._buffers.pop(address, None)
        if allocation is None:
            raise VTADeviceError(f"no buffer begins at address {address:#x}; it was freed before, or never given")
        if not self._hung:
            allocation.free()

    def write(self, address: int, contents: NDArray[np.uint8]) -> None:
        """Copy bytes into a buffer; raises VTADeviceError if they leave it."""
        allocation, start = self._buffer(address, contents.size)
        allocation.invalidate()  # the rest of the buffer may hold what the accelerator wrote
        allocation.contents[start : start + contents.size] = contents
        allocation.flush()

    def read(self, address: int, nbytes: int) -> NDArray[np.uint8]:
        """Copy bytes from a buffer; raises VTADeviceError if they leave it."""
        allocation, start = self._buffer(address, nbytes)
        allocation.invalidate()
        return allocation.contents[start : start + nbytes].copy()

    def run(self, address: int, count: int, bases: BaseAddresses, seconds: float) -> float:
        """Run instructions to their end, and return the seconds that it took.

        Raises
        ------
        VTADeviceError
            If the instructions are not in a buffer or not aligned, or it takes longer than ``seconds``.
        """
        if self._hung:
            raise VTADeviceError(
                "an earlier run did not end, so the accelerator cannot be used; load its bitstream again, then restart"
            )
        if address % INSTRUCTION_BYTES or count < 1:
            raise VTADeviceError(
                f"{count} instructions at address {address:#x}: expected at least one, "
                f"at a multiple of {INSTRUCTION_BYTES}"
            )
        self._buffer(address, count * INSTRUCTION_BYTES)
        began = time.perf_counter()
        self._control.start(address, count, bases)
        time.sleep(SETTLE_SECONDS)  # until then, "finished" may be that of the run before
        while not self._control.finished():
            if time.perf_counter() - began > seconds:
                self._hung = True
                raise VTADeviceError(
                    f"the accelerator did not finish {count} instructions within {seconds:g} s; it takes longer, or no "
                    "bitstream is loaded, or it is not the configuration's: load it again before the next run"
                )
            time.sleep(POLL_SECONDS)
        return time.perf_counter() - began

    def close(self) -> None:
        """Give all buffers back, and the accelerator to other processes."""
        for address in list(self._buffers):
            self.free(address)
        if self._lock is not None:
            self._lock.close()

    def _buffer(self, address: int, nbytes: int) -> tuple[Allocation, int]:
        for start, allocation in self._buffers.items():
            if start <= address and address + nbytes <= start + allocation.contents.size:
                return allocation, address - start
        raise VTADeviceError(f"{nbytes} bytes at address {address:#x} are not within one buffer of this device")


def open_device(config: VTAConfig, memory: str = "udmabuf", registers: str = "/dev/mem") -> BoardDevice:
    """Open the accelerator of the board that this runs on.

    Parameters
    ----------
    config : VTAConfig
        Its ``TARGET`` is the board.
    memory : str
        See :func:`tvm_ext.backends.vta.board.memory.memory_opener`.
    registers : str
        Device file of physical memory, for the registers.

    Raises
    ------
    VTADeviceError
        If the configuration is a simulator's, registers or memory cannot be reached, or another process has them.
    """
    open_memory = memory_opener(memory)
    kind, address = control_class(config), REGISTERS_OF_TARGET.get(config.target, 0)
    control = kind(MappedRegisters(kind.blocks(address), registers), address)
    lock = open(registers, "rb")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return BoardDevice(config, control, open_memory(), lock)
    except BlockingIOError:
        lock.close()
        raise VTADeviceError(
            "another process drives the accelerator, perhaps a server (tvm-ext vta serve); end it, or use it with --rpc"
        ) from None
    except BaseException:
        lock.close()
        raise
