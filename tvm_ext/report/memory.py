"""Memory over time for the orders that the inspect page compares."""

from __future__ import annotations

from collections.abc import Sequence

from tvm_ext.errors import GraphError
from tvm_ext.graph import (
    DataflowGraph,
    Node,
    breadth_first_order,
    depth_first_order,
    given_order,
    liveness,
)
from tvm_ext.graph.units import bytes_text
from tvm_ext.memory import OrderOptions, plan_order
from tvm_ext.report.inspection import MemoryChart, MemoryProfile

_NAMED_AT_PEAK = 8
SEARCH_EFFORT = 1_000_000
"""Steps of work, of about a microsecond, for the search of the order that needs least memory."""
# Nodes that only give a value another name.
RENAMES = ("tuple", "get_item", "match_cast", "alias", "shape", "constant", "scalar", "string", "function")


def memory_charts(
    imported: DataflowGraph, kernels: DataflowGraph, planned: DataflowGraph | None
) -> tuple[MemoryChart, ...]:
    """Compare orders of the model as imported and as kernels, and the memory plan.

    Parameters
    ----------
    imported, kernels : DataflowGraph
        The model before the pipeline, and when it consists of kernels.
    planned : DataflowGraph, optional
        The model after memory planning.
    """
    return (
        _chart(
            "Kernels as they run",
            "After fusion; every step is one kernel call. Weights and the caller's inputs are not counted.",
            kernels,
            planned,
        ),
        _chart(
            "Operators as imported",
            "Before the pipeline; every step is one operator. Weights and the caller's inputs are not counted.",
            imported,
            None,
        ),
    )


def _chart(title: str, summary: str, graph: DataflowGraph, planned: DataflowGraph | None) -> MemoryChart:
    try:
        profiles = [
            _profile("importer's order", "as the model file lists them", graph, given_order(graph)),
            _profile("depth first", "what a result needs, right before it", graph, depth_first_order(graph)),
            _profile("breadth first", "level by level", graph, breadth_first_order(graph)),
            _best_profile(graph),
        ]
        if planned is not None:
            profiles.append(_planned_profile(planned))
    except GraphError as error:
        return MemoryChart(title, summary, (), str(error))
    return MemoryChart(title, summary, tuple(profiles))


def _best_profile(graph: DataflowGraph) -> MemoryProfile:
    plan = plan_order(graph, OrderOptions(effort=SEARCH_EFFORT))
    proof = "no order has a lower peak" if plan.optimal else f"no order is below {bytes_text(plan.lower_bound)}"
    return _profile("least memory", f"the best order found; {proof}", graph, plan.order)


def _planned_profile(graph: DataflowGraph) -> MemoryProfile:
    storages = [t for t in graph.tensors.values() if t.alias_of is None and t.kind in ("intermediate", "output")]
    reserved = sum(tensor.nbytes for tensor in storages if isinstance(tensor.nbytes, int))
    summary = f"storages of the memory plan, from first to last use; {bytes_text(reserved)} in all"
    return _profile("planned", summary, graph, given_order(graph))


def _profile(name: str, summary: str, graph: DataflowGraph, order: Sequence[int]) -> MemoryProfile:
    found = liveness(graph, order)
    steps = [step for step, index in enumerate(order) if _computes(graph, graph.nodes[index])]
    during = tuple(int(found.during[step]) for step in steps)
    peak = max(during, default=0)
    place = during.index(peak) if during else 0
    alive = [graph.tensors[root] for root in found.live_at(steps[place])] if during else []
    named = tuple((t.name, str(t), found.sizes[t.name]) for t in alive[:_NAMED_AT_PEAK])
    return MemoryProfile(name, summary, during, peak, place, named)


def _computes(graph: DataflowGraph, node: Node) -> bool:
    """Whether a node is a step: not a renaming, and not an allocation that a later node fills."""
    if node.op in RENAMES or node.op.startswith(("memory.", "builtin.alloc", "vm.")):
        return False
    return not node.outputs or any(graph.tensors[name].alias_of is None for name in node.outputs)
