"""Sentences for people: what runs on VTA, what it loses, and why other operators do not run there."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tvm_ext.backends.vta.model.confidence import CONFIDENCE
from tvm_ext.backends.vta.model.node_names import layer_nodes, node_of
from tvm_ext.backends.vta.model.output_error import OutputEstimate
from tvm_ext.backends.vta.model.partition import Partition
from tvm_ext.backends.vta.model.relax_layers import ModelGraph


def embedded_notes(
    graph: ModelGraph, found: Collection[str], plain: ModelGraph, reasons: Mapping[str, str]
) -> list[str]:
    """Say which operators the matrix unit was embedded into, and why not into others of the graph before."""
    nodes = layer_nodes(graph)
    layers = [next(layer.name for layer in graph.layers if name in layer.covers) for name in found]
    words = [next(iter(nodes[layer]), layer) for layer in layers]
    made = [f"{word} runs on VTA: the matrix unit was embedded into it" for word in words]
    return [*made, *(f"{node_of(plain, name)} was not embedded: {reason}" for name, reason in reasons.items())]


def layer_notes(
    graph: ModelGraph,
    partition: Partition,
    estimate: OutputEstimate | None = None,
    limit: float = 0.0,
) -> tuple[str, ...]:
    """Say how many layers run on VTA, what they lose, and of every other layer why it does not run there."""
    count, regions = len(partition.on_vta), len(partition.regions)
    if not count:
        first = "nothing in this model runs on VTA: all of it is compiled for the CPU"
    else:
        first = f"{count} of {len(partition.decisions)} layers run on VTA, in {regions} region{'s'[: regions > 1]}"
    refused = [f"{node_of(graph, name)} stays on the CPU: {reason}" for name, reason in graph.refused.items()]
    slower = [
        f"{node_of(graph, row.layer)} stays on the CPU: {row.reason}"
        for row in partition.decisions
        if row.device == "cpu"
    ]
    lost = []
    if count and estimate is not None:
        more = f", more than {limit:.0%}, by layers that were put on VTA by name" if estimate.error > limit else ""
        seen = f"{estimate.samples} calibration input{'s'[: estimate.samples > 1]}"
        others = f"with {CONFIDENCE} % confidence by less than {estimate.bound:.2%} on others"
        lost = [f"the outputs are off by {estimate.error:.2%} of their size on {seen}{more}, and {others}"]
    return (first, *lost, *refused, *slower)
