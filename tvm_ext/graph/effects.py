"""Order that no tensor shows: side effects, writes in place, and symbols that must be defined before they are used."""

from __future__ import annotations

from collections.abc import Collection, Iterable


class EffectOrder:
    """Takes the nodes of a function one by one, and says after which earlier ones each has to stay.

    - A node with a side effect stays after all nodes before it, and all nodes after it stay after it.
    - A node that writes into a storage stays after the nodes that read it before, and before those that read it later.
    - A node that uses a symbol stays after the node that defines it.
    """

    def __init__(self) -> None:
        self._count = 0
        self._last_effect: int | None = None
        self._since_effect: list[int] = []
        self._readers: dict[str, list[int]] = {}
        self._writer: dict[str, int] = {}
        self._definer: dict[str, int] = {}

    def add(
        self,
        reads: Iterable[str],
        writes: Collection[str] = (),
        uses: Collection[str] = (),
        defines: Iterable[str] = (),
        has_effect: bool = False,
    ) -> tuple[int, ...]:
        """Enter the next node.

        Parameters
        ----------
        reads, writes : names of storages
            What it reads, and what it overwrites in place.
        uses, defines : names of symbols
            The sizes it depends on, and those it makes known.
        has_effect : bool
            Whether it does more than that.

        Returns
        -------
        after : tuple of int
            The nodes it has to stay after, by number from 0.
        """
        index = self._count
        self._count += 1
        after: set[int] = set()
        if self._last_effect is not None:
            after.add(self._last_effect)
        if has_effect:
            after.update(self._since_effect)
            self._last_effect, self._since_effect = index, []
        else:
            self._since_effect.append(index)
        for storage in reads:
            if storage in self._writer:
                after.add(self._writer[storage])
            if storage in writes:
                after.update(self._readers.pop(storage, ()))
                self._writer[storage] = index
            self._readers.setdefault(storage, []).append(index)
        after.update(self._definer[name] for name in uses if name in self._definer)
        for name in defines:
            self._definer.setdefault(name, index)
        return tuple(sorted(after))
