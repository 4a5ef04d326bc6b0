"""Better packings near one: instructions moved to other packets as long as that saves cycles, or packets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from tvm_ext.backends.hexagon.packer.assembly import Packet, closed
from tvm_ext.backends.hexagon.packer.cycles import Course, Timing, places, timing
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
        read = {name for item in written.block for name in item.reads}
        self._places = places(name for item in written.block for name in item.writes if name in read)
        self._timings: dict[Packet, Timing] = {}

    def _timing(self, packet: Packet) -> Timing:
        """Sum up a packet: by itself a block waits for nothing else."""
        if packet not in self._timings:
            self._timings[packet] = timing(packet).of(self._places)
        return self._timings[packet]

    def packets(self, members: Sequence[Sequence[int]]) -> list[Packet] | None:
        """Write the packets of a packing; None where one cannot be."""
        found = []
        for number, group in enumerate(members):
            packet = self.written.get(tuple(group), len(members) - number <= NEAR)
            if packet is None:
                return None
            found.append(packet)
        return closed(found, self.end)

    def run(self, members: Sequence[Sequence[int]]) -> list[list[int]]:
        """Move one instruction at a time, to the better, until none does or the effort is spent."""
        packets = self.packets(members)
        if packets is None:
            return [list(group) for group in members]
        course = Course([self._timing(packet) for packet in packets], self.rounds)
        best = _Packing([list(group) for group in members], packets, course, self._cost(packets, course))
        count = len(self.written.block)
        item, since = 0, 0
        while since < count and self.effort > 0:
            better = self._moved(best, item)
            since = since + 1 if better is None else 0
            best = better or best
            item = (item + 1) % count
        return best.members

    def _cost(self, packets: Sequence[Packet], course: Course) -> Cost:
        uneven = -sum([len(packet) ** 2 for packet in packets])
        return max(0, len(packets) - self.limit), course.cycles, len(packets), uneven

    def _moved(self, packing: _Packing, item: int) -> _Packing | None:
        """Give the best packing with one instruction in another packet, if it is better."""
        members, place = packing.members, packing.place
        best = packing
        for target in self._window(item, place, len(members)):
            if target == place[item] or len(members[target]) >= WORDS:
                continue
            joined = sorted([*members[target], item])
            if self.written.get(tuple(joined), True) is None:  # spares the others; near the end more packets fit
                continue
            rest = [name for name in members[place[item]] if name != item]
            new = self._replaced(packing, {place[item]: rest, target: joined})
            if new is None:
                continue
            self.effort -= 1
            if new.cost < best.cost:
                best = new
        return best if best is not packing else None

    def _replaced(self, packing: _Packing, groups: Mapping[int, list[int]]) -> _Packing | None:
        """Give a packing with the instructions of two packets replaced; None where it cannot be written."""
        first, last = sorted(groups)
        members = list(packing.members)
        for number, group in groups.items():
            members[number] = group
        members[first : last + 1] = filter(None, members[first : last + 1])
        if self.written.has_loops and self.packets(members) is None:  # what begins them cares for where it is
            return None
        between: list[Packet] = []
        for number in range(first, last + 1):
            if number not in groups:
                between.append(packing.packets[number])
            elif groups[number]:
                packet = self.written.get(tuple(groups[number]), True)
                if packet is None:
                    return None
                between.append(packet)
        behind = len(packing.packets) - last - 1
        if last == len(packing.members) - 1:
            between, behind = closed(between, self.end), 0
        course = packing.course.changed(first, [self._timing(packet) for packet in between], behind)
        packets = [*packing.packets[:first], *between, *packing.packets[len(packing.packets) - behind :]]
        return _Packing(members, packets, course, self._cost(packets, course))

    def _window(self, item: int, place: dict[int, int], count: int) -> range:
        """Give the packets that an instruction can be in while all others stay."""
        first = max((place[other] + hard for other, hard in self.before[item].items()), default=0)
        later = self.written.edges[item].items()
        last = min((place[other] - (edge.kind == "hard") for other, edge in later), default=count - 1)
        return range(first, last + 1)


@dataclass
class _Packing:
    """A packing that is looked at."""

    members: list[list[int]]
    packets: list[Packet]
    course: Course
    cost: Cost

    @cached_property
    def place(self) -> dict[int, int]:
        """The packet of each instruction."""
        return {name: number for number, group in enumerate(self.members) for name in group}
