"""Run a kernel under the emulator block by block, and count what the cycle model makes of it."""

from __future__ import annotations

import re
import struct
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tvm_ext.backends.hexagon.code import Program, assemble
from tvm_ext.backends.hexagon.emulator import Counts, Script, emulation
from tvm_ext.backends.hexagon.packer.assembly import Block, functions, written
from tvm_ext.backends.hexagon.packer.cycles import NOTHING, BlockCycles
from tvm_ext.errors import CompileError

_MARK, _END = "tvm_ext_block_", "tvm_ext_block_end"
_TRACED = re.compile(rb"^Trace \d+: \S+ \[\w+/(\w+)/", re.MULTILINE)


@dataclass(frozen=True)
class Execution:
    """A call of a kernel.

    Attributes
    ----------
    packets : int
        Executed in the kernel itself, those included with which the assembler aligns loops.
    cycles : int
        What the others take by the cycle model.
    counts : Counts
        The emulator's own, which hold a few packets of the caller.
    arrays : list of numpy.ndarray
        The arguments as the kernel leaves them.
    """

    packets: int
    cycles: int
    counts: Counts
    arrays: list[np.ndarray]


def execute(text: str, kernel: str, arrays: Sequence[np.ndarray], processor: str) -> Execution:
    """Assemble a file, call one of its kernels, and follow it through its blocks.

    Parameters
    ----------
    text : str
        Assembly.
    kernel : str
        A function of pointers.
    arrays : sequence of numpy.ndarray
        One for each parameter, outputs included.
    processor : str
        As LLVM names it.

    Raises
    ------
    CompileError
        If it is not assembled or fails in the emulator.
    MissingPackageError
        If a tool is missing.
    """
    blocks = next(function.blocks for function in functions(text) if function.name == kernel)
    # A mark for each block, which the emulator's log is compared with.
    marked = [Block([*block.before, f"{_MARK}{i}:"], block.packets, block.end) for i, block in enumerate(blocks)]
    marked.append(Block([f"{_END}:"]))
    code = assemble([written(text, {kernel: marked})], [kernel], processor)
    script = Script(code)
    buffers = [script.array(array) for array in arrays]
    script.call(kernel, buffers)
    for buffer, array in zip(buffers, arrays, strict=True):
        script.read(buffer, array.nbytes)
    answer, log = _traced(code, script.content)
    counts, contents = script.parsed(answer)
    packets, cycles = _follow(log, blocks, dict(symbols(code.image)))
    results = [
        np.frombuffer(content, array.dtype).reshape(array.shape)
        for content, array in zip(contents, arrays, strict=True)
    ]
    return Execution(packets, cycles, counts[0], results)


def _follow(log: bytes, blocks: Sequence[Block], addresses: dict[str, int]) -> tuple[int, int]:
    """Count packets and cycles of a kernel.

    Packets of nothing, with which the assembler aligns loops, are packets, and take no cycle: whether there are any
    depends on the bytes of code in front, which no packing is to blame for.
    """
    starts = {addresses[f"{_MARK}{number}"]: number for number, block in enumerate(blocks) if block.packets}
    first, last = min(starts), addresses[_END]
    packets, clock, left, under_way = 0, 0, 0, NOTHING
    known = [BlockCycles(block.packets) for block in blocks]
    for match in _TRACED.finditer(log):
        address = int(match[1], 16)
        if not first <= address < last:
            continue
        packets += 1
        if address in starts:
            inside = known[starts[address]]
            left = len(inside.timings) - 1
            cycles, under_way = inside.after(under_way)
            clock += cycles
        elif left:
            left -= 1
    return packets, clock


def _traced(code: Program, script: bytes) -> tuple[bytes, bytes]:
    """Run a program; gives what it writes, and a line for each packet."""
    with tempfile.TemporaryDirectory(prefix="tvm-ext-hexagon-") as folder:
        log = Path(folder) / "log"
        command = emulation(code, Path(folder), ("-singlestep", "-d", "exec,nochain", "-D", str(log)))
        done = subprocess.run(command, input=script, capture_output=True, check=False)
        if done.returncode:
            raise CompileError(f"a Hexagon program failed in the emulator: exit code {done.returncode}")
        return done.stdout, log.read_bytes()


def symbols(image: bytes) -> list[tuple[str, int]]:
    """List the symbols of an ELF file of 32 bits, little-endian, with their addresses."""
    table, entry_size, count = struct.unpack_from("<I10xHH", image, 32)
    headers = [struct.unpack_from("<10I", image, table + entry_size * number) for number in range(count)]
    found = []
    for _, kind, _, _, offset, size, link, *_ in headers:
        if kind != 2:  # SHT_SYMTAB
            continue
        strings = headers[link][4]
        for place in range(offset, offset + size, 16):
            name, address = struct.unpack_from("<II", image, place)
            end = image.index(b"\0", strings + name)
            found.append((image[strings + name : end].decode(), address))
    return found
