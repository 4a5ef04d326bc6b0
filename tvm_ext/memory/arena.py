"""Where storages lie in one arena: byte offsets, so that storages alive at the same time never overlap.

The blocks are placed by first fit in an order that is improved (:mod:`tvm_ext.memory.first_fit`). Where that does not
reach the lower bound, a constraint solver has an exact answer for small cases (:mod:`tvm_ext.memory.exact_arena`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tvm_ext.errors import OptionError
from tvm_ext.memory.blocks import blocks_of, meetings_of, smallest_arena
from tvm_ext.memory.exact_arena import solve
from tvm_ext.memory.first_fit import FirstFit
from tvm_ext.memory.work import SECOND

_EFFORT = 2_000_000  # meetings of two blocks that the improvement looks at
_RUNS = 4  # with different random choices


@dataclass(frozen=True)
class ArenaPlan:
    """Byte offsets in one arena.

    Attributes
    ----------
    offsets : mapping of str to int
        For each storage, its first byte.
    size : int
        Bytes of the arena: the highest end of a storage.
    lower_bound : int
        Bytes; no arena with this alignment is smaller.
    alignment : int
        Every offset is a multiple of it.
    method : str
        What found it.
    """

    offsets: Mapping[str, int]
    size: int
    lower_bound: int
    alignment: int
    method: str

    @property
    def optimal(self) -> bool:
        """Whether no arena is smaller, proven."""
        return self.size == self.lower_bound

    def __str__(self) -> str:
        proof = "none is smaller" if self.optimal else f"none is smaller than {self.lower_bound:,}"
        return f"arena of {self.size:,} bytes for {len(self.offsets)} storages ({self.method}; {proof})"


def plan_arena(
    intervals: Mapping[str, tuple[int, int]],
    sizes: Mapping[str, int],
    alignment: int = 64,
    *,
    in_place: Mapping[str, str] | None = None,
    effort: int = _EFFORT,
    exact: bool = False,
    tolerance: int = 0,
    solver_effort: float = 10 * SECOND,
) -> ArenaPlan:
    """Give each storage a place.

    Parameters
    ----------
    intervals : mapping of str to (int, int)
        First and last step at which each storage is alive, both included (:attr:`tvm_ext.graph.Liveness.intervals`).
    sizes : mapping of str to int
        Bytes of each of them.
    alignment : int
        Bytes that every offset is a multiple of.
    in_place : mapping of str to str, optional
        Storages that lie where another one lay (:attr:`tvm_ext.graph.Liveness.in_place`); pairs with a storage that
        has no interval are passed over.
    effort : int
        Meetings of two blocks to look at in the search for a smaller arena; a million takes about half a second.
    exact : bool
        Ask a constraint solver when the bound is not reached.
    tolerance : int
        Bytes above the bound that the solver is not asked for.
    solver_effort : float
        Steps of work for the solver; a million takes about a second.

    Returns
    -------
    ArenaPlan
        The same for the same input.

    Raises
    ------
    GraphError
        When a size is missing or negative, or an interval ends before it begins.
    OptionError
        When the alignment is not positive.
    MissingPackageError
        When the solver is asked for and not installed.
    """
    if alignment < 1:
        raise OptionError(f"arena option 'alignment' is {alignment}, expected 1 or more")
    blocks = blocks_of(intervals, sizes, in_place or {})
    bound = smallest_arena(blocks, alignment)
    placer = FirstFit(blocks, meetings_of(blocks), alignment)
    method, order, offsets = placer.best_start()
    start = offsets
    for seed in range(_RUNS):
        if placer.size(offsets) > bound:
            offsets = min(offsets, placer.improve(order, start, bound, effort // _RUNS, seed), key=placer.size)
            method = "improved first fit" if offsets is not start else method
    size = placer.size(offsets)
    if exact and size > bound + tolerance:
        offsets, size, bound = solve(blocks, alignment, offsets, bound, solver_effort)
        method = "constraint solver"
    named = {name: offset for block, offset in zip(blocks, offsets, strict=True) for name in block.names}
    return ArenaPlan({name: named[name] for name in intervals}, size, bound, alignment, method)
