"""Several packings of each block of a function, and which of them are best together."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from tvm_ext.backends.hexagon.packer.assembly import Block, Packet, closed
from tvm_ext.backends.hexagon.packer.cycles import cycles_along, timing
from tvm_ext.backends.hexagon.packer.dependences import Edges
from tvm_ext.backends.hexagon.packer.refine import Refinement
from tvm_ext.backends.hexagon.packer.sda import Weights, pack_block

WEIGHTS = (
    Weights(patience=True),
    Weights(),
    Weights(order=0.9, stall=8.0, patience=True),
    Weights(order=0.5, stall=2.0, soft=0.0, patience=True),
)
"""Weights that are tried."""

MORE_PACKETS = 1.05
"""Packets of a block, against LLVM's, beyond which a packing is only taken where there is no other."""

LARGEST_BLOCK = 600
"""Instructions of a block that is still packed; the effort grows with their square."""

ROUNDS = 3
"""Of a loop until its rounds are alike."""

EFFORT = 1500
"""Packings of a block that are looked at for a better one."""

TRIPS, ROUTE = 4, 4000
"""Rounds of a loop, and blocks, that a function is judged by."""


def block_candidates(
    block: Block, edges: Edges, other: Block | None, may_keep: bool, refused: frozenset[frozenset[str]]
) -> list[list[Packet]]:
    """Pack a block in several ways.

    Parameters
    ----------
    block : Block
        One instruction a packet.
    edges : Edges
        What depends on what.
    other : Block, optional
        The same with LLVM's packets, which sets how many packets are too many.
    may_keep : bool
        Whether LLVM's packets are one of the ways, if they are of the same instructions.
    refused : frozenset of frozenset of str
        Texts of packets that are not to be made.
    """
    instructions = block.instructions
    theirs = closed(other.packets, other.end) if other is not None else None
    if len(instructions) > LARGEST_BLOCK:
        return [theirs if other is not None and _is_same(block, other) and theirs else block.packets]
    limit = len(instructions) if theirs is None else int(len(theirs) * MORE_PACKETS)
    found = []
    for weights in WEIGHTS if len(instructions) > 1 else WEIGHTS[:1]:
        search = Refinement(instructions, edges, block.end, limit, ROUNDS, refused, EFFORT)
        members = pack_block(instructions, edges, weights, refused, bool(block.end))
        for packing in (members, search.run(members)):
            packets = search.packets(packing)
            if packets is not None and packets not in found:
                found.append(packets)
    if may_keep and theirs is not None and other is not None and _is_same(block, other):
        found.append(theirs)
    least = min(max(0, len(packets) - limit) for packets in found)
    return [packets for packets in found if max(0, len(packets) - limit) == least]


def _is_same(block: Block, other: Block) -> bool:
    """Whether LLVM's packets are of the same instructions; it may have moved constants or merged some."""

    def plain(item: Block) -> Counter[str]:
        return Counter(re.sub(r"\.(new|cur)\b", "", instruction.text) for instruction in item.instructions)

    return plain(block) == plain(other) and block.end == other.end


def choose(blocks: Sequence[Block], candidates: Sequence[Sequence[list[Packet]]]) -> list[list[Packet]]:
    """Choose a packing of each block so that the function takes the fewest cycles, then packets, along its route."""
    way = route(blocks)
    times = Counter(way)
    timings = [[[timing(packet) for packet in packets] for packets in found] for found in candidates]
    chosen = [0] * len(blocks)

    def cost() -> tuple[int, int]:
        packets = sum(times[number] * len(timings[number][index]) for number, index in enumerate(chosen))
        return cycles_along(way, [timings[number][index] for number, index in enumerate(chosen)]), packets

    best = cost()
    for _ in range(2):
        for number, _count in times.most_common():
            for index in range(len(candidates[number])):
                kept = chosen[number]
                chosen[number] = index
                if (new := cost()) < best:
                    best = new
                else:
                    chosen[number] = kept
    return [list(found[index]) for found, index in zip(candidates, chosen, strict=True)]


def route(blocks: Sequence[Block]) -> list[int]:
    """Guess the way through a function: in order, each loop a few rounds, branches ahead not taken."""
    labels = {label: number for number, block in enumerate(blocks) for label in block.labels}
    starts = {"0": -1, "1": -1}
    left: dict[int, int] = {}
    way: list[int] = []
    number = 0
    while number < len(blocks) and len(way) < ROUTE:
        way.append(number)
        block = blocks[number]
        target = -1
        for item in block.instructions:
            if item.text.startswith("loop"):
                starts[item.text[4]] = labels.get(item.target, -1)
            elif item.is_branch and labels.get(item.target, len(blocks)) <= number:
                target = labels[item.target]
            elif item.is_branch and not item.predicate and item.target in labels:
                target = labels[item.target]
        if block.end:
            target = starts["0" if "endloop0" in block.end else "1"]
        if target > number:
            number = target
            continue
        if target >= 0:
            left.setdefault(number, TRIPS - 1)
            left[number] -= 1
            if left[number] >= 0:
                number = target
                continue
            del left[number]
        number += 1
    return way
