"""The order with the least peak, by dynamic programming over the sets of nodes that can be done first.

States are the sets of nodes done (equivalently their zero-indegree sets: one determines the other), level by level in
the number of nodes done; of all ways to reach a set only the one with the least peak is kept (B. H. Ahn et al.,
"Ordering Chaos: Memory-Aware Scheduling of Irregularly Wired Neural Networks for Edge Devices", MLSys 2020, algorithm
1 and theorem 1). A level is a few numpy arrays.

Three cuts keep the levels small; each leaves the answer exact:

* a budget: states whose peak exceeds it are dropped (section 3.2 of the paper);
* a floor: no order is better than a lower bound, so peaks below it are counted as it;
* dominance: if a ready node can run within the peak that its state has anyway, and leaves no more bytes alive than
  before, then some best completion of the state begins with it, and the state's other followers are dropped.

Proof of the last one. Let ``m(T)`` be the bytes alive after the set ``T``, and ``u`` the ready node of state ``S`` with
``m(S + u) <= m(S)``. Take a best completion and move ``u`` to its front. A set ``T`` before the old place of ``u``
becomes ``T + u``, and ``m`` is submodular, so ``m(T + u) - m(T) <= m(S + u) - m(S) <= 0``. A node that ran after ``T``
now runs after ``T + u``: it starts with no more bytes, allocates no more (a storage may have been begun by ``u``), and
takes over no fewer inputs (more nodes are done, and one more candidate never makes the first-come matching smaller). So
no step between has become higher, the steps behind are the same, and ``u`` itself stays within the peak by assumption.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from tvm_ext.memory.problem import MemoryProblem
from tvm_ext.memory.tables import Integers, Tables, Words, tables
from tvm_ext.memory.work import Work

Flag: TypeAlias = Literal["solution", "no solution", "states", "work"]
_NONE = int(np.iinfo(np.int64).max)
_CHUNK = 1 << 19  # candidates looked at together: states of a level times nodes that can be ready at it
_CHUNK_STEPS, _TRANSITION_STEPS = 150.0, 0.15  # of work, measured


@dataclass(frozen=True)
class SearchResult:
    """What a search found.

    Attributes
    ----------
    flag : str
        ``solution``; ``no solution``: every order exceeds the budget; ``states``, ``work``: a limit was hit.
    order : tuple of int
        Nodes of the problem; empty without a solution.
    peak : int
        Bytes, not below the floor; 0 without a solution.
    transitions : int
        Steps from state to state that were looked at.
    complete : bool
        No state was dropped to keep a level narrow, so a solution is best, and no solution is a proof.
    exceeded : int
        With ``no solution``: the lowest peak that was over the budget. If complete, no order has a lower peak, since
        each order, or one as good as it, had to take a step that was dropped.
    """

    flag: Flag
    order: tuple[int, ...] = ()
    peak: int = 0
    transitions: int = 0
    complete: bool = True
    exceeded: int = 0


@dataclass(frozen=True, eq=False)
class _Level:
    """States with the same number of nodes done."""

    masks: Words  # (words, states)
    key: Words
    alive: Integers
    peak: Integers

    def __len__(self) -> int:
        return len(self.alive)

    def some(self, begin: int, end: int) -> _Level:
        return _Level(self.masks[:, begin:end], self.key[begin:end], self.alive[begin:end], self.peak[begin:end])


@dataclass(frozen=True, eq=False)
class _Steps:
    """Steps from the states of a level, and the states they lead to."""

    parent: Integers
    node: Integers
    level: _Level
    looked_at: int = 0
    exceeded: int = _NONE


def search(
    problem: MemoryProblem,
    *,
    budget: int | None = None,
    floor: int = 0,
    level_limit: int | None = None,
    state_limit: int | None = None,
    width: int | None = None,
    work: Work | None = None,
    dominance: bool = True,
    arrays: Tables | None = None,
) -> SearchResult:
    """Find an order with the least peak.

    Parameters
    ----------
    problem : MemoryProblem
        Nodes and storages.
    budget : int, optional
        Drop what has a higher peak, in bytes.
    floor : int
        A lower bound of the peak, in bytes.
    level_limit, state_limit : int, optional
        Give up when a level, or all levels together, have more states.
    width : int, optional
        Keep only that many states of a level, those with the lowest peak and then the fewest bytes alive.
    work : Work, optional
        What the search is charged to; it gives up when that is spent.
    dominance : bool
        Follow a node that dominates its siblings alone.
    arrays : Tables, optional
        The problem's tables, if they are there already.
    """
    arrays, work = arrays or tables(problem), work or Work()
    count = len(problem)
    alive = problem.alive(0)
    limit = _NONE if budget is None else budget
    peak = max(floor, alive)
    if peak > limit:
        return SearchResult("no solution", exceeded=peak)
    level = _Level(
        np.zeros((arrays.words, 1), dtype=np.uint64),
        np.zeros(1, dtype=np.uint64),
        np.array([alive], dtype=np.int64),
        np.array([peak], dtype=np.int64),
    )
    history: list[tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]] = []
    transitions = stored = 0
    complete = True
    exceeded = _NONE
    for depth in range(count):
        candidates = np.flatnonzero((arrays.earliest <= depth) & (depth <= arrays.latest))
        size = max(1, _CHUNK // max(1, len(candidates) * arrays.words))
        merged: _Steps | None = None
        for begin in range(0, len(level), size):
            if work.is_over:
                return SearchResult("work", transitions=transitions, complete=False)
            steps = _expand(arrays, level.some(begin, begin + size), candidates, limit, dominance)
            transitions += steps.looked_at
            work.spend(_CHUNK_STEPS + _TRANSITION_STEPS * arrays.words * steps.looked_at)
            exceeded = min(exceeded, steps.exceeded)
            steps = replace(steps, parent=steps.parent + begin)
            merged = _merge(steps if merged is None else _joined(merged, steps))
            if width is not None and len(merged.level) > width:
                # Between chunks some more are kept: the next ones may hold better ways to the same sets.
                last = begin + size >= len(level)
                if last or len(merged.level) > 4 * width:
                    merged, complete = _narrowed(merged, width if last else 2 * width), False
            reached = len(merged.level)
            if width is None and (reached > (level_limit or reached) or stored + reached > (state_limit or _NONE)):
                return SearchResult("states", transitions=transitions, complete=False)
        if merged is None or not len(merged.level):
            return SearchResult("no solution", transitions=transitions, complete=complete, exceeded=exceeded)
        history.append((merged.parent.astype(np.int32), merged.node.astype(np.int32)))
        level = merged.level
        stored += len(level)
    order = []
    place = 0
    for parents, nodes in reversed(history):
        order.append(int(nodes[place]))
        place = int(parents[place])
    return SearchResult("solution", tuple(reversed(order)), int(level.peak[0]), transitions, complete)


def _expand(arrays: Tables, level: _Level, candidates: Integers, limit: int, dominance: bool) -> _Steps:
    """Take every step from the states of a level that stays within the limit."""
    ready = np.ones((len(level), len(candidates)), dtype=bool)
    for mask, need, bit in zip(level.masks, arrays.need[:, candidates], arrays.bit[:, candidates], strict=True):
        # All it needs is done, and it is not.
        ready &= (mask[:, None] & need) == need ^ bit
    parent, column = np.nonzero(ready)
    node = candidates[column]
    looked_at = len(node)
    allocated = arrays.allocated[node]
    if len(arrays.begins.sizes):
        row, entry = arrays.begins.rows(node)
        begins = _all_of(~level.masks[:, parent[row]], arrays.begins.masks[:, entry])
        allocated += _summed(row, arrays.begins.sizes[entry] * begins, looked_at)
    during = level.alive[parent] + allocated + arrays.inside[node]
    for one, pairs in arrays.in_place.items():
        chosen = np.flatnonzero(node == one)
        if len(chosen):
            during[chosen] -= _taken_over(level.masks[:, parent[chosen]], pairs)
    freed = arrays.freed[node]
    if len(arrays.ends.sizes):
        row, entry = arrays.ends.rows(node)
        ends = _all_of(level.masks[:, parent[row]], arrays.ends.masks[:, entry])
        freed += _summed(row, arrays.ends.sizes[entry] * ends, looked_at)
    before = level.peak[parent]
    keep = during <= limit
    over = ~keep
    if dominance:
        forced = np.flatnonzero((allocated <= freed) & (during <= before))
        first = np.full(len(level), -1, dtype=np.int64)
        first[parent[forced[::-1]]] = forced[::-1]
        chosen = first[parent]
        keep &= (chosen < 0) | (chosen == np.arange(looked_at))
        over &= chosen < 0
    kept = np.flatnonzero(keep)
    parent, node = parent[kept], node[kept]
    masks = level.masks[:, parent] | arrays.bit[:, node]
    alive = level.alive[parent] + allocated[kept] - freed[kept]
    peak = np.maximum(before[kept], during[kept])
    reached = _Level(masks, level.key[parent] ^ arrays.key[node], alive, peak)
    return _Steps(parent, node, reached, looked_at, int(during[over].min(initial=_NONE)))


def _all_of(sets: Words, masks: Words) -> npt.NDArray[np.bool_]:
    found: npt.NDArray[np.bool_] = ((sets & masks) == masks).all(axis=0)
    return found


def _summed(row: Integers, values: Integers, count: int) -> Integers:
    return np.bincount(row, weights=values, minlength=count).astype(np.int64)


def _taken_over(sets: Words, pairs: list[tuple[int, int, Words, int]]) -> Integers:
    """Bytes taken over in each state: first come, first served, each storage once."""
    total = np.zeros(sets.shape[1], dtype=np.int64)
    used: dict[int, npt.NDArray[np.bool_]] = {}
    for target, source, others, size in pairs:
        holds = _all_of(sets, others[:, None])
        for name in (~target, source):
            if name in used:
                holds &= ~used[name]
        for name in (~target, source):
            used[name] = used[name] | holds if name in used else holds
        total += size * holds
    return total


def _merge(steps: _Steps) -> _Steps:
    """Keep of the steps that lead to the same set the first one with the least peak."""
    level = steps.level
    if len(level) < 2:
        return steps
    # The hash brings equal sets together; different sets with the same hash would only stay apart.
    by_key = np.argsort(level.key, kind="stable")
    key = level.key[by_key]
    new = np.ones(len(level), dtype=bool)
    new[1:] = key[1:] != key[:-1]
    if len(level.masks) > 1:
        for word in level.masks:
            ordered = word[by_key]
            new[1:] |= ordered[1:] != ordered[:-1]
    starts = np.flatnonzero(new)
    if len(starts) == len(level):
        return steps
    peak = level.peak[by_key]
    least = np.repeat(np.minimum.reduceat(peak, starts), np.diff(np.append(starts, len(level))))
    best = np.minimum.reduceat(np.where(peak == least, by_key, len(level)), starts)
    best.sort()
    return _picked(steps, best)


def _narrowed(steps: _Steps, width: int) -> _Steps:
    ranked = np.lexsort((steps.level.alive, steps.level.peak))[:width]
    return _picked(steps, np.sort(ranked))


def _picked(steps: _Steps, which: Integers) -> _Steps:
    old = steps.level
    level = _Level(old.masks[:, which], old.key[which], old.alive[which], old.peak[which])
    return _Steps(steps.parent[which], steps.node[which], level)


def _joined(left: _Steps, right: _Steps) -> _Steps:
    return _Steps(
        np.concatenate([left.parent, right.parent]),
        np.concatenate([left.node, right.node]),
        _Level(
            np.concatenate([left.level.masks, right.level.masks], axis=1),
            np.concatenate([left.level.key, right.level.key]),
            np.concatenate([left.level.alive, right.level.alive]),
            np.concatenate([left.level.peak, right.level.peak]),
        ),
    )
