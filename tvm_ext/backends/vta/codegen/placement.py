"""Where tiles lie in the on-chip memories: each from its first use to its last, on what was used longest ago.

The tiles of one buffer take turns on a few places, so that the next one is loaded while the one before it is worked on:
few, because every combination of places needs micro-ops of its own. A tile that is to hold what is there already is not
loaded again.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tvm_ext.errors import GraphError, VTAProgramError


@dataclass(frozen=True)
class Tile:
    """What is placed: a buffer of one turn of the loops around it.

    Attributes
    ----------
    name : str
        For messages.
    memory : str
        ``inp``, ``wgt`` or ``acc``.
    size : int
        Elements; none if nothing reads it, so that it need not be loaded.
    first, last : int
        Operations that use it first and last.
    contents : hashable or None
        Equal for tiles that are loaded with equal contents and not changed; None for all others.
    group : int
        Equal for tiles that take turns; they have equal sizes.
    """

    name: str
    memory: str
    size: int
    first: int
    last: int
    contents: Hashable = None
    group: int = 0


@dataclass(frozen=True)
class Place:
    """Address of a tile, and whether what it is to hold is there already."""

    base: int
    is_loaded: bool = False


def place_tiles(
    tiles: Sequence[Tile], depths: Mapping[str, int], element_bytes: Mapping[str, int], turns: int = 2
) -> list[Place]:
    """Choose an address for every tile.

    Parameters
    ----------
    tiles : sequence of Tile
    depths, element_bytes : mapping
        Elements of each memory, and bytes of an element.
    turns : int
        Places that the tiles of a group take turns on; more where more of them are in use at once.

    Raises
    ------
    VTAProgramError
        If a tile does not fit beside those that are in use at the same time.
    """
    places: list[Place | None] = [None] * len(tiles)
    for memory, depth in depths.items():
        state = _Memory(depth, turns)
        members = [number for number, tile in enumerate(tiles) if tile.memory == memory]
        for number in sorted(members, key=lambda number: tiles[number].first):
            tile = tiles[number]
            place = state.place(tile) if tile.size else Place(0, True)
            if place is None:
                size = element_bytes[memory]
                used = state.used_at(tile.first)
                raise VTAProgramError(
                    f"{tile.name}: {tile.size * size} bytes do not fit the {memory} memory of {depth * size}"
                    + (f", of which {used * size} are in use" if used else "")
                    + "; choose smaller tiles or fewer virtual threads"
                )
            places[number] = place
    return [place for place in places if place is not None]


class _Memory:
    """One memory while tiles come and go."""

    def __init__(self, depth: int, turns: int) -> None:
        self._turns = turns
        self._groups: dict[tuple[int, int], list[int]] = {}  # addresses that the tiles of a group took turns on
        self._until = np.full(depth, -1)  # for each element, the last operation that uses it
        self._resident: dict[Hashable, tuple[int, int]] = {}  # contents -> address, elements
        self._edges = {0, depth}  # where tiles began or ended: others go there, so that holes fit again

    def place(self, tile: Tile) -> Place | None:
        """Choose an address: what was used longest ago, then the lowest; None if nothing fits."""
        found = None if tile.contents is None else self._resident.get(tile.contents)
        if found is not None:
            base, is_loaded = found[0], True
        else:
            is_loaded = False
            places = self._groups.setdefault((tile.group, tile.size), [])
            free = self._free(tile, places) if len(places) >= self._turns else []
            free = free or self._free(tile, self._candidates(tile.size))
            if not free:
                return None
            _, base = min(free)
            if base not in places:
                places.append(base)
            self._forget(base, base + tile.size)
            if tile.contents is not None:
                self._resident[tile.contents] = (base, tile.size)
            self._edges |= {base, base + tile.size}
        end = base + tile.size
        self._until[base:end] = np.maximum(self._until[base:end], tile.last)
        return Place(base, is_loaded)

    def _candidates(self, size: int) -> list[int]:
        depth = len(self._until)
        places = {edge for edge in self._edges if edge + size <= depth}
        return sorted(places | {edge - size for edge in self._edges if edge >= size})

    def _free(self, tile: Tile, places: Sequence[int]) -> list[tuple[int, int]]:
        """List places that nothing uses any more, each after when it was last used."""
        ages = [(int(self._until[place : place + tile.size].max()), place) for place in places]
        return [(age, place) for age, place in ages if age < tile.first]

    def _forget(self, base: int, end: int) -> None:
        gone = [key for key, (at, size) in self._resident.items() if at < end and base < at + size]
        for key in gone:
            del self._resident[key]

    def used_at(self, operation: int) -> int:
        """Elements that are in use at an operation."""
        return int((self._until >= operation).sum())


def verify_places(places: Sequence[Place], tiles: Sequence[Tile], depths: Mapping[str, int]) -> None:
    """Check a placement, operation by operation.

    Raises
    ------
    GraphError
        If a tile leaves its memory, two that live at the same time overlap with different contents, or a tile that is
        not loaded does not find its contents.
    """
    holds: dict[str, dict[int, tuple[Hashable, int]]] = {memory: {} for memory in depths}
    owner: dict[str, dict[int, int]] = {memory: {} for memory in depths}
    for number in sorted(range(len(tiles)), key=lambda number: tiles[number].first):
        tile, place = tiles[number], places[number]
        if place.base < 0 or place.base + tile.size > depths[tile.memory]:
            raise GraphError(f"{tile.name} at {place.base} leaves the {tile.memory} memory")
        for offset in range(tile.size):
            element = place.base + offset
            before = owner[tile.memory].get(element)
            if place.is_loaded:
                if tile.contents is None or holds[tile.memory].get(element) != (tile.contents, offset):
                    raise GraphError(f"{tile.name} is not loaded, but element {element} does not hold its contents")
            elif before is not None and tiles[before].last >= tile.first:
                raise GraphError(f"{tile.name} overlaps {tiles[before].name}, which is still in use")
            if before is None or tiles[before].last < tile.last or not place.is_loaded:
                owner[tile.memory][element] = number
            holds[tile.memory][element] = (tile.contents, offset)
