"""Soft-dependence-aware packing of a block (GCD2, algorithm 1), from the last packet to the first.

The algorithm as it is printed leaves the seed in the graph, looks for free instructions before it has removed the one
it chose, and never takes any out of the set; these are repaired. The stall ``p`` of Eq. 4.4, which it charges for soft
dependences, is charged here for every result that would come late, by the latencies of the cycle model.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm_ext.backends.hexagon.packer.packet import Packets
from tvm_ext.backends.hexagon.packer.resources import NEAR, WORDS


@dataclass(frozen=True)
class Weights:
    """Numbers of the score (Eq. 4.4), which the source leaves open.

    Attributes
    ----------
    order : float
        ``w``: of the place in the block against likeness of latencies; 0 to 1.
    stall : float
        Of each packet that an instruction would wait.
    soft : float
        Of a soft dependence into the packet.
    patience : bool
        Whether a packet is closed rather than filled with what would wait.
    """

    order: float = 0.7
    stall: float = 4.0
    soft: float = 0.5
    patience: bool = False


def pack_block(packets: Packets, weights: Weights, ends_loop: bool = False) -> list[list[int]]:
    """Pack the instructions of a block.

    Parameters
    ----------
    packets : Packets
        Which there can be.
    weights : Weights
        Of the score.
    ends_loop : bool
        Whether the last packet ends a hardware loop, and so must not begin one.

    Returns
    -------
    list of list of int
        Instructions of each packet, in order.
    """
    return _Packing(packets, weights, ends_loop).run()


class _Packing:
    """Packets of a block so far; times count packets from the end."""

    def __init__(self, packets: Packets, weights: Weights, ends_loop: bool) -> None:
        self.packets, self.weights, self.ends_loop = packets, weights, ends_loop
        self.block, self.edges = block, edges = packets.block, packets.edges
        self.waiting = [len(later) for later in edges]  # how many that depend on it have no packet yet
        self.ready = {item for item, count in enumerate(self.waiting) if not count}
        self.before: list[list[int]] = [[] for _ in block]
        self.times: dict[int, int] = {}
        self.order = [0] * len(block)
        self.predecessors = [0] * len(block)
        for early, later in enumerate(edges):
            for late, edge in later.items():
                self.order[late] = max(self.order[late], self.order[early] + edge.latency)
                self.predecessors[late] += 1
                self.before[late].append(early)
        self.latencies = [max([1, *(edge.latency for edge in later.values())]) for later in edges]

    def run(self) -> list[list[int]]:
        packets: list[list[int]] = []
        while self.ready:
            members: list[int] = []
            while len(members) < WORDS:
                chosen = self._select(members, len(packets))
                if chosen is None:
                    break
                members.append(chosen)
                self.times[chosen] = len(packets)
                self._taken(chosen)
            if members or packets:
                packets.append(sorted(members))
            else:
                self.ends_loop = False  # nothing but the beginning of a loop is left for the last packet
        return packets[::-1]

    def _taken(self, item: int) -> None:
        """Note that an instruction has a packet."""
        self.ready.remove(item)
        for early in self.before[item]:
            self.waiting[early] -= 1
            if not self.waiting[early]:
                self.ready.add(early)

    def _select(self, members: list[int], now: int) -> int | None:
        """Choose the free instruction of the highest score that fits."""
        high = max((self.latencies[item] for item in members), default=0)
        free: list[tuple[float, int]] = []
        for item in self.ready:
            if self.ends_loop and not now and self.block[item].target:
                continue
            stall = self._stall(item, members, now)
            if stall is None or (members and stall and self.weights.patience):
                continue
            free.append((self._score(item, high if members else self.latencies[item], members, stall), item))
        for _, item in sorted(free, reverse=True):
            if self.packets.get(tuple(sorted([*members, item])), now < NEAR) is not None:
                return item
        return None

    def _stall(self, item: int, members: list[int], now: int) -> int | None:
        """Count the packets that an instruction would make others wait; None if it is not free in this packet."""
        stall = 0
        for late, edge in self.edges[item].items():
            if self.times[late] == now:
                if edge.kind == "hard":
                    return None
            else:
                stall = max(stall, edge.latency - (now - self.times[late]))
        return stall

    def _score(self, item: int, high: int, members: list[int], stall: int) -> float:
        """Score an instruction: Eq. 4.4."""
        weight = self.weights.order
        place = self.order[item] + 0.1 * self.predecessors[item]
        is_soft = any(self.edges[item].get(other) and self.edges[item][other].kind == "soft" for other in members)
        likeness = abs(high - self.latencies[item])
        return place * weight - likeness * (1 - weight) - stall * self.weights.stall - is_soft * self.weights.soft
