"""Decide which layers run on VTA: the assignment with the least time, borders and programs' starts included."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import networkx as nx

from tvm_ext.backends.vta.codegen.tile_choice import choose_tile, estimate_cycles, fit_tile, pooling_tile
from tvm_ext.backends.vta.config import VTAConfig
from tvm_ext.backends.vta.model.cut import (
    NO_PENALTIES,
    Device,
    PartNode,
    Penalties,
    conversion_seconds,
    fewer_regions,
    minimum_cut,
    regions_of,
)
from tvm_ext.backends.vta.model.host import HostSpeed
from tvm_ext.backends.vta.model.layers import Layer
from tvm_ext.backends.vta.model.region import geometry
from tvm_ext.backends.vta.timing.costs import CycleCosts
from tvm_ext.errors import GraphError, VTAProgramError


@dataclass(frozen=True)
class Decision:
    """Where a layer runs.

    Attributes
    ----------
    layer : str
    device : str
        ``vta`` or ``cpu``.
    vta_seconds : float, optional
        Estimated; None if VTA cannot run it.
    cpu_seconds : float
    reason : str
    """

    layer: str
    device: Device
    vta_seconds: float | None
    cpu_seconds: float
    reason: str


@dataclass(frozen=True)
class Partition:
    """Where every layer runs.

    Attributes
    ----------
    decisions : tuple of Decision
    regions : tuple of tuple of str
        Layers that run on VTA in one go.
    conversion_seconds : float
        Of the tensors that cross the border.
    start_seconds : float
        To start the programs of the regions.
    other_seconds : float
        On the CPU, of what is no layer.
    """

    decisions: tuple[Decision, ...]
    regions: tuple[tuple[str, ...], ...]
    conversion_seconds: float
    start_seconds: float = 0.0
    other_seconds: float = 0.0

    @property
    def seconds(self) -> float:
        """Estimated time of all layers and conversions, and to start programs."""
        times = (d.vta_seconds if d.device == "vta" else d.cpu_seconds for d in self.decisions)
        return sum(time for time in times if time is not None) + self.conversion_seconds + self.start_seconds

    @property
    def cpu_layer_seconds(self) -> float:
        """Estimated time of the layers on the CPU."""
        return sum(decision.cpu_seconds for decision in self.decisions if decision.device == "cpu")

    @property
    def cpu_only_seconds(self) -> float:
        """Estimated time of the whole model with nothing on VTA."""
        return sum(decision.cpu_seconds for decision in self.decisions) + self.other_seconds

    @property
    def on_vta(self) -> frozenset[str]:
        """Layers that run on VTA."""
        return frozenset(name for region in self.regions for name in region)


def layer_cycles(layer: Layer, config: VTAConfig, costs: CycleCosts) -> int:
    """Estimate the cycles of a layer on VTA.

    Raises
    ------
    VTAProgramError
        If VTA cannot run it.
    """
    conv = geometry(layer, config)
    if layer.kind == "max_pool2d":
        pooling_tile(config, conv)
        inputs = conv.batches * conv.in_blocks * conv.height * conv.width
        outputs = conv.batches * conv.out_blocks * conv.out_height * conv.out_width
        return 2 * inputs + outputs * (2 + costs.alu_tensor * (conv.kernel**2 - 1))
    residual = layer.residual is not None
    tile = choose_tile(conv, config, costs, True, residual)
    return estimate_cycles(conv, fit_tile(config, conv, tile, True, residual), config, costs, residual)


def cpu_seconds(layer: Layer, host: HostSpeed) -> float:
    """Estimate the time of a layer on the CPU."""
    products = layer.operator in ("conv2d", "conv2d_transpose", "matmul")
    return layer.macs / (host.macs if products else host.comparisons)


def plan_partition(
    nodes: Sequence[PartNode],
    outputs: Iterable[str],
    config: VTAConfig,
    costs: CycleCosts,
    host: HostSpeed | None = None,
    forced: Mapping[str, Device] | None = None,
    refused: Mapping[str, str] | None = None,
    penalties: Penalties | None = None,
    times: LayerTimes | None = None,
) -> Partition:
    """Assign every layer to VTA or the CPU.

    Parameters
    ----------
    nodes : sequence of PartNode
        In an order in which they can run.
    outputs : iterable of str
        Tensors that leave the model; they end on the CPU.
    config, costs
        The accelerator.
    host : HostSpeed, optional
    forced : mapping, optional
        Layer to the side it must be on.
    refused : mapping, optional
        Layer to the reason why it must not run on VTA.
    penalties : Penalties, optional
        What counts beside time.
    times : LayerTimes, optional
        What :func:`layer_times` found, which takes most of the time.

    Raises
    ------
    GraphError
        If ``forced`` names no layer, or puts one on VTA that cannot run there.
    """
    host, forced = host or HostSpeed(), forced or {}
    found = times or layer_times(nodes, config, costs, host)
    seconds_of = {name: (None if name in (refused or {}) else vta, cpu) for name, (vta, cpu) in found.seconds.items()}
    problems = {**found.problems, **(refused or {})}
    _check_forced(forced, seconds_of, problems)
    weighed, counted = seconds_of, penalties or NO_PENALTIES
    if penalties is not None:
        chosen_from = {*penalties.layers, *forced}
        weighed = {
            name: (None if vta is None or name not in chosen_from else vta + penalties.layer_seconds(name), cpu)
            for name, (vta, cpu) in seconds_of.items()
        }
    crossing = minimum_cut(nodes, set(outputs), weighed, forced, host, counted)
    on_vta = {name for name in weighed if name in crossing}
    on_vta = fewer_regions(nodes, set(outputs), on_vta, weighed, forced, host, counted)
    decisions = []
    for node in nodes:
        if node.layer is None:
            continue
        vta, cpu = seconds_of[node.name]
        device: Device = "vta" if node.name in on_vta else "cpu"
        reason = _reason(node, device, vta, cpu, config.block, problems, forced, penalties is not None)
        if device == "cpu" and vta is not None and penalties is not None and counted.layers.get(node.name):
            added = counted.layers[node.name] ** 0.5
            reason = f"{reason}; in integers it would add {added:.2%} to the error of the outputs"
        decisions.append(Decision(node.name, device, vta, cpu, reason))
    seconds = conversion_seconds(nodes, outputs, on_vta, host)
    regions = regions_of(nodes, on_vta)
    others = sum(node.products / host.macs + node.operations / host.comparisons for node in nodes if node.layer is None)
    partition = Partition(tuple(decisions), regions, seconds, len(regions) * host.start, others)
    verify_partition(partition, nodes)
    return partition


@dataclass(frozen=True)
class LayerTimes:
    """Times of layers on either side.

    Attributes
    ----------
    seconds : mapping
        Layer to its time on VTA, None if it cannot run there, and on the CPU.
    problems : mapping
        Layer to why it cannot run on VTA.
    """

    seconds: Mapping[str, tuple[float | None, float]]
    problems: Mapping[str, str]


def layer_times(
    nodes: Sequence[PartNode], config: VTAConfig, costs: CycleCosts, host: HostSpeed | None = None
) -> LayerTimes:
    """Estimate the times of all layers."""
    host = host or HostSpeed()
    times: dict[str, tuple[float | None, float]] = {}
    problems: dict[str, str] = {}
    for node in nodes:
        if node.layer is None:
            continue
        vta = None
        try:
            vta = layer_cycles(node.layer, config, costs) / (costs.clock_mhz * 1e6)
        except VTAProgramError as error:
            problems[node.name] = str(error)
        times[node.name] = (vta, cpu_seconds(node.layer, host))
    return LayerTimes(times, problems)


def _check_forced(
    forced: Mapping[str, Device], times: Mapping[str, tuple[float | None, float]], problems: Mapping[str, str]
) -> None:
    for name, device in forced.items():
        if name not in times:
            raise GraphError(f"no layer {name!r} that VTA could run; there are {', '.join(times) or 'none'}")
        if device == "vta" and name in problems:
            raise GraphError(f"layer {name!r} cannot run on VTA: {problems[name]}")


def _reason(
    node: PartNode,
    device: Device,
    vta: float | None,
    cpu: float,
    block: int,
    problems: Mapping[str, str],
    forced: Mapping[str, Device],
    is_judged: bool,
) -> str:
    if node.name in forced:
        return "as asked for"
    if vta is None:
        return problems[node.name]
    layer = node.layer
    padded = ""
    if layer is not None and layer.weights is not None and layer.weights.shape[1] < block:
        padded = f", with {layer.weights.shape[1]} of {block} channels of a block in use"
    if layer is not None and layer.unfold is not None:
        padded += ", with an unfolded input"
    faster = (vta < cpu) == (device == "vta")
    why = ""
    if not faster and is_judged:
        why = ", but conversions at the border, their errors, and starting programs would weigh more than it saves"
    elif not faster:
        why = ", but conversions at the border, and starting programs, would take longer than it saves"
    return f"{vta * 1e3:.3g} ms on VTA{padded}, {cpu * 1e3:.3g} ms on the CPU{why}"


def verify_partition(partition: Partition, nodes: Sequence[PartNode]) -> None:
    """Check that every layer is somewhere and that the regions can run one after the other, each in one go.

    Raises
    ------
    GraphError
        If a layer is missing or twice in a region, or regions and the rest wait for each other.
    """
    layers = [node.name for node in nodes if node.layer is not None]
    decided = {decision.layer: decision.device for decision in partition.decisions}
    placed = [name for region in partition.regions for name in region]
    if sorted(decided) != sorted(layers):
        raise GraphError("the partition does not decide about exactly the layers of the model")
    if sorted(placed) != sorted(name for name, device in decided.items() if device == "vta"):
        raise GraphError("the regions do not hold exactly the layers that are on VTA")
    merged = {name: f"region {number}" for number, region in enumerate(partition.regions) for name in region}
    graph = nx.DiGraph()
    for node in nodes:
        for name in node.inputs:
            ends = merged.get(name, f"node {name}"), merged.get(node.name, f"node {node.name}")
            if ends[0] != ends[1]:
                graph.add_edge(*ends)
    if not nx.is_directed_acyclic_graph(graph):
        cycle = " -> ".join(start for start, _ in nx.find_cycle(graph))
        raise GraphError(f"the regions of the partition wait for each other: {cycle}")
