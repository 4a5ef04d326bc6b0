"""Better packings near one: instructions moved to other packets as long as that saves cycles, or packets."""

from __future__ import annotations

from collections.abc import Sequence

from tvm_ext.backends.hexagon.packer.assembly import Packet, closed
from tvm_ext.backends.hexagon.packer.cycles import cycles_of
from tvm_ext.backends.hexagon.packer.packet import Packets
from tvm_ext.backends.hexagon.packer.resources import NEAR, WORDS

Cost = tuple[int, int, int, int]
"""Packets too many, cycles, packets, and how unevenly they are filled (negative), so that small ones become empty."""


class Refinement:
    """A search among the packings of one block.

    Parameters
    ----------
    written : Packets
        Which there can be.
    end : str
        Of the block: what ends a loop is judged by a round of it.
    limit : int
        Packets that it should not have more of.
    rounds : int
        Of a loop until they are alike.
    effort : int
        Packings that are looked at.
    """

    def __init__(self, written: Packets, end: str, limit: int, rounds: int, effort: int) -> None:
        self.written, self.end, self.limit = written, end, limit
        self.rounds, self.effort = rounds if end else 1, effort
        self.before: list[dict[int, bool]] = [{} for _ in written.block]
        for early, later in enumerate(written.edges):
            for late, edge in later.items():
                self.before[late][early] = edge.kind == "hard"

    def packets(self, members: Sequence[Sequence[int]]) -> list[Packet] | None:
        """Write the packets of a packing; None where one cannot be."""
        found = []
        for number, group in enumerate(members):
            packet = self.written.get(tuple(group), len(members) - number <= NEAR)
            if packet is None:
                return None
            found.append(packet)
        return closed(found, self.end)

    def cost(self, packets: Sequence[Packet]) -> Cost:
        """Judge a packing."""
        uneven = -sum(len(packet) ** 2 for packet in packets)
        return max(0, len(packets) - self.limit), cycles_of(packets, self.rounds), len(packets), uneven

    def run(self, members: Sequence[Sequence[int]]) -> list[list[int]]:
        """Move one instruction at a time, to the better, until none does or the effort is spent."""
        best = [list(group) for group in members]
        packets = self.packets(best)
        if packets is None:
            return best
        cost = self.cost(packets)
        count = len(self.written.block)
        item, since = 0, 0
        while since < count and self.effort > 0:
            better = self._moved(best, item, cost)
            if better is None:
                since += 1
            else:
                best, cost = better
                since = 0
            item = (item + 1) % count
        return best

    def _moved(self, members: list[list[int]], item: int, cost: Cost) -> tuple[list[list[int]], Cost] | None:
        """Give the best packing with one instruction in another packet, if it is better."""
        place = {name: number for number, group in enumerate(members) for name in group}
        found = None
        for target in self._window(item, place, len(members)):
            if target == place[item] or len(members[target]) >= WORDS:
                continue
            joined = sorted([*members[target], item])
            if self.written.get(tuple(joined), True) is None:  # spares the others; near the end more packets fit
                continue
            groups = list(members)
            groups[place[item]] = [name for name in members[place[item]] if name != item]
            groups[target] = joined
            if not groups[place[item]]:
                del groups[place[item]]
            packets = self.packets(groups)
            if packets is None:
                continue
            self.effort -= 1
            new = self.cost(packets)
            if new < cost:
                found, cost = (groups, new), new
        return found

    def _window(self, item: int, place: dict[int, int], count: int) -> range:
        """Give the packets that an instruction can be in while all others stay."""
        first = max((place[other] + hard for other, hard in self.before[item].items()), default=0)
        later = self.written.edges[item].items()
        last = min((place[other] - (edge.kind == "hard") for other, edge in later), default=count - 1)
        return range(first, last + 1)
