"""The cycle model: packets in order, one a cycle, each when its operands are there.

What it leaves out: caches, vector memory, its banks, other threads, what a taken jump costs, the clock. It tells
packings of the same instructions apart; it does not say how long they take on a chip.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tvm_ext.backends.hexagon.packer.assembly import Packet
from tvm_ext.backends.hexagon.packer.rows import EARLY_DELAY, SOFT_LATENCY

_NUMBERS: dict[str, int] = {}
"""Numbers of registers: each has a place for when it can be read, and the next one for when it can be read early."""


def _number(register: str) -> int:
    return _NUMBERS.setdefault(register, 2 * len(_NUMBERS))


@dataclass(frozen=True)
class Timing:
    """What a packet waits for, and what it makes, of all of its instructions.

    Attributes
    ----------
    waits : tuple of int
        Places of what it reads.
    results : tuple of (place, packets until then)
    """

    waits: tuple[int, ...]
    results: tuple[tuple[int, int], ...]


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


class Clock:
    """Where a run of packets is in time.

    Attributes
    ----------
    now : int
        Cycles so far.
    """

    def __init__(self) -> None:
        self.now = 0
        self._ready = [0] * (2 * len(_NUMBERS))

    def step(self, packet: Timing) -> None:
        """Issue a packet as soon as it can be."""
        start, ready = self.now, self._ready
        try:
            for place in packet.waits:
                if ready[place] > start:
                    start = ready[place]
            for place, delay in packet.results:
                ready[place] = start + delay
        except IndexError:  # registers that were numbered since
            ready += [0] * (2 * len(_NUMBERS) - len(ready))
            self.step(packet)
            return
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
