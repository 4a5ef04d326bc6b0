"""How a convolution is computed by Winograd's algorithm: numbers only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class WinogradPlan:
    """A convolution as transforms and products of matrices.

    Attributes
    ----------
    outputs : int
        Results of a tile along an axis.
    tile : tuple of (int, int)
        Rows and vectors of the register tile of the products.
    rows : int
        Tiles that are transformed, those that fill up register tiles included.
    strip : int
        Rows of tiles that are worked on at a time, in one kernel; 0: all of them, in three.
    parts : int
        Of the channels of the result, that are worked on at a time with strips.
    shares : bool
        Whether all threads transform a strip together, before they compute its parts; otherwise each part does.
    """

    outputs: int
    tile: tuple[int, int]
    rows: int
    strip: int
    parts: int = 1
    shares: bool = False
