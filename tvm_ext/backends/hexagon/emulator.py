"""Running programs under qemu-hexagon, and what it counts: packets, instructions, HVX instructions of every call.

The counts are exact and the same in every run. They are no cycles: the emulator has no caches, and a packet takes it as
long as another.
"""

from __future__ import annotations

import struct
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import tvm

from tvm_ext.backends.hexagon.code import Program, build
from tvm_ext.backends.hexagon.target import VECTOR_BYTES
from tvm_ext.backends.hexagon.toolchain import EMULATOR, program
from tvm_ext.errors import CompileError, InputError

SECONDS = 3600.0
"""A program that runs longer than this is ended: it hangs."""

# As enum values of runtime/driver.c.
_END, _ALLOCATE, _WRITE, _CALL, _READ = range(5)
_EXIT_CODES = {
    90: "the script names a kernel or place that there is not",
    91: "the program needs more memory than 32 bits can address",
    92: "the script ends too early",
}
_EMULATED = "v67"  # the one processor with HVX that qemu 7.2 has; it runs the integer code of the others


@dataclass(frozen=True)
class Counts:
    """What a kernel executed.

    Attributes
    ----------
    packets, instructions, vector_instructions : int
        ``instructions`` has no padding; ``vector_instructions`` are those of HVX.
    """

    packets: int = 0
    instructions: int = 0
    vector_instructions: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.packets + other.packets,
            self.instructions + other.instructions,
            self.vector_instructions + other.vector_instructions,
        )


Place = int | tuple[int, int]
"""A buffer, or a buffer and an offset in bytes."""


@dataclass
class Script:
    """What a program is to do in one run of the emulator: buffers, calls, results.

    Attributes
    ----------
    program : Program
    """

    program: Program
    _parts: list[bytes] = field(default_factory=list)
    _sizes: list[int] = field(default_factory=list)
    _answers: list[int] = field(default_factory=list)  # bytes of each result; -1 for the counts of a call

    def allocate(self, size: int) -> int:
        """Reserve bytes, which are zero; gives the number of the buffer."""
        self._words(_ALLOCATE, size)
        self._sizes.append(size)
        return len(self._sizes) - 1

    def write(self, place: Place, data: np.ndarray | bytes) -> None:
        """Copy data into a buffer."""
        buffer, offset = _pair(place)
        content = data if isinstance(data, bytes) else np.ascontiguousarray(data).tobytes()
        self._words(_WRITE, buffer, offset, len(content))
        self._parts.append(content)

    def array(self, data: np.ndarray) -> int:
        """Reserve a buffer for an array and copy it; gives its number."""
        buffer = self.allocate(data.nbytes)
        self.write(buffer, data)
        return buffer

    def call(self, kernel: str, arguments: Sequence[Place]) -> None:
        """Call a kernel; its counts are the next of :meth:`run`.

        Raises
        ------
        InputError
            If an argument does not begin at a multiple of the size of a vector, as kernels take for granted.
        """
        number = self.program.kernels.index(kernel)
        flat = [part for place in arguments for part in _pair(place)]
        for offset in flat[1::2]:
            if offset % VECTOR_BYTES:
                raise InputError(f"kernel {kernel} is given offset {offset}; offsets are multiples of {VECTOR_BYTES}")
        self._words(_CALL, number, len(arguments), *flat)
        self._answers.append(-1)

    def read(self, place: Place, size: int) -> None:
        """Ask for bytes of a buffer as it is then; they are the next of :meth:`run`."""
        self._words(_READ, *_pair(place), size)
        self._answers.append(size)

    def run(self, seconds: float = SECONDS) -> tuple[list[Counts], list[bytes]]:
        """Run the program.

        Parameters
        ----------
        seconds : float
            After which it is ended.

        Returns
        -------
        tuple
            Counts of the calls, and the bytes that were read, both in order.

        Raises
        ------
        CompileError
            If the program crashes, hangs, or runs out of memory.
        MissingPackageError
            If there is no emulator.
        """
        return self.parsed(_emulate(self.program, self.content, seconds))

    @property
    def content(self) -> bytes:
        """What the program reads."""
        return b"".join([*self._parts, struct.pack("<I", _END)])

    def parsed(self, answer: bytes) -> tuple[list[Counts], list[bytes]]:
        """Take apart what the program wrote; gives counts and bytes as :meth:`run`."""
        counts, results, offset = [], [], 0
        for size in self._answers:
            if size < 0:
                counts.append(Counts(*struct.unpack_from("<3I", answer, offset)))
                offset += 12
            else:
                results.append(answer[offset : offset + size])
                offset += size
        return counts, results

    def _words(self, *values: int) -> None:
        self._parts.append(struct.pack(f"<{len(values)}I", *values))


