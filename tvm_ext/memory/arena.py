"""Where storages lie in one arena: byte offsets, so that storages alive at the same time never overlap.

Blocks are placed one after another, each at the lowest offset where it fits beside the placed blocks that it meets, in
several orders of placing (by size, by the time they live, by both, by first use ...): offline first fit. When none of
them reaches the lower bound, the best order is improved: the blocks that make the arena high are placed earlier. An
exact answer for small cases comes from the constraint solver in :mod:`tvm_ext.memory.exact_arena`.
"""

from __future__ import annotations

import bisect
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tvm_ext.errors import GraphError, OptionError

_EFFORT = 400_000  # meetings of two blocks that the improvement looks at, all rounds together


@dataclass(frozen=True)
class ArenaPlan:
    """Byte offsets in one arena.

    Attributes
    ----------
    offsets : mapping of str to int
        For each storage, its first byte.
    size : int
        Bytes of the arena: the highest end of a storage.
    lower_bound : int
        Bytes; no arena with this alignment is smaller.
    alignment : int
        Every offset is a multiple of it.
    method : str
        What found it.
    """

    offsets: Mapping[str, int]
    size: int
    lower_bound: int
    alignment: int
    method: str

    @property
    def optimal(self) -> bool:
        """Whether no arena is smaller, proven."""
        return self.size == self.lower_bound

    def __str__(self) -> str:
        proof = "none is smaller" if self.optimal else f"none is smaller than {self.lower_bound:,}"
        return f"arena of {self.size:,} bytes for {len(self.offsets)} storages ({self.method}; {proof})"


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


def plan_arena(
    intervals: Mapping[str, tuple[int, int]],
    sizes: Mapping[str, int],
    alignment: int = 64,
    *,
    in_place: Mapping[str, str] | None = None,
    exact: bool = False,
    time_limit: float = 10.0,
) -> ArenaPlan:
    """Give each storage a place.

    Parameters
    ----------
    intervals : mapping of str to (int, int)
        First and last step at which each storage is alive, both included (:attr:`tvm_ext.graph.Liveness.intervals`).
    sizes : mapping of str to int
        Bytes of each of them.
    alignment : int
        Bytes that every offset is a multiple of.
    in_place : mapping of str to str, optional
        Storages that lie where another one lay (:attr:`tvm_ext.graph.Liveness.in_place`); pairs with a storage that
        has no interval are passed over.
    exact : bool
        Ask a constraint solver when the bound is not reached.
    time_limit : float
        Seconds for the solver.

    Returns
    -------
    ArenaPlan
        The same for the same input, unless the solver runs out of time.

    Raises
    ------
    GraphError
        When a size is missing or negative, or an interval ends before it begins.
    OptionError
        When the alignment is not positive.
    MissingPackageError
        When the solver is asked for and not installed.
    """
    if alignment < 1:
        raise OptionError(f"arena option 'alignment' is {alignment}, expected 1 or more")
    blocks = _blocks(intervals, sizes, in_place or {})
    bound = _lower_bound(blocks, alignment)
    meetings = _meetings(blocks)
    best = min(
        (_Placing(blocks, meetings, alignment, order, method) for method, order in _orders(blocks)),
        key=lambda placing: placing.size,
        default=None,
    )
    if best is None:
        return ArenaPlan({}, 0, 0, alignment, "nothing to place")
    if best.size > bound:
        best = _improved(best, blocks, meetings, alignment, bound)
    offsets, size, method = best.offsets, best.size, best.method
    if exact and size > bound:
        from tvm_ext.memory.exact_arena import solve

        offsets, size, bound = solve(blocks, alignment, offsets, bound, time_limit)
        method = "constraint solver"
    named = {name: offset for block, offset in zip(blocks, offsets, strict=True) for name in block.names}
    return ArenaPlan({name: named[name] for name in intervals}, size, bound, alignment, method)


class _Placing:
    """First fit of the blocks in one order."""

    def __init__(
        self,
        blocks: Sequence[Block],
        meetings: Sequence[Sequence[int]],
        alignment: int,
        order: Sequence[int],
        method: str,
    ) -> None:
        self.order = tuple(order)
        self.method = method
        self.offsets = [-1] * len(blocks)
        self.size = 0
        for number in order:
            size = blocks[number].size
            taken = sorted((self.offsets[other], blocks[other].size) for other in meetings[number])
            place = 0
            for offset, length in taken:
                if offset >= 0 and size:
                    if offset - place >= size:
                        break
                    place = max(place, -(-(offset + length) // alignment) * alignment)
            self.offsets[number] = place
            self.size = max(self.size, place + size)


def _improved(
    best: _Placing, blocks: Sequence[Block], meetings: Sequence[Sequence[int]], alignment: int, bound: int
) -> _Placing:
    """Place blocks that end at the top of the arena earlier, and shuffle a little, as long as it may help."""
    choose = random.Random(0)
    rounds = _EFFORT // (len(blocks) + sum(map(len, meetings)))
    current = best
    for _ in range(rounds):
        order = list(current.order)
        highest = [n for n in order if current.offsets[n] + blocks[n].size == current.size]
        moved = choose.choice(highest)
        order.remove(moved)
        order.insert(choose.randrange(len(order) + 1) if choose.random() < 0.3 else 0, moved)
        if choose.random() < 0.5:
            one, other = choose.randrange(len(order)), choose.randrange(len(order))
            order[one], order[other] = order[other], order[one]
        tried = _Placing(blocks, meetings, alignment, order, "improved first fit")
        if tried.size <= current.size or choose.random() < 0.02:
            current = tried
        if tried.size < best.size:
            best = tried
            if best.size <= bound:
                break
    return best


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


def _blocks(
    intervals: Mapping[str, tuple[int, int]], sizes: Mapping[str, int], in_place: Mapping[str, str]
) -> list[Block]:
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


def _meetings(blocks: Sequence[Block]) -> list[list[int]]:
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


def _lower_bound(blocks: Sequence[Block], alignment: int) -> int:
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
