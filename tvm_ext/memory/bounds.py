"""A quick lower bound of the peak of every order; :mod:`tvm_ext.memory.cut_bound` has a stronger one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tvm_ext.memory.problem import MemoryProblem, members

MOST_NODES = 1 << 14
"""Nodes of the largest problem whose ancestors are looked at: those of all nodes take 32 MiB, and four times as much
for twice the nodes."""

_ROWS = 256


def lower_bound(problem: MemoryProblem) -> int:
    """Find bytes that every order needs at some node; see :func:`needed_at`."""
    return max(needed_at(problem), default=problem.alive(0))


def needed_at(problem: MemoryProblem) -> list[int]:
    """Find for each node the bytes that are alive while it runs, whatever the order.

    These are what it reads and defines, and every storage that an ancestor of it defines and a descendant of it reads.
    What it could write in place at best is taken off. Beyond 16,384 nodes only the first kind is counted.
    """
    count = len(problem)
    if not count:
        return []
    if count > MOST_NODES:
        needed = [problem.base + sum(problem.storages[s].size for s in touched) for touched in problem.touched]
    else:
        needed = [problem.base + int(bytes_) for bytes_ in _around(problem)]
    for node, pairs in enumerate(problem.in_place):
        if pairs:
            behind = 0 if count > MOST_NODES else problem.descendants[node]
            needed[node] -= problem.taken_over(node, ~behind)
    return [max(0, bytes_ + inside) for bytes_, inside in zip(needed, problem.inside, strict=True)]


def _around(problem: MemoryProblem) -> npt.NDArray[np.int64]:
    """Bytes of the storages that are begun before or at each node, and needed at or after it."""
    count = len(problem)
    everywhere = (1 << count) - 1
    behind = [mask | 1 << node for node, mask in enumerate(problem.descendants)]
    before = [mask | 1 << node for node, mask in enumerate(problem.ancestors)]
    found = np.zeros(count, dtype=np.int64)
    width = -(-count // 8)
    for begin in range(0, len(problem.storages), _ROWS):
        some = problem.storages[begin : begin + _ROWS]
        rows = []
        for storage in some:
            begun = everywhere if storage.resident else _union(behind, storage.writers)
            needed = everywhere if storage.kept else _union(before, storage.nodes)
            rows.append((begun & needed).to_bytes(width, "little"))
        packed = np.frombuffer(b"".join(rows), dtype=np.uint8).reshape(len(some), width)
        alive = np.unpackbits(packed, axis=1, count=count, bitorder="little")
        found += np.array([storage.size for storage in some], dtype=np.int64) @ alive
    return found


def _union(masks: Sequence[int], which: int) -> int:
    total = 0
    for node in members(which):
        total |= masks[node]
    return total
