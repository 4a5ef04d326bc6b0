"""Lower bounds of the peak of every order."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tvm_ext.memory.problem import MemoryProblem, members

_MOST_NODES = 1 << 13  # beyond, the matrix of ancestors takes too much memory
_ROWS = 256


def lower_bound(problem: MemoryProblem) -> int:
    """Find bytes that every order needs at some node; see :func:`needed_at`."""
    return max(needed_at(problem), default=problem.alive(0))


def needed_at(problem: MemoryProblem) -> list[int]:
    """Find for each node the bytes that are alive while it runs, whatever the order.

    These are what it reads and defines, and every storage that an ancestor of it defines and a descendant of it reads.
    What it could write in place at best is taken off. Beyond 8,192 nodes only the first kind is counted.
    """
    count = len(problem)
    if not count:
        return []
    if count > _MOST_NODES:
        needed = [problem.base + sum(problem.storages[s].size for s in touched) for touched in problem.touched]
    else:
        needed = [problem.base + int(bytes_) for bytes_ in _around(problem)]
    for node, pairs in enumerate(problem.in_place):
        if pairs:
            needed[node] -= problem.taken_over(node, ~problem.descendants[node])
    return [max(0, bytes_ + inside) for bytes_, inside in zip(needed, problem.inside, strict=True)]


def _around(problem: MemoryProblem) -> npt.NDArray[np.int64]:
    """Bytes of the storages that are begun before or at each node, and needed at or after it."""
    count = len(problem)
    if not problem.storages:
        return np.zeros(count, dtype=np.int64)
    before = _matrix([mask | 1 << node for node, mask in enumerate(problem.ancestors)])
    after = _matrix([mask | 1 << node for node, mask in enumerate(problem.descendants)])
    sizes = np.array([storage.size for storage in problem.storages], dtype=np.int64)
    resident = np.array([storage.resident for storage in problem.storages])
    kept = np.array([storage.kept for storage in problem.storages])
    # A resident storage has no writers; any node stands in for them.
    writers = [list(members(storage.writers or storage.nodes)) for storage in problem.storages]
    nodes = [list(members(storage.nodes)) for storage in problem.storages]
    found = np.empty(count, dtype=np.int64)
    for begin in range(0, count, _ROWS):
        rows = slice(begin, begin + _ROWS)
        begun = _any_of(before[rows], writers) | resident
        wanted = _any_of(after[rows], nodes) | kept
        found[rows] = (begun & wanted) @ sizes
    return found


def _matrix(masks: list[int]) -> npt.NDArray[np.bool_]:
    width = -(-len(masks) // 8)
    raw = np.frombuffer(b"".join(mask.to_bytes(width, "little") for mask in masks), dtype=np.uint8)
    bits = np.unpackbits(raw.reshape(len(masks), width), axis=1, bitorder="little")
    return bits[:, : len(masks)].astype(bool)


def _any_of(rows: npt.NDArray[np.bool_], groups: list[list[int]]) -> npt.NDArray[np.bool_]:
    lengths = np.array([len(group) for group in groups])
    flat = np.array([node for group in groups for node in group])
    found: npt.NDArray[np.bool_] = np.logical_or.reduceat(rows[:, flat], np.cumsum(lengths) - lengths, axis=1)
    return found
