"""How a schedule asks for two loops that transpose to be made of tiles: see :mod:`tvm_ext.schedules.simd.tiles`."""

from __future__ import annotations

from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV

TILE_ATTRIBUTE = "tvm_ext.simd_tile"
"""Annotation of the outer of two loops: side of the square tiles they are to be cut into."""

STAGING_ATTRIBUTE = "tvm_ext.simd_staging"
"""Annotation of the same loop: bytes of a buffer that the tiles of a block are stored to first; 0 for none."""

ONCE_ATTRIBUTE = "tvm_ext.simd_fetch_once"
"""Annotation of the same loop: 1 to fetch the next tiles as what is read only once."""

STRIP_ATTRIBUTE = "tvm_ext.simd_strip"
"""Annotation of the same loop: most elements of a strip, see :func:`strip_length`."""


def mark_tile(
    schedule: Schedule, outer: LoopRV, side: int, staging: int = 0, once: bool = False, strip: int = 0
) -> None:
    """Ask for ``outer`` and the marked loop directly inside it to be made of square tiles when the kernel is lowered.

    ``outer`` must be the axis along which what is read is contiguous, the inner loop that of what is written.
    ``staging`` is the size in bytes of a buffer that results go through, or 0. With ``once``, tiles that are fetched
    ahead are kept from the outer caches. ``strip`` limits the elements of a strip, if not 0.
    """
    schedule.annotate(outer, TILE_ATTRIBUTE, side)
    if strip:
        schedule.annotate(outer, STRIP_ATTRIBUTE, strip)
    if once:
        schedule.annotate(outer, ONCE_ATTRIBUTE, 1)
    if staging:
        schedule.annotate(outer, STAGING_ATTRIBUTE, staging)
