"""Whether instructions fit into one packet: words, slots, pipes, memory; dependences are another matter."""

from __future__ import annotations

from collections.abc import Sequence

from tvm_ext.backends.hexagon.packer.instruction import Instruction

WORDS = 4
"""Of a packet."""


NEAR = 6
"""Packets from the end of a block within which the distance to a loop behind it needs no word of its own."""


def fits(packet: Sequence[Instruction], is_near: bool = False) -> bool:
    """Whether there is a slot and a pipe for each instruction.

    Stricter than the hardware in one thing: a packet has at most one jump.

    Parameters
    ----------
    packet : sequence of Instruction
        What is to share a packet.
    is_near : bool
        Whether a loop that begins here is near, :data:`NEAR`.
    """
    if len(packet) > 1 and any(item.row.alone for item in packet):
        return False
    words = sum(
        1 if is_near and item.row.name == "hardware loop" and "##" not in item.text else item.words for item in packet
    )
    if words > WORDS or sum(item.is_branch for item in packet) > 1:
        return False
    accesses = [item for item in packet if item.access is not None]
    return (
        _memory_fits(accesses)
        and _assigned([item.row.slots for item in packet])
        and _assigned([item.row.pipes for item in packet if item.row.pipes])
    )


def _memory_fits(accesses: Sequence[Instruction]) -> bool:
    if len(accesses) < 2:
        return True
    vectors = [item for item in accesses if item.is_vector_memory]
    stores = [item for item in accesses if item.access is not None and item.access.kind != "load"]
    if len(stores) > 1 and any(item.fresh & {item.stored} or item.access.kind == "update" for item in stores):  # type: ignore[union-attr]
        return False
    vector_stores = sum(item in stores for item in vectors)
    return vector_stores <= 1 and len(vectors) - vector_stores <= 1


def _assigned(choices: Sequence[tuple[tuple[int, ...], ...]]) -> bool:
    """Whether one set can be taken of each list of sets so that no two of them meet."""
    waiting = sorted(choices, key=len)
    reached = {frozenset[int]()}
    for options in waiting:
        reached = {taken | set(option) for taken in reached for option in options if not taken & set(option)}
        if not reached:
            return False
    return True
