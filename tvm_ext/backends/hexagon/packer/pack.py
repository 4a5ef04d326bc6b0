"""Pack the kernels of an assembly file anew.

Every block is packed with a few weights, the packing with the fewest cycles by the model is kept, and of those the one
with the fewest packets. LLVM's own packets of the same block are among the candidates. The assembler judges the result:
a packet it refuses is kept as a reproducer and not made again, and a function that it goes on refusing keeps LLVM's
packets.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import tvm

from tvm_ext.backends.hexagon.code import UNPACKETIZED, assemblies
from tvm_ext.backends.hexagon.packer.assembly import Block, functions, written
from tvm_ext.backends.hexagon.packer.function import FunctionPacking, Ways
from tvm_ext.backends.hexagon.packer.memory import Memory
from tvm_ext.backends.hexagon.target import processor as processor_of
from tvm_ext.backends.hexagon.toolchain import CLANG, compile_flags, program

ATTEMPTS = 8
"""Times that a function is packed again without packets that were refused."""

Refusal = Callable[[str], list[int]]
"""Numbers the lines of a file that an assembler complains of, from 1; 0 where it does not say which."""


@dataclass(frozen=True)
class Reproducer:
    """A packet that the assembler refused, although its rows said that it fits.

    Attributes
    ----------
    function : str
    packet : tuple of str
        Its instructions.
    """

    function: str
    packet: tuple[str, ...]

    @property
    def text(self) -> str:
        """A file that shows it."""
        return "{\n" + "".join(f"\t{item}\n" for item in self.packet) + "}\n"


@dataclass(frozen=True)
class Packed:
    """Assembly with packets.

    Attributes
    ----------
    text : str
    refused : tuple of Reproducer
        Packets that the assembler did not take.
    kept : tuple of str
        Functions with LLVM's packets, because others were refused.
    verified : mapping of str to int
        The others, each with how many of its blocks have packets of ours, all verified; 0: LLVM's were better.
    cycles, cycles_before : mapping of str to float
        Estimated cycles of those, with these packets and with LLVM's.
    """

    text: str
    refused: tuple[Reproducer, ...] = ()
    kept: tuple[str, ...] = ()
    verified: Mapping[str, int] = field(default_factory=dict)
    cycles: Mapping[str, float] = field(default_factory=dict)
    cycles_before: Mapping[str, float] = field(default_factory=dict)


def packed_kernels(mod: tvm.IRModule, target: tvm.target.Target, share: float = 0.0) -> Packed:
    """Compile kernels with our own packets.

    Parameters
    ----------
    mod : tvm.IRModule
        As :func:`tvm_ext.backends.hexagon.code.assembly` takes it.
    target : tvm.target.Target
        For Hexagon.
    share : float
        As :func:`pack_assembly`.

    Returns
    -------
    Packed
        Its text is what :func:`tvm_ext.backends.hexagon.code.assemble` takes.
    """
    names = [str(global_var.name_hint) for global_var in mod.functions]
    text, reference = assemblies(mod, target, [UNPACKETIZED, ()])
    return pack_assembly(text, reference, names, share=share, processor=processor_of(target))


def pack_assembly(
    text: str,
    reference: str,
    names: Iterable[str] | None = None,
    *,
    soft: bool = True,
    candidates: bool = True,
    capped: bool = True,
    share: float = 0.0,
    refusal: Refusal | None = None,
    processor: str = "hexagonv67",
    memory: Memory | None = None,
) -> Packed:
    """Pack functions.

    Parameters
    ----------
    text : str
        One instruction a packet, as LLVM writes it without its packetizer. Arguments of functions that are pointers
        have no aliases, as TVM's kernels have them.
    reference : str
        The same code with LLVM's packets.
    names : iterable of str, optional
        Functions to pack, all by default; others are taken from ``reference``'s way of writing, with LLVM's packets.
    soft : bool
        Whether results may be read in their packet; False is *soft to hard* of the source's figure 4.11.
    candidates : bool
        Whether there are others than SDA's: packets without soft dependences, and LLVM's, of a block and of a function
        as a whole.
    capped : bool
        Whether packets are held to 5 % more than LLVM's; otherwise only cycles count.
    share : float
        Blocks with less than this share of all packets, as loops tell, keep LLVM's packets where these are of the same
        instructions: packing takes time, and a whole model has hundreds of blocks that hardly run.
    refusal : callable, optional
        The assembler; by default clang.
    processor : str
        As LLVM names it.
    memory : Memory, optional
        Packings of blocks that were packed before, which those of this call are added to.

    Raises
    ------
    CompileError
        If packets do not compute what the instructions do in their order.
    MissingPackageError
        If there is no clang.
    """
    refusal = refusal or (lambda file: refused_lines(file, processor))
    theirs = {function.name: function for function in functions(reference)}
    wanted = theirs.keys() if names is None else set(names)
    waiting = [item for item in functions(text) if item.name in wanted and item.name in theirs]
    ways = Ways(soft, candidates, capped)
    works = {item.name: FunctionPacking(item, theirs[item.name], ways) for item in waiting}
    done = dict(works)
    least = share * sum(work.packets for work in works.values())
    memory = Memory() if memory is None else memory
    refused: list[Reproducer] = []
    bodies: dict[str, Sequence[Block]] = {}
    kept: list[str] = []
    for attempt in range(ATTEMPTS + 1):
        if not works:
            break
        if attempt == ATTEMPTS:
            kept += works
            break
        bodies |= {name: work.blocks(least, memory) for name, work in works.items()}
        file = written(reference, bodies)
        complaints = refusal(file)
        again = {}
        for name, packets in _by_function(file, complaints, works, reference, bodies, refusal).items():
            fresh = [packet for packet in packets if frozenset(packet) not in works[name].refused]
            refused += [Reproducer(name, packet) for packet in fresh]
            if not fresh or any(len(packet) == 1 for packet in fresh):
                kept.append(name)
            else:
                works[name].refused |= set(map(frozenset, fresh))
                again[name] = works[name]
        for name in (*again, *kept):
            bodies.pop(name, None)
        works = again
    return Packed(
        written(reference, bodies),
        tuple(refused),
        tuple(kept),
        {name: done[name].verified for name in bodies},
        {name: done[name].cycles for name in bodies},
        {name: done[name].cycles_before for name in bodies},
    )


def _by_function(
    file: str,
    complaints: Sequence[int],
    works: Mapping[str, FunctionPacking],
    reference: str,
    bodies: Mapping[str, Sequence[Block]],
    refusal: Refusal,
) -> dict[str, list[tuple[str, ...]]]:
    """Give the packets that were refused by the functions they are in, empty where the assembler did not say."""
    found: dict[str, list[tuple[str, ...]]] = {}
    spans = [item for item in functions(file) if item.name in works] if complaints else []
    for number in complaints:
        inside = [item.name for item in spans if item.start < number <= item.stop]
        if not inside:  # it crashed, perhaps: ask for each function by itself
            guilty = (name for name in works if refusal(written(reference, {name: bodies[name]})))
            return {name: [] for name in guilty} or {name: [] for name in works}
        found.setdefault(inside[0], []).extend(_packets_at(file, [number]))
    return found


def refused_lines(text: str, processor: str) -> list[int]:
    """Give the numbers, from 1, of the lines of a file that clang's assembler complains of; 0 if it does not say."""
    with tempfile.TemporaryDirectory(prefix="tvm-ext-hexagon-") as folder:
        source = Path(folder) / "kernels.s"
        source.write_text(text, encoding="utf-8")
        command = [program(CLANG), *compile_flags(processor), "-c", str(source), "-o", str(source.with_suffix(".o"))]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    numbers = [int(number) for number in re.findall(r"kernels\.s:(\d+):\d+: error", done.stderr)]
    return numbers or [0] * bool(done.returncode)


def _packets_at(text: str, numbers: Sequence[int]) -> list[tuple[str, ...]]:
    """Give the packets around lines of a file."""
    lines = text.split("\n")
    found = []
    for number in filter(None, numbers):
        first = last = number - 1
        while first > 0 and lines[first].strip() != "{":
            first -= 1
        while last < len(lines) - 1 and not lines[last].strip().startswith("}"):
            last += 1
        found.append(tuple(line.strip() for line in lines[first + 1 : last]))
    return found
