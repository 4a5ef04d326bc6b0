"""Packets of some instructions of a block, where there can be one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tvm_ext.backends.hexagon.packer.assembly import Packet
from tvm_ext.backends.hexagon.packer.dependences import Edges, softened
from tvm_ext.backends.hexagon.packer.instruction import Instruction, parse
from tvm_ext.backends.hexagon.packer.resources import fits


def packet_of(
    block: Sequence[Instruction], edges: Edges, members: Iterable[int], is_near: bool = False
) -> Packet | None:
    """Write a packet, with ``.cur`` and ``.new`` where a result is read in it.

    Parameters
    ----------
    block : sequence of Instruction
        In order.
    edges : Edges
        What depends on what.
    members : iterable of int
        Instructions of the packet.
    is_near : bool
        Whether it is near the end of the block.

    Returns
    -------
    Packet or None
        In the order of the block; None where something would be read that must not be, or does not fit.
    """
    members = sorted(members)
    texts = {item: block[item].text for item in members}
    current: dict[str, set[int]] = {}
    for early in members:
        for late in members:
            edge = edges[early].get(late)
            if edge is None or edge.kind == "free":
                continue
            pair = softened(block[early], parse(texts[late])) if edge.kind == "soft" else None
            if pair is None:
                return None
            if pair[0] != block[early].text:
                texts[early] = pair[0]
                current.setdefault(block[early].destination, set()).add(late)
            texts[late] = pair[1]
    for name, readers in current.items():
        # With .cur every reader of the packet sees the new value.
        if any(name in block[item].reads and item not in readers for item in members):
            return None
    packet = tuple(parse(texts[item]) for item in members)
    return packet if fits(packet, is_near) else None


class Packets:
    """The packets of one block: each is written once, however many packings it is looked at for.

    Parameters
    ----------
    block : sequence of Instruction
        In order.
    edges : Edges
        What depends on what.
    refused : frozenset of frozenset of str
        Texts of packets of several instructions that are not to be made.
    """

    def __init__(
        self, block: Sequence[Instruction], edges: Edges, refused: frozenset[frozenset[str]] = frozenset()
    ) -> None:
        self.block, self.edges, self.refused = block, edges, refused
        self._loops = frozenset(item for item, found in enumerate(block) if found.row.name == "hardware loop")
        self._written: dict[tuple[tuple[int, ...], bool], Packet | None] = {}

    @property
    def has_loops(self) -> bool:
        """Whether one of the instructions begins a hardware loop, so that it matters where packets are."""
        return bool(self._loops)

    def get(self, members: tuple[int, ...], is_near: bool) -> Packet | None:
        """Give the packet of some instructions, in ascending order, as :func:`packet_of`; None if there is none."""
        # Only the beginning of a loop cares for where it is.
        key = members, is_near and not self._loops.isdisjoint(members)
        if key not in self._written:
            packet = packet_of(self.block, self.edges, *key)
            if packet is not None and len(packet) > 1 and frozenset(item.text for item in packet) in self.refused:
                packet = None
            self._written[key] = packet
        return self._written[key]
