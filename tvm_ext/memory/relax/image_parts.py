"""How many images of an open batch a segment computes at a time, so that its workspace stays small.

before: ``segment(n, x, y)`` calls its kernels for ``n`` images
after:  it calls them for as many images as fit into :func:`part_bytes`, for the next ones, and so on: its workspace
        does not grow with the batch any more, and what one kernel writes is in the caches when the next one reads it

This is for functions that give for some images what they give for all
(:mod:`tvm_ext.shapes.independent_images`), and are one segment.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx

from tvm_ext.schedules.cpu.machine import Machine
from tvm_ext.shapes.batch_axis import MixedImagesError, images_of

LEAST_BYTES = 4 << 20
"""Bytes of a part: kernels have enough to do to be divided among threads, and weights are read for many rows."""


def part_bytes(machine: Machine) -> int:
    """Give the bytes of a workspace that hold as many images as are computed at a time."""
    return max(LEAST_BYTES, machine.cores * machine.l2)


@dataclass(frozen=True)
class ImageParts:
    """The images of a segment.

    Attributes
    ----------
    batch : tvm.tirx.Var
        How many there are.
    most : int
        Bytes of a part.
    """

    batch: tirx.Var
    most: int

    @classmethod
    def of(cls, name: str, symbols: Iterable[Any], shapes: Sequence[Sequence[Any]], most: int) -> ImageParts | None:
        """Look at the tensors that a segment is given; None where their images do not follow each other in memory.

        Parameters
        ----------
        name : str
            Of the number of images.
        symbols : iterable of Var
            Extents of the segment.
        shapes : sequence of shape
            Of the tensors.
        most : int
            Bytes of a part.
        """
        batch = next((symbol for symbol in symbols if symbol.name == name), None)
        if batch is None:
            return None
        try:
            images = [images_of(shape, batch) for shape in shapes]
        except MixedImagesError:
            return None
        return cls(batch, most) if all(item is None or item.axis == 0 for item in images) else None

    def count(self, batch: Any, one: Any) -> Any:
        """Give the images of a part: at least one, and as many as there are at most.

        Parameters
        ----------
        batch : Expr
        one : Expr
            Bytes of the workspace of one image.
        """
        fitting = tirx.floordiv(tirx.const(self.most, "int64"), tirx.max(one, tirx.const(1, "int64")))
        return tirx.max(tirx.min(batch, fitting), tirx.const(1, "int64"))

    def hold(self, shape: Sequence[Any]) -> bool:
        """Whether a tensor that the segment is given has images."""
        return images_of(shape, self.batch) is not None
