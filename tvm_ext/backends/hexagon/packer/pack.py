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
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import tvm

from tvm_ext.backends.hexagon.code import UNPACKETIZED, assembly
from tvm_ext.backends.hexagon.packer.addresses import places
from tvm_ext.backends.hexagon.packer.assembly import Block, Function, functions, written
from tvm_ext.backends.hexagon.packer.choice import block_candidates, choose, is_cheaper
from tvm_ext.backends.hexagon.packer.dependences import Dependence, Edges, dependence_graph
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
        Functions with LLVM's packets.
    """

    text: str
    refused: tuple[Reproducer, ...] = ()
    kept: tuple[str, ...] = ()


def packed_kernels(mod: tvm.IRModule, target: tvm.target.Target) -> Packed:
    """Compile kernels with our own packets.

    Parameters
    ----------
    mod : tvm.IRModule
        As :func:`tvm_ext.backends.hexagon.code.assembly` takes it.
    target : tvm.target.Target
        For Hexagon.

    Returns
    -------
    Packed
        Its text is what :func:`tvm_ext.backends.hexagon.code.assemble` takes.
    """
    names = [str(global_var.name_hint) for global_var in mod.functions]
    text, reference = assembly(mod, target, UNPACKETIZED), assembly(mod, target)
    return pack_assembly(text, reference, names, processor=processor_of(target))


def pack_assembly(
    text: str,
    reference: str,
    names: Iterable[str] | None = None,
    *,
    soft: bool = True,
    candidates: bool = True,
    capped: bool = True,
    refusal: Refusal | None = None,
    processor: str = "hexagonv67",
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
        Whether LLVM's packets are a candidate, of a block and of a function as a whole.
    capped : bool
        Whether packets are held to 5 % more than LLVM's; otherwise only cycles count.
    refusal : callable, optional
        The assembler; by default clang.
    processor : str
        As LLVM names it.

    Raises
    ------
    MissingPackageError
        If there is no clang.
    """
    refusal = refusal or (lambda file: refused_lines(file, processor))
    theirs = {function.name: function for function in functions(reference)}
    wanted = theirs.keys() if names is None else set(names)
    refused: list[Reproducer] = []
    bodies: dict[str, Sequence[Block]] = {}
    kept: list[str] = []
    for function in functions(text):
        if function.name not in wanted or function.name not in theirs:
            continue
        body = _pack_function(function, theirs[function.name], reference, soft, candidates, capped, refusal, refused)
        if body is None:
            kept.append(function.name)
        else:
            bodies[function.name] = body
    return Packed(written(reference, bodies), tuple(refused), tuple(kept))


def _pack_function(
    ours: Function,
    theirs: Function,
    reference: str,
    soft: bool,
    candidates: bool,
    capped: bool,
    refusal: Refusal,
    refused: list[Reproducer],
) -> list[Block] | None:
    known = places(ours.blocks)
    graphs = [dependence_graph(block.instructions, place) for block, place in zip(ours.blocks, known, strict=True)]
    if not soft:
        graphs = [_hardened(graph) for graph in graphs]
    others = theirs.blocks if len(theirs.blocks) == len(ours.blocks) else None
    counterparts: list[Block | None] = [*others] if others is not None else [None] * len(graphs)
    bad: set[frozenset[str]] = set()
    for _ in range(ATTEMPTS):
        found = [
            block_candidates(block, graph, other, candidates, frozenset(bad))
            for block, graph, other in zip(ours.blocks, graphs, counterparts, strict=True)
        ]
        blocks = [
            replace(block, packets=packets)
            for block, packets in zip(ours.blocks, choose(ours.blocks, found, others if capped else None), strict=True)
        ]
        if candidates and others is not None and not is_cheaper(blocks, others):
            return others
        file = written(reference, {ours.name: blocks})
        complaints = refusal(file)
        if not complaints:
            return blocks
        fresh = [packet for packet in _packets_at(file, complaints) if frozenset(packet) not in bad]
        refused += [Reproducer(ours.name, packet) for packet in fresh]
        if not fresh or any(len(packet) == 1 for packet in fresh):
            return None
        bad |= set(map(frozenset, fresh))
    return None


def _hardened(edges: Edges) -> Edges:
    """Make soft edges hard."""
    return tuple(
        {late: Dependence("hard", edge.latency) if edge.kind == "soft" else edge for late, edge in later.items()}
        for later in edges
    )


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
