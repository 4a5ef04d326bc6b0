"""Storages as blocks of bytes over time: which of them meet, and how small an arena for them can be."""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tvm_ext.errors import GraphError


@dataclass(frozen=True)
class Block:
    """Storages that lie at the same place, one taking over from another.

    Attributes
    ----------
    names : tuple of str
        The storages.
    first, last : int
        First and last step at which it is alive.
    size : int
        Bytes.
    """

    names: tuple[str, ...]
    first: int
    last: int
    size: int


def blocks_of(
    intervals: Mapping[str, tuple[int, int]], sizes: Mapping[str, int], in_place: Mapping[str, str]
) -> list[Block]:
    """Join storages that take over from one another into blocks.

    Raises
    ------
    GraphError
        When a size is missing or negative, an interval ends before it begins, or storages take over in a circle.
    """
    head: dict[str, str] = {}
    for name, (first, last) in intervals.items():
        if not isinstance(size := sizes.get(name), int) or size < 0:
            raise GraphError(f"arena: storage '{name}' has size {size!r}, expected bytes")
        if last < first:
            raise GraphError(f"arena: storage '{name}' is alive from step {first} to step {last}, which is before it")
        source = name
        while in_place.get(source) in intervals:
            source = in_place[source]
            if source == name:
                raise GraphError(f"arena: storage '{name}' takes over from itself, in a circle")
        head[name] = source
    members: dict[str, list[str]] = {}
    for name, source in head.items():
        members.setdefault(source, []).append(name)
    return [
        Block(
            tuple(names),
            min(intervals[name][0] for name in names),
            max(intervals[name][1] for name in names),
            max(sizes[name] for name in names),
        )
        for names in members.values()
    ]


def meetings_of(blocks: Sequence[Block]) -> list[list[int]]:
    """For each block, the blocks alive at a step at which it is."""
    found: list[list[int]] = [[] for _ in blocks]
    by_first = sorted(range(len(blocks)), key=lambda number: blocks[number].first)
    alive: list[tuple[int, int]] = []
    for number in by_first:
        block = blocks[number]
        alive = alive[bisect.bisect_left(alive, (block.first, -1)) :]
        for _, other in alive:
            found[number].append(other)
            found[other].append(number)
        bisect.insort(alive, (block.last, number))
    return found


def smallest_arena(blocks: Sequence[Block], alignment: int) -> int:
    """Bytes at the fullest step, padding between blocks included; the highest block needs none behind it."""
    change: dict[int, list[tuple[int, int]]] = {}
    for block in blocks:
        padded = -(-block.size // alignment) * alignment
        change.setdefault(block.first, []).append((padded, padded - block.size))
        change.setdefault(block.last + 1, []).append((-padded, padded - block.size))
    total = bound = 0
    paddings: dict[int, int] = {}
    for step in sorted(change):
        for padded, padding in change[step]:
            total += padded
            paddings[padding] = paddings.get(padding, 0) + (1 if padded > 0 else -1 if padded < 0 else 0)
        most = max((padding for padding, count in paddings.items() if count), default=0)
        bound = max(bound, total - most)
    return bound
