"""Check that packets compute what their instructions do one after the other, by names for values.

Every value gets a name that tells what made it of which values, so that equal names are equal values. A block is
followed once instruction by instruction, and once packet by packet, as the hardware has it: a packet reads all
registers before it writes any, but for what is read with ``.new`` and ``.cur``; its loads come before its stores. Each
instruction of a packet must make the name that one instruction of the block made, none may be left over, and the
registers must end alike.

Nothing here looks at the dependence graph that packets are made by. What both take for granted is which accesses of
memory can meet (:mod:`~tvm_ext.backends.hexagon.packer.addresses`), and that the rows say what an instruction reads and
writes.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field

from tvm_ext.backends.hexagon.packer.addresses import Place, apart, places
from tvm_ext.backends.hexagon.packer.assembly import Block, Function, Packet, closed
from tvm_ext.backends.hexagon.packer.instruction import Instruction, registers
from tvm_ext.backends.hexagon.packer.rows import UNKNOWN
from tvm_ext.errors import CompileError

_SAME_PACKET = re.compile(r"\.(new|cur)\b")
Place_ = Place | None


@dataclass
class _Names:
    """Numbers for values, the same for the same making."""

    numbers: dict[Hashable, int] = field(default_factory=dict)

    def of(self, making: Hashable) -> int:
        return self.numbers.setdefault(making, len(self.numbers))


@dataclass
class _State:
    """The names in registers, and the stores so far with their places."""

    names: _Names
    registers: dict[str, int] = field(default_factory=dict)
    stores: list[tuple[int, Place_]] = field(default_factory=list)
    everything: int = 0  # changed by what may do anything

    def read(self, register: str) -> int:
        if register not in self.registers:
            self.registers[register] = self.names.of(("at the start", register, self.everything))
        return self.registers[register]

    def name(self, item: Instruction, place: Place_, fresh: dict[str, int]) -> int:
        """Name what an instruction makes of the state as it is, and of ``fresh`` values of its packet."""
        values = tuple(
            (register, fresh[register] if register in fresh else self.read(register))
            for register in sorted(item.reads | item.fresh)
        )
        text = _SAME_PACKET.sub("", item.text)
        if item.row.alone or item.row is UNKNOWN:
            changed = frozenset(
                (register, name)
                for register, name in self.registers.items()
                if name != self.names.of(("at the start", register, self.everything))
            )
            return self.names.of((text, changed, frozenset(name for name, _ in self.stores), self.everything))
        if item.access is None:
            return self.names.of((text, values))
        # A store is named by those before it that it may meet, so that a set of names stands for their order.
        before = frozenset(
            name for name, other in self.stores if place is None or other is None or not apart(place, other)
        )
        return self.names.of((text, values, before))

    def write(self, item: Instruction, name: int, place: Place_) -> None:
        """Change the state by an instruction."""
        if item.row.alone or item.row is UNKNOWN:
            self.registers.clear()
            self.stores.clear()
            self.everything = name
            return
        for register in item.writes:
            self.registers[register] = self.names.of((name, register))
        if item.access is not None and item.access.kind != "load":
            self.stores.append((name, place))


def verify_blocks(function: Function, blocks: Sequence[Block], others: Sequence[Block] | None = None) -> int:
    """Check the packets of a function.

    Parameters
    ----------
    function : Function
        One instruction a packet.
    blocks : sequence of Block
        The same blocks with packets.
    others : sequence of Block, optional
        The same with LLVM's packets: what was taken from there is not checked, as it may move constants.

    Returns
    -------
    int
        Blocks that were checked.

    Raises
    ------
    CompileError
        If a block computes something else; the message names the function, the block and a packet.
    """
    checked = 0
    for number, (block, made, known) in enumerate(zip(function.blocks, blocks, places(function.blocks), strict=True)):
        if others is not None and _texts(made) == _texts(others[number]):
            continue
        fault = _fault(block, made, known)
        if fault:
            raise CompileError(f"packets of kernel {function.name}, block {number}, compute something else: {fault}")
        checked += 1
    return checked


def _texts(block: Block) -> list[list[str]]:
    return [[item.text for item in packet] for packet in closed(block.packets, block.end)]


def _fault(block: Block, made: Block, known: Sequence[Place_]) -> str:
    """Say what is wrong with the packets of a block; empty if nothing is."""
    names = _Names()
    state = _State(names)
    waiting: dict[str, list[tuple[int, Place_]]] = {}  # names by texts
    for item, place in zip(block.instructions, known, strict=True):
        name = state.name(item, place, {})
        state.write(item, name, place)
        waiting.setdefault(item.text, []).append((name, place))
    packed = _State(names)
    for number, packet in enumerate(made.packets):
        text = "{ " + "; ".join(item.text for item in packet) + " }"
        if any(item.is_branch for item in packet) and number < len(made.packets) - 1:
            return f"{text} jumps before the block ends"
        written = [register for item in packet for register in item.writes]
        if len(written) != len(set(written)):
            return f"{text} writes a register twice"
        found = _matched(packed, packet, waiting)
        if found is None:
            return f"{text} is of instructions or values that the block has not"
        for item, (name, place) in sorted(zip(packet, found, strict=True), key=lambda pair: _is_store(pair[0])):
            packed.write(item, name, place)
    left = [text for text, items in waiting.items() if items]
    if left:
        return f"{left[0]} is missing"
    every = state.registers.keys() | packed.registers.keys()
    wrong = sorted(register for register in every if state.read(register) != packed.read(register))
    return f"{', '.join(wrong)} ends with another value" if wrong else ""


def _is_store(item: Instruction) -> bool:
    return item.access is not None and item.access.kind != "load"


def _matched(
    state: _State, packet: Packet, waiting: dict[str, list[tuple[int, Place_]]]
) -> list[tuple[int, Place_]] | None:
    """Find the instruction of the block that each of a packet's is; None where there is none."""
    fresh: dict[str, int] = {}
    found: dict[int, tuple[int, Place_]] = {}
    # What makes a value that the packet reads is named first.
    left = list(range(len(packet)))
    while left:
        ready = [number for number in left if not _needed(packet, number, left)]
        if not ready:
            return None
        for number in ready:
            item = packet[number]
            wanted = _fresh_of(packet, number)
            if not wanted <= fresh.keys():
                return None
            pair = _claimed(state, item, {name: fresh[name] for name in wanted}, waiting)
            if pair is None:
                return None
            found[number] = pair
            for register in registers(item.destination):
                fresh[register] = state.names.of((pair[0], register))
        left = [number for number in left if number not in ready]
    return [found[number] for number in range(len(packet))]


def _fresh_of(packet: Packet, number: int) -> frozenset[str]:
    """Give the registers that an instruction of a packet reads as another one of it makes them."""
    item = packet[number]
    current = {name for other in packet if other is not item and other.is_for_this_packet for name in other.writes}
    return item.fresh | {name for name in item.reads & current if name[0] == "v"}


def _needed(packet: Packet, number: int, left: Iterable[int]) -> bool:
    wanted = _fresh_of(packet, number)
    return any(wanted & registers(packet[other].destination) for other in left if other != number)


def _claimed(
    state: _State, item: Instruction, fresh: dict[str, int], waiting: dict[str, list[tuple[int, Place_]]]
) -> tuple[int, Place_] | None:
    candidates = waiting.get(_SAME_PACKET.sub("", item.text), [])
    for index, (name, place) in enumerate(candidates):
        if state.name(item, place, fresh) == name:
            return candidates.pop(index)
    return None
