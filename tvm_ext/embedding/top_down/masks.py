"""Input masking: outer dimensions of inputs that are hidden from the matcher become loops around an instruction."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from tvm_ext.embedding.top_down.graph import Input, Statement, inputs

VISIBLE = 2
"""Most dimensions of an input that an instruction of Table 3.1 has: all beyond are hidden by default."""

Mask = tuple[int, ...]
"""For each input of a statement, from left to right, how many of its innermost dimensions are visible."""


def masks(statement: Statement, visible: int = VISIBLE) -> Iterator[Mask]:
    """Go through the masks of a statement: an iterator that becomes a loop around is hidden in every input."""
    read = list(inputs(statement.value))
    for mask in product(*(range(min(visible, len(it.index)), -1, -1) for it in read)):
        if not _levels(read, mask, hidden=True) & _levels(read, mask, hidden=False):
            yield mask


def _levels(read: list[Input], mask: Mask, hidden: bool) -> set[int]:
    found: set[int] = set()
    for it, visible in zip(read, mask, strict=True):
        border = len(it.index) - visible
        for index in it.index[:border] if hidden else it.index[border:]:
            found |= index.levels
    return found


def hidden_inputs(statement: Statement, mask: Mask) -> int:
    """Count the inputs of which a mask hides something."""
    return sum(len(it.index) > visible for it, visible in zip(inputs(statement.value), mask, strict=True))
