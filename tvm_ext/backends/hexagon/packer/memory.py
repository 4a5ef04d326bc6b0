"""Packings that were found before: a model has many kernels of one kind, whose blocks differ in constants only."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Sequence

from tvm_ext.backends.hexagon.packer.dependences import Edges
from tvm_ext.backends.hexagon.packer.instruction import Instruction

Packings = list[list[list[int]]]
"""Some packings of a block: the instructions of each packet, by number."""

_CONSTANT = re.compile(r"(?<=#)-?\d+|\.LBB\w+")


class Memory:
    """Remembers the packings of blocks by their instructions without constants, and by what depends on what."""

    def __init__(self) -> None:
        self._found: dict[Hashable, Packings] = {}

    def get(
        self, block: Sequence[Instruction], edges: Edges, others: Hashable, search: Callable[[], Packings]
    ) -> Packings:
        """Give what is remembered, or search and remember it.

        Parameters
        ----------
        block : sequence of Instruction
        edges : Edges
            What depends on what.
        others : hashable
            What else a search depends on.
        search : callable
        """
        # A constant that takes a word is written ##, which stays.
        texts = tuple(_CONSTANT.sub("", item.text) for item in block)
        drawn = tuple(tuple((late, edge.kind, edge.latency) for late, edge in later.items()) for later in edges)
        key = texts, drawn, others
        if key not in self._found:
            self._found[key] = search()
        return self._found[key]
