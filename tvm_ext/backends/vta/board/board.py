"""Run programs on an accelerator: checks, the self-test, buffers at the board's addresses, results."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from tvm_ext.backends.vta.analysis.checks import check_stream, refusal_error
from tvm_ext.backends.vta.analysis.linter import lint
from tvm_ext.backends.vta.analysis.races import happens_before
from tvm_ext.backends.vta.board.device import Device
from tvm_ext.backends.vta.board.registers import BaseAddresses
from tvm_ext.backends.vta.board.relocation import relocate
from tvm_ext.backends.vta.board.selftest import self_test
from tvm_ext.backends.vta.config import VTAConfig
from tvm_ext.backends.vta.isa.instructions import Instruction, Words, as_words, decode_program
from tvm_ext.backends.vta.isa.modules import pops
from tvm_ext.backends.vta.memory import PAGE_BYTES, check_image
from tvm_ext.backends.vta.program.builder import Program
from tvm_ext.backends.vta.simulate.base import MAX_STEPS
from tvm_ext.errors import VTADeviceError, VTAProgramError

SECONDS = 10.0


@dataclass(frozen=True)
class BoardResult:
    """What a run did.

    Attributes
    ----------
    dram : NDArray[np.uint8]
        The memory image after the run.
    seconds : float
        From start to FINISH, on the board's clock; polling makes it up to 0.1 ms more.
    """

    dram: NDArray[np.uint8]
    seconds: float


class Board:
    """An accelerator, local or remote; its self-test runs before the first program.

    Parameters
    ----------
    device : Device
        From :func:`tvm_ext.backends.vta.board.device.open_device` on the board itself, or
        :func:`tvm_ext.backends.vta.board.rpc.connect` from another machine.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self._tested = False

    @property
    def config(self) -> VTAConfig:
        """What the accelerator is meant to be."""
        return self.device.config

    def self_test(self) -> None:
        """Compare the accelerator with its configuration; once is enough.

        Raises
        ------
        VTADeviceError
            If it is something else, or does not finish.
        """
        if not self._tested:
            self._tested = True  # the test itself loads a program
            try:
                self_test(self.device, lambda program, seconds: self.run_program(program, seconds).dram)
            except BaseException:
                self._tested = False
                raise

    def load(
        self, words: Words, dram: NDArray[np.uint8], base: int = PAGE_BYTES, portable: bool = True
    ) -> LoadedProgram:
        """Put a program and its memory image on the board.

        Parameters
        ----------
        words : NDArray[np.uint64]
            Instructions, [instructions, 2], encoded for :attr:`config`.
        dram : NDArray[np.uint8]
            Memory image, [bytes].
        base : int
            Address of its first byte, as the instructions mean it; a multiple of 4096. The board has it elsewhere.
        portable : bool
            Refuse what hardware does otherwise than the simulators (see :mod:`tvm_ext.backends.vta.analysis.linter`).

        Raises
        ------
        VTAProgramError
            If the program is illegal, for the other generation, would wait for ever, or is not portable.
        VTADeviceError
            If the self-test fails, or the board has no room.
        """
        words = as_words(words)
        check_image(dram, base)
        if base % PAGE_BYTES:
            raise VTAProgramError(
                f"the memory image begins at {base:#x}; expected a multiple of {PAGE_BYTES}, as on a board it moves "
                "to other pages"
            )
        instructions = _check(words, self.config, dram, base)
        if portable and (findings := lint(instructions, self.config, dram, base)):
            raise VTAProgramError(
                f"{findings[0]}; {len(findings)} places where hardware differs from the simulators",
                instruction=findings[0].instruction,
            )
        self.self_test()
        return LoadedProgram(self.device, words, dram, base)

    def run(
        self,
        words: Words,
        dram: NDArray[np.uint8],
        base: int = PAGE_BYTES,
        seconds: float = SECONDS,
        portable: bool = True,
    ) -> BoardResult:
        """Load a program, run it once, and unload it; see :meth:`load`.

        Raises
        ------
        VTAProgramError, VTADeviceError
            As :meth:`load` does, and if the program is not finished after ``seconds``.
        """
        with self.load(words, dram, base, portable) as loaded:
            taken = loaded.run(seconds)
            return BoardResult(loaded.read(base, dram.size), taken)

    def run_program(self, program: Program, seconds: float = SECONDS) -> BoardResult:
        """Run a finished program once, as :meth:`run` does."""
        return self.run(program.words, program.image.data, program.image.base, seconds)


class LoadedProgram:
    """A program on a board, to be run as often as wanted; a context manager that frees its buffers.

    Addresses are those that the program was made for.
    """

    def __init__(self, device: Device, words: Words, dram: NDArray[np.uint8], base: int) -> None:
        self._device, self._count, self._base, self._nbytes = device, len(words), base, dram.size
        self._buffers: list[int] = []
        try:
            self._image = self._allocate(max(dram.size, 1))
            distance = self._image - base
            moved = relocate(words, device.config, BaseAddresses(*[distance] * 5))
            self._instructions = self._allocate(moved.nbytes)
            device.write(self._instructions, moved.reshape(-1).view(np.uint8))
            self.write(base, dram)
        except BaseException:
            self.close()
            raise

    def run(self, seconds: float = SECONDS) -> float:
        """Run to the end, and return the seconds that it took; raises VTADeviceError after ``seconds``."""
        return self._device.run(self._instructions, self._count, BaseAddresses(), seconds)

    def write(self, address: int, contents: NDArray[np.uint8]) -> None:
        """Replace part of the memory image; raises VTADeviceError outside of it."""
        self._device.write(self._place(address, contents.size), contents)

    def read(self, address: int, nbytes: int) -> NDArray[np.uint8]:
        """Return part of the memory image; raises VTADeviceError outside of it."""
        return self._device.read(self._place(address, nbytes), nbytes)

    def close(self) -> None:
        """Free the buffers on the board."""
        while self._buffers:
            self._device.free(self._buffers.pop())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # A device that failed may not free anything either, and what failed first is what there is to say.
        with nullcontext() if kind is None else suppress(VTADeviceError):
            self.close()

    def _allocate(self, nbytes: int) -> int:
        self._buffers.append(self._device.allocate(nbytes))
        return self._buffers[-1]

    def _place(self, address: int, nbytes: int) -> int:
        if not self._base <= address <= address + nbytes <= self._base + self._nbytes:
            raise VTADeviceError(
                f"{nbytes} bytes at address {address:#x} are not within the program's memory image, "
                f"{self._base:#x} to {self._base + self._nbytes:#x}"
            )
        return self._image + address - self._base


def _check(words: Words, config: VTAConfig, dram: NDArray[np.uint8], base: int) -> Sequence[Instruction]:
    """Refuse what would hang the board, or write to memory that is not the program's."""
    span, rows = (base, dram.size), words.tolist()
    refusal = check_stream(rows, config, span, MAX_STEPS)
    if refusal is not None:
        raise refusal_error(refusal, rows, config, span, MAX_STEPS)
    instructions = decode_program(words, config)
    waiting = np.flatnonzero((happens_before(instructions) == -2).all(axis=1))
    if waiting.size:
        index = int(waiting[0])
        queues = ", ".join(str(queue) for queue in pops(instructions[index]).values()) or "its module's earlier ones"
        raise VTAProgramError(
            f"instruction {index} ({instructions[index].OPCODE.name}): it would wait for ever for {queues}, "
            "and the board would hang; give the token that it takes",
            instruction=index,
        )
    return instructions
