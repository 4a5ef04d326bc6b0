"""How many bytes cross the edge of the chip when a function runs with a given memory on it.

The model. Off the chip there is room for everything; on it, for ``capacity`` bytes. Storages move in *units*: whole
tensors, or tiles of them (:mod:`tvm_ext.memory.accesses`).

A node uses its units in groups. At tensor granularity it uses all of them at once. At tile granularity it goes through
its operands and results side by side, each once from begin to end: the tiles at the same fraction of their tensors are
a group. What a group uses must be on the chip together:

* a unit that is read and not there is fetched; one that is written, whole, needs no fetch;
* to make room, units of no use any more go first, for nothing; then the one whose next use is farthest away
  (L. A. Belady, "A study of replacement algorithms for a virtual-storage computer", IBM Systems Journal 5(2), 1966),
  of several the one that need not be written back, then the largest;
* a unit that leaves, is needed again, and has changed since it was last off the chip, is written back;
* of a group that is larger than the chip, what is used again soonest stays (it competes with what else is there), and
  the rest is streamed: fetched to be read, written through.

Inputs begin off the chip, outputs end there; these bytes cross in any case and are told apart as ``compulsory``.
Constants are left out, or streamed from off the chip as inputs are. With units of one size and nothing to write back
the farthest next use is the best choice there is; otherwise it is a good one.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from tvm_ext.errors import OptionError
from tvm_ext.graph import DataflowGraph, liveness
from tvm_ext.memory.accesses import Access, Places, Unit, access_trace

_NEVER = 1 << 62


@dataclass(frozen=True)
class Traffic:
    """Bytes that crossed the edge of the chip.

    Attributes
    ----------
    capacity : int
        Bytes on the chip.
    read, written : int
        Bytes fetched, and bytes written back or through.
    compulsory : int
        The part of them that no capacity avoids: inputs once, outputs once.
    by_step : tuple of int
        Bytes moved at each step of the order; outputs still on the chip at the end leave it at the last step.
    """

    capacity: int
    read: int
    written: int
    compulsory: int
    by_step: tuple[int, ...] = field(repr=False, default=())

    @property
    def total(self) -> int:
        """All bytes."""
        return self.read + self.written

    @property
    def spilled(self) -> int:
        """Bytes that crossed because the chip is small."""
        return self.total - self.compulsory


def off_chip_traffic(
    graph: DataflowGraph,
    capacity: int,
    order: Sequence[int] | None = None,
    *,
    tile: int | None = None,
    constants: bool = False,
) -> Traffic:
    """Simulate the memory on the chip with the farthest next use replaced first.

    Parameters
    ----------
    graph : DataflowGraph
        A graph whose sizes are numbers.
    capacity : int
        Bytes on the chip.
    order : sequence of int, optional
        A topological order; default the given one.
    tile : int, optional
        Bytes of a tile; without, units are whole tensors.
    constants : bool
        Count the traffic of constants, too.

    Raises
    ------
    GraphError
        When the order is not topological, or a size or an offset is not a number.
    OptionError
        When the capacity is negative or the tile not positive.
    """
    if capacity < 0:
        raise OptionError(f"traffic option 'capacity' is {capacity}, expected bytes, 0 or more")
    if tile is not None and tile < 1:
        raise OptionError(f"traffic option 'tile' is {tile}, expected bytes, 1 or more")
    alive = liveness(graph, order)
    trace = list(access_trace(graph, alive, tile=tile, constants=constants))
    places = Places(graph, alive.in_place, tile)
    kept = {places.of(name) for name, tensor in graph.tensors.items() if tensor.kind == "output"}
    return simulate(trace, capacity, len(alive.order), kept)


def simulate(
    trace: Sequence[tuple[int, Sequence[Access]]], capacity: int, steps: int, kept: Collection[str]
) -> Traffic:
    """Run groups of accesses through a memory of a capacity.

    Parameters
    ----------
    trace : sequence of (int, sequence of Access)
        The step each group belongs to, and the group.
    capacity : int
        Bytes on the chip.
    steps : int
        Number of steps.
    kept : collection of str
        Storages that must be off the chip at the end.
    """
    chip = _Chip(trace, capacity, steps, kept)
    for position in range(len(trace)):
        chip.run(position)
    chip.flush()
    first = {access.unit: access for _, group in reversed(trace) for access in group}
    compulsory = sum(access.size for access in first.values() if access.reads)
    compulsory += sum(access.size for access in first.values() if access.unit[0] in kept)
    return Traffic(capacity, chip.read, chip.written, compulsory, tuple(chip.by_step))


def bytes_moved(
    trace: Sequence[tuple[int, Sequence[Access]]], capacity: int, steps: int, kept: Collection[str], limit: int
) -> int:
    """Find the total of :func:`simulate`, or, sooner, some number above a limit if the total is above it."""
    chip = _Chip(trace, capacity, steps, kept)
    for position in range(len(trace)):
        chip.run(position)
        if chip.read + chip.written > limit:
            break
    else:
        chip.flush()
    return chip.read + chip.written


class _Chip:
    """Units on the chip, and what it cost to get there."""

    def __init__(
        self,
        trace: Sequence[tuple[int, Sequence[Access]]],
        capacity: int,
        steps: int,
        kept: Collection[str],
    ) -> None:
        self._trace = trace
        self._capacity = capacity
        self._kept = kept
        self._uses: dict[Unit, list[int]] = {}
        for position in reversed(range(len(trace))):
            for access in trace[position][1]:
                self._uses.setdefault(access.unit, []).append(position)
        self._here: dict[Unit, int] = {}  # bytes of the units on the chip
        self._changed: set[Unit] = set()
        self._held = 0
        self._queue: list[tuple[int, bool, int, Unit]] = []
        self.read = self.written = 0
        self.by_step = [0] * max(steps, 1)

    def run(self, position: int) -> None:
        step, group = self._trace[position]
        for access in group:
            self._uses[access.unit].pop()
            if access.reads and access.unit not in self._here:
                self.read += access.size
                self.by_step[step] += access.size
        staying = {access.unit for access in group}
        if sum(access.size for access in group) > self._capacity:
            staying = self._chosen(group)
            writes = {access.unit for access in group if access.writes}
            for unit in [unit for unit in self._here if unit not in staying]:
                self._leave(unit, step, overwritten=unit in writes)
        arriving = sum(a.size for a in group if a.unit in staying and a.unit not in self._here)
        self._make_room(arriving, staying, step)
        for access in group:
            if access.unit in staying:
                self._held += 0 if access.unit in self._here else access.size
                self._here[access.unit] = access.size
                if access.writes:
                    self._changed.add(access.unit)
                self._settle(access.unit, step)
            elif access.writes and self._needed(access.unit):
                self._write(access.size, step)

    def _chosen(self, group: Sequence[Access]) -> set[Unit]:
        """Choose what stays when a group does not fit: what is used again soonest; of equals, what is here already."""
        sizes = self._here | {access.unit: access.size for access in group}
        chosen, room = set(), self._capacity
        for unit in sorted(sizes, key=lambda unit: (self._next(unit), unit not in self._here, -sizes[unit], unit)):
            if sizes[unit] <= room:
                room -= sizes[unit]
                chosen.add(unit)
        return chosen

    def flush(self) -> None:
        """Write the outputs that are only on the chip."""
        for unit in [unit for unit in self._here if unit in self._changed and unit[0] in self._kept]:
            self._write(self._here[unit], len(self.by_step) - 1)

    def _next(self, unit: Unit) -> int:
        uses = self._uses[unit]
        return uses[-1] if uses else _NEVER

    def _needed(self, unit: Unit) -> bool:
        return bool(self._uses[unit]) or unit[0] in self._kept

    def _write(self, size: int, step: int) -> None:
        self.written += size
        self.by_step[step] += size

    def _settle(self, unit: Unit, step: int) -> None:
        """Drop a unit that is of no use any more, or note when it is used next."""
        if self._needed(unit):
            entry = (-self._next(unit), unit in self._changed, -self._here[unit], unit)
            heapq.heappush(self._queue, entry)
        else:
            self._leave(unit, step)

    def _leave(self, unit: Unit, step: int, overwritten: bool = False) -> None:
        size = self._here.pop(unit)
        self._held -= size
        if unit in self._changed:
            self._changed.remove(unit)
            if self._needed(unit) and not overwritten:
                self._write(size, step)

    def _make_room(self, arriving: int, staying: set[Unit], step: int) -> None:
        waiting = []
        while self._held + arriving > self._capacity:
            entry = heapq.heappop(self._queue)
            unit = entry[3]
            if unit not in self._here or -entry[0] != self._next(unit) or entry[1] != (unit in self._changed):
                continue  # it has been used since, or has left
            if unit in staying:
                waiting.append(entry)
            else:
                self._leave(unit, step)
        for entry in waiting:
            heapq.heappush(self._queue, entry)
