"""Arrays of weights as kernels want them, and as they lie in a file."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

ALIGNMENT = 64
"""Bytes; arrays begin at multiples of it, in memory and in files."""


def aligned(shape: tuple[int, ...], dtype: str, read_whole: bool = True) -> np.ndarray:
    """Make an array of zeros as kernels want it, at the beginning of a cache line.

    Memory is taken page by page as it is written. What is ``read_whole`` and large lies on large pages; of what is
    filled bit by bit, as a cache is, pages of 4 KiB are taken where large ones would take hundreds of times as much.
    """
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = mmap.mmap(-1, max(size, 1))
    if read_whole and size >= 1 << 21 and hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, dtype, int(np.prod(shape))).reshape(shape)


def copied(array: np.ndarray) -> np.ndarray:
    """Copy an array to where kernels want it."""
    copy = aligned(array.shape, str(array.dtype))
    copy[...] = array
    return copy


def read_arrays(path: Path, tensors: Sequence[Any]) -> Iterator[np.ndarray]:
    """Read the weights of an artifact."""
    shapes = [tuple(int(extent) for extent in shape) for shape, _ in tensors]
    sizes = [int(np.prod(shape)) * np.dtype(dtype).itemsize for shape, (_, dtype) in zip(shapes, tensors, strict=True)]
    begins = accumulate((size + -size % ALIGNMENT for size in sizes), initial=0)
    with path.open("rb") as stream:
        for begin, shape, (_, dtype) in zip(begins, shapes, tensors, strict=False):
            array = aligned(shape, dtype)
            stream.seek(begin)
            if stream.readinto(array.reshape(-1).view("uint8").data) != array.nbytes:
                raise ValueError(f"{path.name} ends inside a tensor")
            yield array
