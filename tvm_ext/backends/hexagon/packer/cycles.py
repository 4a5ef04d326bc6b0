"""The cycle model: packets in order, one a cycle, each when its operands are there.

What it leaves out: caches, vector memory, its banks, other threads, what a taken jump costs, the clock. It tells
packings of the same instructions apart; it does not say how long they take on a chip.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tvm_ext.backends.hexagon.packer.assembly import Packet
from tvm_ext.backends.hexagon.packer.rows import EARLY_DELAY, SOFT_LATENCY

UnderWay = dict[int, int]
"""Results that cannot be read yet: their places, and the packets until then. It is all that the past decides."""

Start = frozenset[tuple[int, int]]
"""The same, to be a key."""

NOTHING: Start = frozenset()

_NUMBERS: dict[str, int] = {}
"""Numbers of registers: each has a place for when it can be read, and the next one for when it can be read early."""


def _number(register: str) -> int:
    return _NUMBERS.setdefault(register, 2 * len(_NUMBERS))


class Timing(NamedTuple):
    """What a packet waits for, and what it makes, of all of its instructions.

    Attributes
    ----------
    waits : tuple of int
        Places of what it reads.
    results : tuple of (place, packets until then)
    """

    waits: tuple[int, ...]
    results: tuple[tuple[int, int], ...]

    def of(self, places: frozenset[int]) -> Timing:
        """Give what concerns some places."""
        waits = tuple(place for place in self.waits if place in places)
        return Timing(waits, tuple(item for item in self.results if item[0] in places))


@functools.lru_cache(maxsize=1 << 16)
def timing(packet: Packet) -> Timing:
    """Sum up a packet."""
    current = {name for item in packet if item.is_for_this_packet for name in item.writes if name[0] == "v"}
    waits: set[int] = set()
    results: dict[int, int] = {}
    for item in packet:
        waits |= {_number(name) + (name in item.early) for name in item.reads - current}
        for name in item.writes:
            delay = item.latency_to(item, name) if name not in item.early else item.row.latency
            results[_number(name)] = delay
            results[_number(name) + 1] = delay + (EARLY_DELAY if name[0] in "vq" else SOFT_LATENCY)
    return Timing(tuple(waits), tuple(results.items()))


def places(registers: Iterable[str]) -> frozenset[int]:
    """Give the places of registers."""
    return frozenset(place for name in registers for place in (_number(name), _number(name) + 1))


def issued(packet: Timing, under_way: UnderWay) -> tuple[int, UnderWay]:
    """Issue a packet as soon as it can be: the cycles until the next one may follow, and what is under way then."""
    start = 0
    for place in packet.waits:
        delay = under_way.get(place, 0)
        if delay > start:
            start = delay
    taken = start + 1
    after = {place: delay - taken for place, delay in under_way.items() if delay > taken}
    for place, delay in packet.results:
        if delay > 1:
            after[place] = delay - 1
        else:
            after.pop(place, None)
    return taken, after


class BlockCycles:
    """The cycles of a block by what is under way when it begins; each case is counted once.

    Parameters
    ----------
    packets : iterable of Packet
        In order.
    """

    def __init__(self, packets: Iterable[Packet]) -> None:
        self.timings = tuple(map(timing, packets))
        self._known: dict[Start, tuple[int, Start]] = {}

    def after(self, start: Start = NOTHING) -> tuple[int, Start]:
        """Give the cycles of a run, and what is under way behind it."""
        if start not in self._known:
            cycles, under_way = 0, dict(start)
            for packet in self.timings:
                taken, under_way = issued(packet, under_way)
                cycles += taken
            self._known[start] = cycles, frozenset(under_way.items())
        return self._known[start]


def cycles_along(route: Iterable[int], blocks: Sequence[BlockCycles]) -> list[int]:
    """Count the cycles of blocks that run one after the other.

    Parameters
    ----------
    route : iterable of int
        Their numbers, in order.
    blocks : sequence of BlockCycles

    Returns
    -------
    list of int
        Cycles of each block, in all of its runs.
    """
    spent = [0] * len(blocks)
    start = NOTHING
    for number in route:
        cycles, start = blocks[number].after(start)
        spent[number] += cycles
    return spent


class Course:
    """How a block is gone through by itself, and how that changes with a few of its packets.

    What is the same before is taken over, and what is the same behind as soon as nothing else is under way.

    Parameters
    ----------
    packets : sequence of Timing
        In order.
    rounds : int
        More than 1 for the body of a loop, whose last round waits for results of the others.
    """

    def __init__(self, packets: Sequence[Timing], rounds: int = 1) -> None:
        self.packets, self.rounds = list(packets), rounds
        self._taken: list[int] = []  # of all rounds
        self._under_way: list[UnderWay] = [{}]  # in front of each packet, and behind the last one
        for _ in range(rounds):
            self._follow(self.packets)

    @property
    def cycles(self) -> int:
        """Cycles of the last round."""
        return sum(self._taken[len(self._taken) - len(self.packets) :])

    def _follow(self, packets: Iterable[Timing]) -> None:
        for packet in packets:
            taken, under_way = issued(packet, self._under_way[-1])
            self._taken.append(taken)
            self._under_way.append(under_way)

    def changed(self, before: int, between: Sequence[Timing], behind: int) -> Course:
        """Give the course with other packets than these between the first ``before`` and the last ``behind``."""
        count, least = len(self.packets), before + len(between)
        new = Course((), 0)
        new.packets = [*self.packets[:before], *between, *self.packets[count - behind :]]
        new.rounds = self.rounds
        for first in range(0, self.rounds * count, count):
            last, number = first + count, 0
            if new._under_way[-1] == self._under_way[first]:
                number = before
                new._copy(self, first, first + before)
            while number < len(new.packets):
                place = last - (len(new.packets) - number)  # of the same packet, once the others are behind
                if number >= least and new._under_way[-1] == self._under_way[place]:
                    new._copy(self, place, last)
                    break
                new._follow(new.packets[number : number + 1])
                number += 1
        return new

    def _copy(self, other: Course, first: int, last: int) -> None:
        self._taken += other._taken[first:last]
        self._under_way += other._under_way[first + 1 : last + 1]
