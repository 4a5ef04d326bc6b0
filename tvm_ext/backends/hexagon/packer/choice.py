"""Several packings of each block of a function, and which of them are best together."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence

from tvm_ext.backends.hexagon.packer.assembly import Block, Packet, closed
from tvm_ext.backends.hexagon.packer.cycles import BlockCycles, cycles_along
from tvm_ext.backends.hexagon.packer.dependences import Edges
from tvm_ext.backends.hexagon.packer.flow import control_flow, frequencies, route
from tvm_ext.backends.hexagon.packer.memory import Memory, Packings
from tvm_ext.backends.hexagon.packer.packet import Packets
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
"""Packets of a function, against LLVM's, beyond which packings are only taken where there are no others."""

LARGEST_BLOCK = 600
"""Instructions of a block that is still packed; the effort grows with their square."""

ROUNDS = 3
"""Of a loop until its rounds are alike."""

EFFORT = 400
"""Packings of a block that are looked at for a better one."""


def block_candidates(
    block: Block,
    edges: Edges,
    other: Block | None,
    may_keep: bool,
    refused: frozenset[frozenset[str]],
    memory: Memory,
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
    memory : Memory
        Packings of blocks that were packed before.
    """
    instructions = block.instructions
    theirs = closed(other.packets, other.end) if other is not None else None
    kept = theirs if other is not None and is_same(block, other) else None
    if len(instructions) > LARGEST_BLOCK:
        return [kept or block.packets]
    limit = len(theirs) if theirs is not None else len(instructions)
    written = Packets(instructions, edges, refused)
    search = Refinement(written, block.end, limit, ROUNDS, EFFORT)

    def packings() -> Packings:
        found = []
        for weights in WEIGHTS if len(instructions) > 1 else WEIGHTS[:1]:
            # Patient packings are made for few cycles; those that fill packets should not have many of these.
            search.limit = len(instructions) if weights.patience else limit
            search.effort = EFFORT
            members = pack_block(written, weights, bool(block.end))
            found += [members, search.run(members)]
        return found

    found: list[list[Packet]] = []
    for members in memory.get(instructions, edges, (block.end, limit, refused), packings):
        packets = search.packets(members)
        if packets is not None and packets not in found:
            found.append(packets)
    if may_keep and kept is not None:
        found.append(kept)
    return found or [block.packets]


def quick_packing(block: Block, edges: Edges, refused: frozenset[frozenset[str]]) -> list[Packet]:
    """Pack a block once."""
    instructions = block.instructions
    if len(instructions) > LARGEST_BLOCK:
        return block.packets
    written = Packets(instructions, edges, refused)
    search = Refinement(written, block.end, len(instructions), ROUNDS, 0)
    return search.packets(pack_block(written, WEIGHTS[0], bool(block.end))) or block.packets


def is_same(block: Block, other: Block) -> bool:
    """Whether LLVM's packets are of the same instructions, but for constants.

    Its packetizer works on one block at a time, and may move an addition to a pointer past accesses, whose offsets it
    changes; what the block does as a whole is the same.
    """

    def plain(item: Block) -> Counter[str]:
        texts = (re.sub(r"\.(new|cur)\b", "", instruction.text) for instruction in item.instructions)
        return Counter(re.sub(r"#+(-?\d+)?", "", text) for text in texts)

    return plain(block) == plain(other) and block.end == other.end


def choose(
    blocks: Sequence[Block], candidates: Sequence[Sequence[list[Packet]]], others: Sequence[Block] | None
) -> list[list[Packet]]:
    """Choose a packing of each block so that the function takes the fewest cycles, then packets, along its route.

    Parameters
    ----------
    blocks : sequence of Block
        Of the function.
    candidates : sequence of sequence of list of Packet
        Packings of each.
    others : sequence of Block, optional
        The same with LLVM's packets, which their number is held against (:data:`MORE_PACKETS`).
    """
    graph = control_flow(blocks)
    times = frequencies(graph)
    way = route(graph, times)
    limit = math.inf
    if others is not None:
        limit = MORE_PACKETS * sum(times[i] * len(closed(other.packets, other.end)) for i, other in enumerate(others))
    packed = [[BlockCycles(packets) for packets in found] for found in candidates]
    chosen = [found.index(min(found, key=len)) for found in candidates]

    def cost() -> tuple[float, float, int]:
        cycles, packets = _estimate(way, times, [packed[number][index] for number, index in enumerate(chosen)])
        return max(0.0, packets - limit), cycles, packets

    best = cost()
    for _ in range(2):
        before = list(chosen)
        for number in sorted(range(len(blocks)), key=lambda name: -times[name]):
            for index in range(len(candidates[number])):
                kept = chosen[number]
                if packed[number][index].timings == packed[number][kept].timings:  # it costs the same
                    continue
                chosen[number] = index
                if (new := cost()) < best:
                    best = new
                else:
                    chosen[number] = kept
        if chosen == before:
            break
    return [list(found[index]) for found, index in zip(candidates, chosen, strict=True)]


def estimate(blocks: Sequence[Block], like: Sequence[Block]) -> tuple[float, int]:
    """Estimate cycles and packets of a function, along the way through blocks ``like`` its own."""
    graph = control_flow(like)
    times = frequencies(graph)
    packed = [BlockCycles(closed(block.packets, block.end)) for block in blocks]
    return _estimate(route(graph, times), times, packed)


def _estimate(way: Sequence[int], times: Sequence[int], blocks: Sequence[BlockCycles]) -> tuple[float, int]:
    """Estimate cycles and packets of a function: those along a way, for as often as blocks run."""
    spent, followed = cycles_along(way, blocks), Counter(way)
    cycles = 0.0
    for number, count in enumerate(times):
        runs = followed[number]
        cycles += count * (spent[number] / runs if runs else blocks[number].after()[0])
    return cycles, sum(count * len(blocks[number].timings) for number, count in enumerate(times))
