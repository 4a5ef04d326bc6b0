"""Pack one function: its blocks in several ways, and the best of them together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from tvm_ext.backends.hexagon.packer.addresses import places
from tvm_ext.backends.hexagon.packer.assembly import Block, Function, Packet, closed
from tvm_ext.backends.hexagon.packer.choice import (
    MORE_PACKETS,
    block_candidates,
    choose,
    estimate,
    is_same,
    quick_packing,
)
from tvm_ext.backends.hexagon.packer.dependences import Dependence, Edges, dependence_graph
from tvm_ext.backends.hexagon.packer.flow import control_flow, frequencies
from tvm_ext.backends.hexagon.packer.memory import Memory
from tvm_ext.backends.hexagon.packer.verify import verify_blocks


@dataclass(frozen=True)
class Ways:
    """Which packings are looked at; parameters of :func:`~tvm_ext.backends.hexagon.packer.pack.pack_assembly`."""

    soft: bool = True
    candidates: bool = True
    capped: bool = True


@dataclass
class FunctionPacking:
    """A function on its way to packets.

    Attributes
    ----------
    ours : Function
        One instruction a packet.
    theirs : Function
        The same with LLVM's packets.
    ways : Ways
    refused : set of frozenset of str
        Texts of packets that are not to be made.
    verified : int
        Blocks of the last packing that were verified; others have LLVM's packets.
    cycles : float
        What it is estimated to take, by the cycle model.
    """

    ours: Function
    theirs: Function
    ways: Ways
    refused: set[frozenset[str]] = field(default_factory=set)
    verified: int = 0
    cycles: float = 0.0

    @cached_property
    def _others(self) -> list[Block] | None:
        """LLVM's blocks, if they are as many."""
        return self.theirs.blocks if len(self.theirs.blocks) == len(self.ours.blocks) else None

    @cached_property
    def _weights(self) -> list[int]:
        """Estimate how many packets each block executes."""
        blocks = self._others or self.ours.blocks
        times = frequencies(control_flow(blocks))
        return [count * len(closed(block.packets, block.end)) for count, block in zip(times, blocks, strict=True)]

    @property
    def packets(self) -> int:
        """Packets that it is estimated to execute."""
        return sum(self._weights)

    @cached_property
    def _graphs(self) -> list[Edges]:
        known = places(self.ours.blocks)
        return [
            dependence_graph(block.instructions, place) for block, place in zip(self.ours.blocks, known, strict=True)
        ]

    def blocks(self, least: float, memory: Memory) -> list[Block]:
        """Give its blocks with packets.

        Parameters
        ----------
        least : float
            Packets that a block executes at least for it to be packed with effort.
        memory : Memory
            Packings of blocks that were packed before.

        Raises
        ------
        CompileError
            If packets do not compute what the instructions do in their order.
        """
        others = self._others
        counterparts: Sequence[Block | None] = others or [None] * len(self.ours.blocks)
        found: list[list[list[Packet]]] = []
        hard: list[list[list[Packet]]] = []
        for number, (block, other) in enumerate(zip(self.ours.blocks, counterparts, strict=True)):
            if self._weights[number] < least:
                packets = self._unhurried(block, other, number)
                found.append([packets])
                hard.append([packets])
                continue
            arguments = other, self.ways.candidates, frozenset(self.refused), memory
            soft = block_candidates(block, self._graphs[number], *arguments) if self.ways.soft else []
            if self.ways.candidates or not soft:
                strict = block_candidates(block, _hardened(self._graphs[number]), *arguments)
                hard.append(strict)
                soft += [packets for packets in strict if packets not in soft]
            found.append(soft)
        limits = others if self.ways.capped else None
        choices = [choose(self.ours.blocks, found, limits)]
        if self.ways.soft and self.ways.candidates:
            choices.append(choose(self.ours.blocks, hard, limits))
        results = [
            [replace(block, packets=packets) for block, packets in zip(self.ours.blocks, choice, strict=True)]
            for choice in choices
        ]
        if self.ways.candidates:
            results.append(self.theirs.blocks)
        best = min(results, key=self._cost)
        self.verified = 0 if best is self.theirs.blocks else verify_blocks(self.ours, best, others)
        self.cycles = self._cost(best)[1]
        return best

    @property
    def cycles_before(self) -> float:
        """What it is estimated to take with LLVM's packets."""
        return self._cost(self._others or self.theirs.blocks)[1]

    def _cost(self, blocks: Sequence[Block]) -> tuple[float, float, int]:
        """Judge packets: too many of them, then cycles, then packets, as estimated."""
        like = blocks if len(blocks) != len(self.ours.blocks) else self._others or self.ours.blocks
        cycles, packets = estimate(blocks, like)
        too_many = packets - MORE_PACKETS * self.packets if self.ways.capped and self._others else 0.0
        return max(0.0, too_many), cycles, packets

    def _unhurried(self, block: Block, other: Block | None, number: int) -> list[Packet]:
        """Give the packets of a block that hardly runs."""
        if self.ways.candidates and other is not None and is_same(block, other):
            return closed(other.packets, other.end)
        return quick_packing(block, self._graphs[number], frozenset(self.refused))


def _hardened(edges: Edges) -> Edges:
    """Make soft edges hard."""
    return tuple(
        {late: Dependence("hard", edge.latency) if edge.kind == "soft" else edge for late, edge in later.items()}
        for later in edges
    )
