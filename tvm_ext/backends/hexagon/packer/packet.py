"""One packet of some instructions of a block, if there can be one."""

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
