"""The numbers of a memory problem as numpy arrays, for the search over many states at a time.

A set of nodes is a column of ``words`` unsigned 64-bit integers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tvm_ext.memory.problem import MemoryProblem, members

Words = npt.NDArray[np.uint64]
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Ragged:
    """For each node a list of storages: bytes, and the bit mask of nodes that decides whether they count.

    Attributes
    ----------
    start, count : array of int64, one per node
        Where the node's list lies.
    masks : array of uint64, (words, entries)
        Bit masks.
    sizes : array of int64, (entries,)
        Bytes.
    """

    start: Integers
    count: Integers
    masks: Words
    sizes: Integers

    def rows(self, nodes: Integers) -> tuple[Integers, Integers]:
        """List the entries of many nodes: the position in ``nodes``, and the entry, for each."""
        count = self.count[nodes]
        position = np.repeat(np.arange(len(nodes)), count)
        first = np.cumsum(count) - count
        return position, np.arange(len(position)) - np.repeat(first - self.start[nodes], count)


@dataclass(frozen=True, eq=False)
class Tables:
    """What each node changes, split into what is the same in every order and what depends on the nodes done before.

    Attributes
    ----------
    words : int
        Words of a set.
    bit, need : array of uint64, (words, nodes)
        The node itself; its predecessors and itself.
    key : array of uint64, (nodes,)
        Random numbers; the exclusive or of its members' is the hash of a set.
    earliest, latest : array of int64, (nodes,)
        How many nodes come before it at least and at most.
    allocated, freed : array of int64, (nodes,)
        Bytes it allocates and frees in every order.
    inside : array of int64, (nodes,)
        Bytes it needs while it runs, less what it takes over in every order.
    begins : Ragged
        Bytes it allocates unless one of the masked nodes is done.
    ends : Ragged
        Bytes it frees if all of the masked nodes are done.
    in_place : dict of int to list of (int, int, array or None, int)
        Nodes that may take over the bytes of inputs, depending on the order: candidates (defined, read, the mask of
        nodes that must be done, bytes).
    """

    words: int
    bit: Words
    need: Words
    key: Words
    earliest: Integers
    latest: Integers
    allocated: Integers
    freed: Integers
    inside: Integers
    begins: Ragged
    ends: Ragged
    in_place: dict[int, list[tuple[int, int, Words, int]]]


def tables(problem: MemoryProblem) -> Tables:
    """Turn a problem into arrays."""
    count = len(problem)
    words = max(1, -(-count // 64))
    ancestors, descendants = problem.ancestors, problem.descendants
    allocated, freed = [0] * count, [0] * count
    begins: list[list[tuple[int, int]]] = [[] for _ in range(count)]
    ends: list[list[tuple[int, int]]] = [[] for _ in range(count)]
    for storage in problem.storages:
        for node in members(storage.writers):
            others = storage.writers & ~(1 << node | descendants[node])
            if others & ancestors[node]:
                continue
            if others:
                begins[node].append((others, storage.size))
            else:
                allocated[node] += storage.size
        for node in members(0 if storage.kept else storage.nodes):
            if storage.nodes & descendants[node]:
                continue
            others = storage.nodes & ~(1 << node | ancestors[node])
            if others:
                ends[node].append((others, storage.size))
            else:
                freed[node] += storage.size
    inside = list(problem.inside)
    in_place: dict[int, list[tuple[int, int, Words, int]]] = {}
    for node, pairs in enumerate(problem.in_place):
        possible = [
            (target, source, problem.storages[source].nodes & ~(1 << node | ancestors[node]))
            for target, source in pairs
            if not problem.storages[source].nodes & descendants[node]
        ]
        if any(others for _, _, others in possible):
            in_place[node] = [(t, s, column(others, words), problem.storages[s].size) for t, s, others in possible]
        elif possible:
            inside[node] -= problem.taken_over(node, ancestors[node])
    key = np.random.default_rng(0).integers(0, 2**63, count, dtype=np.uint64)
    bit = np.stack([column(1 << node, words) for node in range(count)], axis=1) if count else _no_words(words)
    if words == 1:
        key = bit[0]
    return Tables(
        words,
        bit,
        np.stack([column(1 << n | problem.predecessors[n], words) for n in range(count)], axis=1) if count else bit,
        key,
        np.array([mask.bit_count() for mask in ancestors], dtype=np.int64),
        np.array([count - 1 - mask.bit_count() for mask in descendants], dtype=np.int64),
        np.array(allocated, dtype=np.int64),
        np.array(freed, dtype=np.int64),
        np.array(inside, dtype=np.int64),
        _ragged(begins, words),
        _ragged(ends, words),
        in_place,
    )


def column(mask: int, words: int) -> Words:
    """Write a bit mask as unsigned 64-bit integers, lowest first."""
    return np.frombuffer(mask.to_bytes(8 * words, "little"), dtype="<u8").astype(np.uint64)


def _ragged(entries: list[list[tuple[int, int]]], words: int) -> Ragged:
    count = np.array([len(row) for row in entries], dtype=np.int64)
    flat = [entry for row in entries for entry in row]
    masks = np.stack([column(mask, words) for mask, _ in flat], axis=1) if flat else _no_words(words)
    return Ragged(np.cumsum(count) - count, count, masks, np.array([size for _, size in flat], dtype=np.int64))


def _no_words(words: int) -> Words:
    return np.zeros((words, 0), dtype=np.uint64)
