"""The cycle model: packets in order, one a cycle, each when its operands are there.

What it leaves out: caches, vector memory, its banks, other threads, what a taken jump costs, the clock. It tells
packings of the same instructions apart; it does not say how long they take on a chip.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tvm_ext.backends.hexagon.packer.assembly import Packet
from tvm_ext.backends.hexagon.packer.rows import EARLY_DELAY, SOFT_LATENCY


@dataclass(frozen=True)
class Timing:
    """What a packet waits for, and what it makes, of all of its instructions."""

    late: tuple[str, ...]
    early: tuple[str, ...]
    results: tuple[tuple[str, int, int], ...]  # register, packets until it can be read, and until it can be read early


@functools.lru_cache(maxsize=1 << 14)
def timing(packet: Packet) -> Timing:
    """Sum up a packet."""
    current = {name for item in packet if item.is_for_this_packet for name in item.writes if name[0] == "v"}
    late: set[str] = set()
    early: set[str] = set()
    results = []
    for item in packet:
        early |= item.early - current
        late |= item.reads - item.early - current
        for name in item.writes:
            delay = item.latency_to(item, name) if name not in item.early else item.row.latency
            results.append((name, delay, delay + (EARLY_DELAY if name[0] in "vq" else SOFT_LATENCY)))
    return Timing(tuple(late), tuple(early), tuple(results))


@dataclass
class Clock:
    """Where a run of packets is in time.

    Attributes
    ----------
    now : int
        Cycles so far.
    """

    now: int = 0
    _late: dict[str, int] = field(default_factory=dict)
    _early: dict[str, int] = field(default_factory=dict)

    def step(self, packet: Timing) -> None:
        """Issue a packet as soon as it can be."""
        start = self.now
        for name in packet.late:
            start = max(start, self._late.get(name, 0))
        for name in packet.early:
            start = max(start, self._early.get(name, 0))
        for name, delay, early in packet.results:
            self._late[name], self._early[name] = start + delay, start + early
        self.now = start + 1


def cycles_of(packets: Iterable[Packet], rounds: int = 1) -> int:
    """Count the cycles of a block by itself.

    Parameters
    ----------
    packets : iterable of Packet
        In order.
    rounds : int
        More than 1 for the body of a loop: gives the cycles of the last round, which waits for results of the others.
    """
    timings = [timing(packet) for packet in packets]
    clock, before = Clock(), 0
    for _ in range(rounds):
        before = clock.now
        for item in timings:
            clock.step(item)
    return clock.now - before


def cycles_along(route: Iterable[int], timings: Sequence[Sequence[Timing]]) -> list[int]:
    """Count the cycles of blocks that run one after the other.

    Parameters
    ----------
    route : iterable of int
        Their numbers, in order.
    timings : sequence of sequence of Timing
        The packets of each block.

    Returns
    -------
    list of int
        Cycles of each block, in all of its runs.
    """
    clock, spent = Clock(), [0] * len(timings)
    for number in route:
        before = clock.now
        for item in timings[number]:
            clock.step(item)
        spent[number] += clock.now - before
    return spent
