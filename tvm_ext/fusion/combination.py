"""What becomes of two operators in a row: the combination table of mapping types.

Niu et al., PLDI 2021, table 4. The colours are those of the text: green combinations are fused, yellow ones if it pays,
red ones never.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tvm_ext.graph.mapping_types import MappingType

ONE_TO_ONE, REORGANIZE, SHUFFLE, ONE_TO_MANY, MANY_TO_MANY, OPAQUE = MappingType


class Colour(Enum):
    """Whether to fuse."""

    GREEN = "fuse"
    YELLOW = "fuse if it is faster"
    RED = "do not fuse"


GREEN, YELLOW, RED = Colour


@dataclass(frozen=True)
class Combination:
    """One cell of the table: the colour, and the mapping type of the fused operator (opaque where red)."""

    colour: Colour
    mapping: MappingType

    @property
    def is_allowed(self) -> bool:
        """Whether a block may hold the combination at all."""
        return self.colour is not RED


# Rows: the first operator; columns: the second one, in the order of the columns of COLUMNS.
COLUMNS = (ONE_TO_ONE, ONE_TO_MANY, MANY_TO_MANY, REORGANIZE, SHUFFLE)
_ROWS: tuple[tuple[MappingType, tuple[tuple[Colour, MappingType], ...]], ...] = (
    (
        ONE_TO_ONE,
        (
            (GREEN, ONE_TO_ONE),
            (GREEN, ONE_TO_MANY),
            (GREEN, MANY_TO_MANY),
            (GREEN, REORGANIZE),
            (GREEN, SHUFFLE),
        ),
    ),
    (
        ONE_TO_MANY,
        (
            (GREEN, ONE_TO_MANY),
            (YELLOW, ONE_TO_MANY),  # the source's text does not colour this cell
            (RED, OPAQUE),
            (YELLOW, ONE_TO_MANY),
            (YELLOW, ONE_TO_MANY),
        ),
    ),
    (
        MANY_TO_MANY,
        (
            (GREEN, MANY_TO_MANY),
            (YELLOW, MANY_TO_MANY),
            (RED, OPAQUE),
            (YELLOW, MANY_TO_MANY),
            (YELLOW, MANY_TO_MANY),
        ),
    ),
    (
        REORGANIZE,
        (
            (GREEN, REORGANIZE),
            (YELLOW, ONE_TO_MANY),
            (YELLOW, MANY_TO_MANY),
            (GREEN, REORGANIZE),
            (GREEN, REORGANIZE),
        ),
    ),
    (
        SHUFFLE,
        (
            (GREEN, SHUFFLE),
            (YELLOW, ONE_TO_MANY),
            (YELLOW, MANY_TO_MANY),
            (GREEN, REORGANIZE),
            (GREEN, SHUFFLE),
        ),
    ),
)
TABLE: dict[tuple[MappingType, MappingType], Combination] = {
    (first, second): Combination(colour, mapping)
    for first, cells in _ROWS
    for second, (colour, mapping) in zip(COLUMNS, cells, strict=True)
}
_OPAQUE = Combination(RED, OPAQUE)


def combine(first: MappingType, second: MappingType, into_window: bool = False) -> Combination:
    """Look up two operators in a row.

    Parameters
    ----------
    first, second : MappingType
        What feeds, and what reads.
    into_window : bool
        The second one is a maximum over windows that do not overlap. It may not follow a reduction, as any
        Many-to-Many operator may not, but what reads its result can take each maximum itself: such a maximum is fused
        into its reader like a change of indices. (The source's counts for VGG-16 need this.)
    """
    if OPAQUE in (first, second):
        return _OPAQUE
    cell = TABLE[first, second]
    if into_window and cell.is_allowed:
        return Combination(cell.colour, TABLE[first, REORGANIZE].mapping)
    return cell
