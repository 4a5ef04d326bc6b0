"""The bytes that an order of nodes uses, step by step, in the units in which they move.

A storage is cut into units where tensors that share it begin or end (:attr:`tvm_ext.graph.Tensor.offset`), and with a
tile size, further into tiles of at most that size. A result written over an input that dies is the same unit.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

from tvm_ext.errors import GraphError
from tvm_ext.graph import DataflowGraph, Dim, Liveness

Unit: TypeAlias = "tuple[str, int]"  # storage, first byte


@dataclass(frozen=True)
class Access:
    """Use of a unit by a group: ``reads`` before it ``writes``."""

    unit: Unit
    size: int
    reads: bool
    writes: bool


def access_trace(
    graph: DataflowGraph, alive: Liveness, *, tile: int | None = None, constants: bool = False
) -> Iterator[tuple[int, tuple[Access, ...]]]:
    """Yield the groups of units that an order uses one after another, with the step they belong to.

    A node that only looks at bytes in another way (a reshape, a slice, the concatenation of operands that are written
    into their parts of the result) moves nothing.

    Parameters
    ----------
    graph : DataflowGraph
        A graph whose sizes are numbers.
    alive : Liveness
        Its liveness in an order.
    tile : int, optional
        Bytes of a tile; without, units are whole tensors, and a node is one group.
    constants : bool
        Yield the use of constants, too.

    Raises
    ------
    GraphError
        When a size or an offset is not a number.
    """
    places = Places(graph, alive.in_place, tile)
    for step, index in enumerate(alive.order):
        node = graph.nodes[index]
        written = [name for name in node.outputs if not places.is_view(name, node.inputs)]
        if node.outputs and not written:
            continue
        read = [name for name in node.inputs if constants or graph.storage(name).kind != "constant"]
        groups: dict[float, dict[Unit, Access]] = {}
        for names, writes in ((read, False), (written, True)):
            for name in names:
                units = places.units(name)
                for number, (unit, size) in enumerate(units):
                    group = groups.setdefault((number + 0.5) / len(units) if tile else 0.0, {})
                    before = group.get(unit)
                    reads = not writes or (before is not None and before.reads)
                    group[unit] = Access(unit, size, reads, writes or (before is not None and before.writes))
        for fraction in sorted(groups):
            yield step, tuple(groups[fraction].values())


class Places:
    """Where tensors lie, in units; storages that take over from others lie where those do."""

    def __init__(self, graph: DataflowGraph, in_place: Mapping[str, str], tile: int | None) -> None:
        self._graph = graph
        self._in_place = in_place
        ends: dict[str, set[int]] = {}
        for name in graph.tensors:
            place, begin, end = self.extent(name)
            ends.setdefault(place, set()).update((begin, end))
        self._cuts: dict[str, list[int]] = {}
        for place, cuts in ends.items():
            found = sorted(cuts)
            if tile is not None:
                pairs = pairwise(found)
                found = [cut for begin, end in pairs for cut in range(begin, end, tile)] + found[-1:]
            self._cuts[place] = found

    def of(self, name: str) -> str:
        """Find the storage that a tensor lies in."""
        return self.extent(name)[0]

    def extent(self, name: str) -> tuple[str, int, int]:
        """Find the storage that a tensor lies in, its first byte there, and the byte behind it."""
        begin = 0
        size = self._number(self._graph.tensors[name].nbytes, name, "size")
        while (source := self._graph.tensors[name].alias_of) is not None:
            begin += self._number(self._graph.tensors[name].offset, name, "offset")
            name = source
        while name in self._in_place:
            name = self._in_place[name]
        return name, begin, begin + size

    def units(self, name: str) -> list[tuple[Unit, int]]:
        """List the units a tensor is made of, with their sizes."""
        place, begin, end = self.extent(name)
        cuts = self._cuts[place]
        inside = cuts[bisect.bisect_left(cuts, begin) : bisect.bisect_right(cuts, end)]
        return [((place, low), high - low) for low, high in pairwise(inside)]

    def is_view(self, name: str, inputs: Sequence[str]) -> bool:
        """Tell whether the bytes of a tensor are all those of inputs in the same storage."""
        root = self._graph.storages[name]
        shared = {unit for other in inputs if self._graph.storages[other] == root for unit in self.units(other)}
        return bool(shared) and shared.issuperset(self.units(name))

    def _number(self, size: Dim | None, name: str, what: str) -> int:
        if not isinstance(size, int):
            known = "is not known" if size is None else f"is {size}; give its symbols a value with bind()"
            raise GraphError(f"graph '{self._graph.name}': the {what} of tensor '{name}' in bytes {known}")
        return size
