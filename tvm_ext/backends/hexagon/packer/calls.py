"""Follow the calls of a program packet by packet under the emulator, and count what the cycle model makes of each."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from tvm_ext.backends.hexagon.code import Program, assemble
from tvm_ext.backends.hexagon.emulator import Counts, Script, emulation
from tvm_ext.backends.hexagon.packer.assembly import Block, functions, written
from tvm_ext.backends.hexagon.packer.cycles import NOTHING, BlockCycles
from tvm_ext.backends.hexagon.packer.trace import symbols
from tvm_ext.errors import CompileError

_TRACED = re.compile(rb"^Trace \d+: \S+ \[\w+/(\w+)/", re.MULTILINE)
_DRIVER = "tvm_ext_main"  # the function that calls kernels
_PART = 1 << 20  # bytes of the log that are read at a time


def trace_calls(
    text: str, program: Program, script_of: Callable[[Program], Script]
) -> tuple[list[Counts], list[bytes], list[int]]:
    """Run a program and count the cycles of its calls by the model.

    Packets of functions of the runtime that kernels call, and those with which loops are aligned, count as one each.

    Parameters
    ----------
    text : str
        Assembly of the kernels.
    program : Program
        What was made of it.
    script_of : callable
        Gives what is to be run, for the same program with the places of its blocks marked.

    Returns
    -------
    tuple
        Counts of the calls, and bytes that were read, as :meth:`~tvm_ext.backends.hexagon.emulator.Script.run` gives
        them, and the cycles of each call.

    Raises
    ------
    CompileError
        If the program fails.
    MissingPackageError
        If a tool is missing.
    """
    marked, known = {}, {}
    for function in functions(text):
        if function.name in program.kernels:
            marked[function.name] = [
                Block([*block.before, f"tvm_ext_block_{function.name}_{number}:"], block.packets, block.end)
                for number, block in enumerate(function.blocks)
            ]
            for number, block in enumerate(function.blocks):
                if block.packets:
                    known[f"tvm_ext_block_{function.name}_{number}"] = BlockCycles(block.packets)
    code = assemble([written(text, marked)], program.kernels, program.processor)
    places = dict(symbols(code.image))
    blocks = {b"%08x" % places[name]: found for name, found in known.items()}
    start = places[_DRIVER]
    driver = b"%08x" % start, b"%08x" % min(place for place in places.values() if place > start)
    script = script_of(code)
    with tempfile.TemporaryDirectory(prefix="tvm-ext-hexagon-") as folder:
        name, answer = Path(folder) / "script", Path(folder) / "answer"
        name.write_bytes(script.content)
        command = emulation(code, Path(folder), ("-singlestep", "-d", "exec,nochain"))
        with (
            name.open("rb") as given,
            answer.open("wb") as written_to,
            subprocess.Popen(command, stdin=given, stdout=written_to, stderr=subprocess.PIPE) as process,
        ):
            assert process.stderr is not None
            found = list(_followed(process.stderr, blocks, driver))
        if process.returncode:
            raise CompileError(f"a Hexagon program failed in the emulator: exit code {process.returncode}")
        counts, contents = script.parsed(answer.read_bytes())
    cycles = [clock + max(0, count.packets - packets) for (packets, clock), count in zip(found, counts, strict=True)]
    return counts, contents, cycles


def _followed(
    log: IO[bytes], blocks: dict[bytes, BlockCycles], driver: tuple[bytes, bytes]
) -> Iterator[tuple[int, int]]:
    """Give for each call the packets of the blocks it went through, and their cycles; between calls is the driver."""
    packets, clock, under_way = 0, 0, NOTHING
    for part in _parts(log):
        for address in _TRACED.findall(part):
            block = blocks.get(address)
            if block is not None:
                cycles, under_way = block.after(under_way)
                packets += len(block.timings)
                clock += cycles
            elif packets and driver[0] <= address < driver[1]:
                yield packets, clock
                packets, clock, under_way = 0, 0, NOTHING


def _parts(log: IO[bytes]) -> Iterator[bytes]:
    """Read whole lines, many at a time."""
    rest = b""
    while part := log.read(_PART):
        lines, end, rest = (rest + part).rpartition(b"\n")
        yield lines + end
    yield rest
