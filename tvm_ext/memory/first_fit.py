"""Place blocks one after another, each as low as it fits beside those placed before it and alive at a time with it.

Every packing in which no block could lie lower is the first fit in some order of the blocks, so a search for a small
arena is a search among orders. It starts from orders that often do well, and goes on with small changes: a block that
ends above the bound trades places with, or moves before, one that it meets. What counts is the excess over the bound,
all blocks together; a change that raises it is taken once in a while.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence

from tvm_ext.memory.blocks import Block

_WORSE = 0.1  # of the changes that raise the excess, how many are taken
_EFFORT_OF_PAIR = 500  # meetings to look at, at most, for every pair of blocks: few blocks have few orders
_TRADE, _FRONT, _RANDOM = 0.5, 0.15, 0.05  # how often; otherwise the block moves before the other


class FirstFit:
    """Placements of some blocks.

    Parameters
    ----------
    blocks : sequence of Block
        What to place.
    meetings : sequence of sequence of int
        For each block, the blocks it must not overlap.
    alignment : int
        Every offset is a multiple of it.
    """

    def __init__(self, blocks: Sequence[Block], meetings: Sequence[Sequence[int]], alignment: int) -> None:
        self._blocks = blocks
        self._meetings = meetings
        self._sizes = [block.size for block in blocks]
        self._padded = [-(-block.size // alignment) * alignment for block in blocks]

    def size(self, offsets: Sequence[int]) -> int:
        """Find the highest end of a block."""
        return max(map(int.__add__, offsets, self._sizes), default=0)

    def place(self, order: Sequence[int]) -> list[int]:
        """Place all blocks in an order; find their offsets."""
        offsets = [-1] * len(self._blocks)
        for number in order:
            offsets[number] = self._lowest(number, [(offsets[o], o) for o in self._meetings[number] if offsets[o] >= 0])
        return offsets

    def _lowest(self, number: int, taken: list[tuple[int, int]]) -> int:
        """Find the lowest offset at which a block fits beside others, given by offset and number."""
        taken.sort()
        padded = self._padded
        size, place = padded[number], 0
        for offset, other in taken:
            if offset - place >= size:
                break
            place = max(place, offset + padded[other])
        return place

    def _replaced(self, order: Sequence[int], offsets: Sequence[int], moved: Sequence[int]) -> tuple[list[int], int]:
        """Place again what an order with some blocks moved puts elsewhere; count the meetings looked at."""
        found = list(offsets)
        rank = [0] * len(order)
        for place, number in enumerate(order):
            rank[number] = place
        affected = {*moved, *(other for number in moved for other in self._meetings[number])}
        work = 0
        for number in order:
            if number in affected:
                mine = rank[number]
                meetings = self._meetings[number]
                work += len(meetings)
                place = self._lowest(number, [(found[o], o) for o in meetings if rank[o] < mine])
                if place != found[number]:
                    found[number] = place
                    affected.update(meetings)
        return found, work

    def best_start(self) -> tuple[str, list[int], list[int]]:
        """Try some orders.

        Returns
        -------
        method, order, offsets
            Of the one with the smallest arena.
        """
        best: tuple[str, list[int], list[int]] | None = None
        for method, order in _orders(self._blocks):
            offsets = self.place(order)
            if best is None or self.size(offsets) < self.size(best[2]):
                best = (method, order, offsets)
        return best or ("", [], [])

    def improve(self, order: list[int], offsets: list[int], bound: int, effort: int, seed: int = 0) -> list[int]:
        """Change an order until the arena is as small as the bound, or the effort is spent.

        Parameters
        ----------
        order, offsets : list of int
            Where to start.
        bound : int
            Bytes of an arena that is small enough.
        effort : int
            Meetings of two blocks to look at, at most; of few blocks fewer will do.
        seed : int
            Of the random choices.

        Returns
        -------
        list of int
            Offsets, not worse than the ones given; the same for the same input.
        """
        choose = random.Random(seed)
        effort = min(effort, _EFFORT_OF_PAIR * len(order) ** 2)
        best, smallest = offsets, self.size(offsets)
        excess = self._excess(offsets, bound)
        while effort > 0 and smallest > bound:
            changed, moved = self._change(order, offsets, bound, choose)
            tried, work = self._replaced(changed, offsets, moved)
            effort -= work + len(order) // 4
            now = self._excess(tried, bound)
            if now <= excess or choose.random() < _WORSE:
                order, offsets, excess = changed, tried, now
                if (size := self.size(offsets)) < smallest:
                    best, smallest = offsets, size
        return best

    def _excess(self, offsets: Sequence[int], bound: int) -> int:
        ends = map(int.__add__, offsets, self._sizes)
        return sum(end - bound for end in ends if end > bound)

    def _change(
        self, order: Sequence[int], offsets: Sequence[int], bound: int, choose: random.Random
    ) -> tuple[list[int], tuple[int, int]]:
        """Change an order a little, and tell which blocks have changed places with others."""
        changed = list(order)
        one = choose.choice([n for n, offset in enumerate(offsets) if offset + self._sizes[n] > bound])
        other = choose.choice(self._meetings[one]) if self._meetings[one] else one
        what = choose.random()
        if what < _RANDOM:
            one, other = choose.choice(order), choose.choice(order)
        first, last = sorted((changed.index(one), changed.index(other)))
        if what < _RANDOM + _TRADE:
            changed[first], changed[last] = changed[last], changed[first]
        elif what < _RANDOM + _TRADE + _FRONT:
            changed.remove(one)
            changed.insert(0, one)
        else:
            changed.insert(first, changed.pop(last))
        return changed, (one, other)


def _orders(blocks: Sequence[Block]) -> Iterable[tuple[str, list[int]]]:
    """Orders in which blocks are placed."""
    steps = max((block.last for block in blocks), default=0) + 2
    load = [0] * (steps + 1)
    for block in blocks:
        for step in range(block.first + 1, block.last + 2):
            load[step] += block.size

    def crowd(block: Block) -> int:
        return max(load[block.first + 1 : block.last + 2])

    keys: dict[str, Callable[[Block], tuple[int, ...]]] = {
        "by size": lambda b: (-b.size, b.first - b.last, b.first),
        "by life": lambda b: (b.first - b.last, -b.size, b.first),
        "by size and life": lambda b: (-b.size * (b.last - b.first + 1), b.first),
        "by first use": lambda b: (b.first, -b.size),
        "by last use": lambda b: (-b.last, -b.size),
        "by load and size": lambda b: (-crowd(b), -b.size, b.first),
        "by load and life": lambda b: (-crowd(b), b.first - b.last, -b.size),
    }
    for method, key in keys.items():
        yield f"first fit {method}", sorted(range(len(blocks)), key=lambda number: key(blocks[number]))
