"""Conflicts of shared memory: 32 banks of 4 bytes, each of which gives one word a cycle.

Threads that read the same word get it together. An access of up to 4 bytes a thread is served for a warp at once, of 8
bytes for half a warp, of 16 bytes for a quarter (CUDA C++ Programming Guide, shared memory of compute capability 5.x
and later; Best Practices Guide, section on wide accesses).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tvm_ext.backends.cuda.emulator.lanes import WARP

BANKS, WORD = 32, 4


def ways_of(index: NDArray[Any], active: NDArray[np.bool_] | None, itemsize: int, together: int) -> int:
    """Count the cycles of the worst phase of an access.

    Parameters
    ----------
    index : array of integers (threads) or (elements, threads)
        Elements of a block's shared memory, which begins at bank 0.
    active : array of bool, optional
        Of a form that broadcasts to that of ``index``.
    itemsize : int
        Bytes of an element.
    together : int
        Neighbouring elements that a thread accesses in one instruction; rows of ``index`` beyond are accesses of
        their own.

    Returns
    -------
    int
        1 when no thread waits for another; 0 when no thread is active.
    """
    index = np.atleast_2d(index)
    use = np.ones(index.shape, np.bool_) if active is None else np.broadcast_to(active, index.shape)
    width = itemsize * together
    # Wider instructions than 16 bytes do not exist: several are issued.
    parts = max(1, -(-width // 16))
    rows = range(0, index.shape[0], max(together // parts, 1))
    return max((_ways(index[row], use[row], min(width, 16), itemsize) for row in rows), default=1)


def _ways(index: NDArray[Any], use: NDArray[np.bool_], width: int, itemsize: int) -> int:
    threads = index.shape[0]
    phase = WARP if width <= WORD else WARP * WORD // min(width, 16)
    padded = -(-threads // WARP) * WARP
    start = np.zeros(padded, np.int64)
    start[:threads] = index.astype(np.int64) * itemsize
    used = np.zeros(padded, np.bool_)
    used[:threads] = use
    words = max(width // WORD, 1)
    word = (start // WORD)[:, None] + np.arange(words)
    word = word.reshape(-1, phase * words)
    used = np.repeat(used, words).reshape(word.shape)
    # Each word once: sort by bank, then by word.
    span = int(word.max()) // BANKS + 2
    key = np.where(used, word % BANKS * span + word // BANKS, -1)
    key.sort(axis=1)
    distinct = np.ones(key.shape, np.bool_)
    distinct[:, 1:] = key[:, 1:] != key[:, :-1]
    distinct &= key >= 0
    phases = np.broadcast_to(np.arange(key.shape[0])[:, None], key.shape)[distinct]
    counts = np.bincount(phases * BANKS + key[distinct] // span, minlength=1)
    return int(counts.max(initial=0))