def _pair(place: Place) -> tuple[int, int]:
    return place if isinstance(place, tuple) else (place, 0)


def emulation(code: Program, folder: Path, options: Sequence[str] = ()) -> list[str]:
    """Write a program into a folder; gives the command that runs it, with options of the emulator.

    Raises
    ------
    MissingPackageError
        If there is no emulator.
    """
    emulator, path = program(EMULATOR), folder / "program"
    path.write_bytes(code.image)
    path.chmod(0o700)
    return [emulator, "-cpu", _EMULATED, *options, str(path)]


def _emulate(code: Program, script: bytes, seconds: float) -> bytes:
    with tempfile.TemporaryDirectory(prefix="tvm-ext-hexagon-") as folder:
        command = emulation(code, Path(folder))
        try:
            done = subprocess.run(command, input=script, capture_output=True, timeout=seconds, check=False)
        except subprocess.TimeoutExpired:
            raise CompileError(f"a Hexagon program did not end within {seconds:.0f} s in the emulator") from None
    if done.returncode:
        message = done.stderr.decode(errors="replace").strip().splitlines()
        reason = _EXIT_CODES.get(done.returncode) or (message[-1] if message else f"exit code {done.returncode}")
        raise CompileError(f"a Hexagon program failed in the emulator: {reason}")
    return done.stdout


class Kernels:
    """Compiled kernels that take and give NumPy arrays.

    Parameters
    ----------
    mod : tvm.IRModule or tirx.PrimFunc
        Scheduled kernels; a PrimFunc alone is called ``main``.
    target : tvm.target.Target
        For Hexagon.

    Raises
    ------
    CompileError, MissingPackageError
        As :func:`tvm_ext.backends.hexagon.code.build`.
    """

    def __init__(self, mod: tvm.IRModule | tvm.tirx.PrimFunc, target: tvm.target.Target) -> None:
        if isinstance(mod, tvm.tirx.PrimFunc):
            mod = tvm.IRModule({"main": mod.with_attr("global_symbol", "main")})
        self.program = build(mod, target)
        self._parameters: Mapping[str, list[tuple[tuple[int, ...], str]]] = {
            str(global_var.name_hint): [
                (tuple(int(extent) for extent in buffer.shape), str(buffer.dtype)) for buffer in func.params
            ]
            for global_var, func in mod.functions.items()
        }

    def run(self, calls: Sequence[tuple[str, Sequence[np.ndarray]]]) -> list[tuple[list[np.ndarray], Counts]]:
        """Call kernels, each on its own copies of arrays, in one run of the emulator.

        Parameters
        ----------
        calls : sequence of (name, arrays)
            One array for each parameter, outputs included.

        Returns
        -------
        list of (arrays, Counts)
            For each call the arrays as it leaves them.

        Raises
        ------
        InputError
            If an array has another shape or type than its parameter.
        CompileError
            If the program fails.
        """
        script = Script(self.program)
        for name, arrays in calls:
            self._check(name, arrays)
            buffers = [script.array(array) for array in arrays]
            script.call(name, buffers)
            for buffer, array in zip(buffers, arrays, strict=True):
                script.read(buffer, array.nbytes)
        counts, contents = script.run()
        content = iter(contents)
        return [
            ([np.frombuffer(next(content), array.dtype).reshape(array.shape).copy() for array in arrays], count)
            for (_, arrays), count in zip(calls, counts, strict=True)
        ]

    def __call__(self, *arrays: np.ndarray, name: str = "main") -> tuple[list[np.ndarray], Counts]:
        """Call one kernel; as :meth:`run`."""
        return self.run([(name, arrays)])[0]

    def _check(self, name: str, arrays: Sequence[np.ndarray]) -> None:
        wanted = self._parameters[name]
        given = [(array.shape, str(array.dtype)) for array in arrays]
        if given != wanted:
            raise InputError(f"kernel {name} takes arrays {wanted} and was given {given}")
