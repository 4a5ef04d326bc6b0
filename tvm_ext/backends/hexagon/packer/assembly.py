"""Functions of an assembly file as basic blocks of packets, and back to text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tvm_ext.backends.hexagon.packer.instruction import Instruction, parse

Packet = tuple[Instruction, ...]

_LABEL = re.compile(r"([.\w$]+):")
_LOCAL = re.compile(r"\.L\w+")
_NOTHING = parse("nop")
_NOTES = (".loc", ".cfi_", ".file")
"""Directives of debuggers, which are left out: instructions move."""


@dataclass
class Block:
    """A stretch of code that is entered at its start and left at its end.

    Attributes
    ----------
    before : list of str
        Lines in front of it: labels, alignment.
    packets : list of Packet
        Without padding, so that one that is nothing else is empty.
    end : str
        ``:endloop0`` and the like on the last packet, or empty.
    """

    before: list[str] = field(default_factory=list)
    packets: list[Packet] = field(default_factory=list)
    end: str = ""

    @property
    def instructions(self) -> list[Instruction]:
        """Those of all packets, in order."""
        return [item for packet in self.packets for item in packet]

    @property
    def labels(self) -> list[str]:
        """The labels in front of it."""
        return [match[1] for line in self.before if (match := _LABEL.match(line))]

    @property
    def falls_through(self) -> bool:
        """Whether the next block can follow it."""
        last = self.packets[-1] if self.packets else ()
        return not any(item.always_jumps for item in last)


@dataclass
class Function:
    """A function of a file; ``start`` and ``stop`` are its lines, without the label and the end."""

    name: str
    start: int
    stop: int
    blocks: list[Block]


def functions(text: str) -> list[Function]:
    """Find the functions of a file, in order."""
    lines = text.split("\n")
    return [Function(name, start, stop, _blocks(lines[start:stop])) for name, start, stop in _spans(text, lines)]


def _spans(text: str, lines: Sequence[str]) -> list[tuple[str, int, int]]:
    """Find the names of functions, and their first lines and those behind the last."""
    found = []
    start, name = -1, ""
    declared = set(re.findall(r"^\s*\.type\s+(\S+),@function", text, re.MULTILINE))
    for number, line in enumerate(lines):
        match = _LABEL.match(line)
        if match and match[1] in declared:
            start, name = number + 1, match[1]
        elif line.startswith(".Lfunc_end") and start >= 0:
            found.append((name, start, number))
            start = -1
    return found


def callers_of(text: str, called: Iterable[str]) -> list[str]:
    """List the functions of a file that name one of others."""
    named = re.compile(rf"(?<![.\w$])({'|'.join(map(re.escape, called))})(?![.\w$])")
    lines = text.split("\n")
    return [name for name, start, stop in _spans(text, lines) if any(map(named.search, lines[start:stop]))]


def _blocks(lines: Sequence[str]) -> list[Block]:
    # Whatever is named may be gone to, in whatever way it is written: `jump:t .L1`, `loop1(##.L1,#15)`, `r0 = ##.L1`.
    targets = {name for line in lines if not _LABEL.match(line) for name in _LOCAL.findall(line)}
    blocks = [Block()]

    def begin() -> None:
        if blocks[-1].packets:
            blocks.append(Block())

    packet: list[str] | None = None
    for line in lines:
        bare = re.sub(r"\s*//.*", "", line).strip()
        if not bare or (bare.startswith(_NOTES) and bare not in (".cfi_startproc", ".cfi_endproc")):
            continue
        if bare == "{":
            packet = []
        elif packet is not None and bare.startswith("}"):
            instructions = tuple(parse(item) for item in packet if item != "nop")
            packet = None
            blocks[-1].packets.append(instructions)
            if end := bare[1:].replace(" ", ""):
                blocks[-1].end = end
            if end or any(item.is_branch for item in instructions):
                blocks.append(Block())
        elif packet is not None:
            packet.append(bare)
        else:
            label = _LABEL.match(bare)
            if label is None or label[1] in targets:
                begin()
            blocks[-1].before.append(line)
    return [block for block in blocks if block.packets or block.before or block.end]


def written(text: str, blocks: Mapping[str, Iterable[Block]]) -> str:
    """Write a file with other bodies of some of its functions.

    Parameters
    ----------
    text : str
        The file.
    blocks : mapping of str to blocks
        New bodies by the names of functions.
    """
    lines = text.split("\n")
    for name, start, stop in reversed(_spans(text, lines)):
        if name in blocks:
            lines[start:stop] = _lines(blocks[name])
    return "\n".join(lines)


def _lines(blocks: Iterable[Block]) -> list[str]:
    lines: list[str] = []
    for block in blocks:
        lines += block.before
        packets = closed(block.packets, block.end)
        for number, packet in enumerate(packets):
            lines += ["\t{", *(f"\t\t{item.text}" for item in packet or (_NOTHING, _NOTHING))]
            lines.append(f"\t}} {block.end}" if block.end and number == len(packets) - 1 else "\t}")
    return lines


def closed(packets: Sequence[Packet], end: str) -> list[Packet]:
    """Add an empty packet to carry the end of a loop, where the last one cannot: it must not jump or begin a loop."""
    if end and (not packets or any(item.is_branch or item.target for item in packets[-1])):
        return [*packets, ()]
    return list(packets)
