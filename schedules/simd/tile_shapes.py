"""How large the strips and the blocks are that tiles which transpose are computed in."""

from __future__ import annotations

from math import isqrt

LONGEST_STRIP, SHORTEST_STRIP = 512, 64
"""Elements of a written row that are finished, for all read elements beside them, before the next are begun.

In a longer strip the written rows are long, in a shorter one it is better to read long rows: then a strip is one tile.
"""

LINE = 64
"""Bytes of a cache line."""

PAGE, TRANSLATED_PAGES = 4096, 2048
"""Bytes of a memory page, and pages that the second TLB holds, with some to spare.

Pages a power of two apart share a part of the TLB only: measured, transposing with rows of 32 KiB is three times as
slow in strips of 512 rows as in strips of 256, with rows of 64 KiB twice as slow in strips of 256 as of 128.
"""


def block_sides(rows: int, columns: int, side: int, size: int, staging: int) -> tuple[int, int]:
    """Choose the sides of the blocks that go through a buffer: elements read side by side, and written side by side.

    Twice as many are read as are written, measured the best of what fits, unless there are not so many. Each is made of
    whole tiles, and what is written of whole lines.

    Parameters
    ----------
    rows, columns : int
        Elements along the axis of which what is read is contiguous, and what is written.
    side : int
        Of the tiles.
    size : int
        Bytes of an element.
    staging : int
        Bytes of the buffer.
    """
    line = max(side, LINE // size)
    elements = staging // size
    across = max(1, isqrt(elements // 2) // line) * line
    across = max(across, elements // -(-rows // line * line) // line * line)
    across = min(across, -(-columns // line) * line)
    along = max(1, elements // across // line) * line
    return along, across


def strip_length(stride: int, side: int, tiles: int = 1) -> int:
    """Choose the elements of a strip, for tiles of ``side`` whose vectors are read ``stride`` bytes apart.

    Where results go past the caches and it takes several ``tiles`` to fill a line, these follow one another, and strips
    are short: few lines are begun at a time, and each is full before the next.
    """
    power_of_two = (stride & -stride) // PAGE
    length = TRANSLATED_PAGES // max(1, power_of_two)
    if tiles > 1:  # the pages that are written need their share
        return min(max(length // 2, tiles * side), 2 * tiles * side)
    return min(length, LONGEST_STRIP) if length >= SHORTEST_STRIP else side
