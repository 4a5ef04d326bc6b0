"""Check plans from their definitions, by other ways than the planners take."""

from __future__ import annotations

from collections.abc import Mapping

from tvm_ext.errors import GraphError
from tvm_ext.graph import DataflowGraph, LivenessOptions, check_order, peak_bytes
from tvm_ext.memory.arena import ArenaPlan
from tvm_ext.memory.order import OrderPlan


def verify_order(plan: OrderPlan, graph: DataflowGraph, options: LivenessOptions | None = None) -> None:
    """Check that the order runs every node once, after what it depends on, and has the peak that the plan says.

    Raises
    ------
    GraphError
        When it is not so; the message names the nodes or the bytes.
    """
    check_order(graph, plan.order)
    given = peak_bytes(graph, None, options)
    peak = peak_bytes(graph, plan.order, options)
    if peak != plan.peak:
        raise GraphError(f"order of graph '{graph.name}': its peak is {peak:,} bytes, the plan says {plan.peak:,}")
    if peak > given:
        raise GraphError(
            f"order of graph '{graph.name}': its peak of {peak:,} bytes is above the {given:,} of the given order"
        )
    if plan.lower_bound > peak:
        raise GraphError(
            f"order of graph '{graph.name}': its peak of {peak:,} bytes is below the lower bound {plan.lower_bound:,}"
        )


def verify_arena(
    plan: ArenaPlan,
    intervals: Mapping[str, tuple[int, int]],
    sizes: Mapping[str, int],
    in_place: Mapping[str, str] | None = None,
) -> None:
    """Check that no two storages that are alive at the same step overlap, pair by pair.

    Parameters
    ----------
    plan : ArenaPlan
        Byte offsets.
    intervals, sizes, in_place : mapping
        What :func:`~tvm_ext.memory.arena.plan_arena` was given. A storage may lie where the one it takes over lies,
        which it meets at one step.

    Raises
    ------
    GraphError
        When storages overlap, one is missing, not aligned, or outside of the arena; the message names it.
    """
    in_place = in_place or {}
    for name in intervals:
        if name not in plan.offsets:
            raise GraphError(f"arena: storage '{name}' has no offset")
        offset, size = plan.offsets[name], sizes[name]
        if offset < 0 or offset + size > plan.size:
            raise GraphError(
                f"arena: storage '{name}' takes bytes {offset:,} to {offset + size:,}, outside of the arena of "
                f"{plan.size:,} bytes"
            )
        if offset % plan.alignment:
            raise GraphError(f"arena: offset {offset:,} of storage '{name}' is not a multiple of {plan.alignment}")
    for target, source in in_place.items():
        if target in intervals and source in intervals and plan.offsets[target] != plan.offsets[source]:
            raise GraphError(
                f"arena: storage '{target}' takes over '{source}' but lies at byte {plan.offsets[target]:,}, not at "
                f"{plan.offsets[source]:,}"
            )
    by_start = sorted((name for name in intervals if sizes[name]), key=lambda name: intervals[name])
    open_: list[str] = []
    for name in by_start:
        first, last = intervals[name]
        open_ = [other for other in open_ if intervals[other][1] >= first]
        low, high = plan.offsets[name], plan.offsets[name] + sizes[name]
        for other in open_:
            lower, higher = plan.offsets[other], plan.offsets[other] + sizes[other]
            if low < higher and lower < high and not _takes_over(name, other, intervals, in_place):
                raise GraphError(
                    f"arena: storages '{other}' (bytes {lower:,} to {higher:,}) and '{name}' (bytes {low:,} to "
                    f"{high:,}) overlap while both are alive, at steps {first} to {min(last, intervals[other][1])}"
                )
        open_.append(name)


def _takes_over(name: str, other: str, intervals: Mapping[str, tuple[int, int]], in_place: Mapping[str, str]) -> bool:
    """Tell whether one of two storages begins where the other ends, in its place."""
    return any(
        in_place.get(target) == source and intervals[source][1] == intervals[target][0]
        for target, source in ((name, other), (other, name))
    )
