"""Decide which layers run on VTA: the assignment with the least time, borders included, as a minimum cut.

Every layer has a time on either side, and a tensor that is made on one side and read on the other costs the time to
convert it. The least sum of such costs is a minimum cut between two terminals (Stone, "Multiprocessor Scheduling with
the Aid of Network Flow Algorithms", IEEE Transactions on Software Engineering 1977). A tensor is converted once however
many read it, which an extra node for each tensor and direction says.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import networkx as nx

from tvm_ext.errors import GraphError, VTAProgramError
from tvm_ext.vta.config import VTAConfig
from tvm_ext.vta.costs import CycleCosts
from tvm_ext.vta.host import HostSpeed
from tvm_ext.vta.layers import Layer
from tvm_ext.vta.pooling import pooling_tile
from tvm_ext.vta.region import geometry
from tvm_ext.vta.tile_choice import choose_tile, estimate_cycles
from tvm_ext.vta.tiles import TileSlots

Device = Literal["vta", "cpu"]


class PartNode(Protocol):
    """A node of the model, as :class:`tvm_ext.vta.relax_layers.Node` is one."""

    @property
    def name(self) -> str:
        """Of the tensor it gives."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """Tensors it reads."""

    @property
    def layer(self) -> Layer | None:
        """What it is if VTA can run it."""

    @property
    def products(self) -> float:
        """Multiply-adds on the CPU, of what is no layer."""

    @property
    def operations(self) -> float:
        """Other operations on the CPU, of what is no layer."""


@dataclass(frozen=True)
class Penalties:
    """What errors cost, beside time.

    Attributes
    ----------
    price : float
        Seconds for the square of the outputs' error, as a share of their size.
    layers : mapping
        Layer to what it adds to that square on VTA; one that is missing stays on the CPU.
    tensors : mapping
        Tensor to what it adds if the CPU makes it and VTA reads it.
    """

    price: float
    layers: Mapping[str, float]
    tensors: Mapping[str, float]

    def layer_seconds(self, name: str) -> float:
        """Return how many seconds more a layer counts on VTA."""
        return self.price * self.layers.get(name, 0.0)

    def tensor_seconds(self, name: str) -> float:
        """Return how many seconds more it counts to bring a tensor to VTA."""
        return self.price * self.tensors.get(name, 0.0)


_NONE = Penalties(0.0, {}, {})


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
    return estimate_cycles(conv, TileSlots(config, conv, tile, 2, True, residual), config, costs, residual)


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
    weighed, counted = seconds_of, penalties or _NONE
    if penalties is not None:
        chosen_from = {*penalties.layers, *forced}
        weighed = {
            name: (None if vta is None or name not in chosen_from else vta + penalties.layer_seconds(name), cpu)
            for name, (vta, cpu) in seconds_of.items()
        }
    crossing = _cut(nodes, set(outputs), weighed, forced, host, counted)
    on_vta = {name for name in weighed if name in crossing}
    on_vta = _fewer_regions(nodes, set(outputs), on_vta, weighed, forced, host, counted)
    decisions = []
    for node in nodes:
        if node.layer is None:
            continue
        vta, cpu = seconds_of[node.name]
        device: Device = "vta" if node.name in on_vta else "cpu"
        reason = _reason(node, device, vta, cpu, config.block, problems, forced)
        if device == "cpu" and vta is not None and penalties is not None and counted.layers.get(node.name):
            added = counted.layers[node.name] ** 0.5
            reason = f"{reason}; in integers it would add {added:.2%} to the error of the outputs"
        decisions.append(Decision(node.name, device, vta, cpu, reason))
    seconds = conversion_seconds(nodes, outputs, on_vta, host)
    regions = _regions(nodes, on_vta)
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


def _cut(
    nodes: Sequence[PartNode],
    outputs: set[str],
    times: Mapping[str, tuple[float | None, float]],
    forced: Mapping[str, Device],
    host: HostSpeed,
    penalties: Penalties = _NONE,
) -> set[str]:
    """Return the nodes on VTA's side of a minimum cut; capacities are whole nanoseconds, so that sums are exact."""
    graph = nx.DiGraph()
    graph.add_nodes_from([("vta",), ("cpu",)])
    readers = _readers(nodes, outputs)
    elements = _elements(nodes)

    def key(name: str) -> tuple[str, ...]:
        return ("layer", name) if name in times else ("cpu",)

    for name, (vta, cpu) in times.items():
        # An edge that is cut is paid for: the one from VTA if the layer is on the CPU.
        device = forced.get(name)
        if device != "vta":
            graph.add_edge(("vta",), key(name), capacity=_nanoseconds(cpu))
        else:
            graph.add_edge(("vta",), key(name))
        if vta is not None and device != "cpu":
            graph.add_edge(key(name), ("cpu",), capacity=_nanoseconds(vta))
        else:
            graph.add_edge(key(name), ("cpu",))
    for tensor, read_by in readers.items():
        if tensor not in elements:
            continue
        cost = _nanoseconds(elements[tensor] / host.conversions)
        packed, unpacked = ("packed", tensor), ("unpacked", tensor)
        graph.add_edge(packed, key(tensor), capacity=cost + _nanoseconds(penalties.tensor_seconds(tensor)))
        graph.add_edge(key(tensor), unpacked, capacity=cost)
        for reader in read_by:
            graph.add_edge(key(reader), packed)
            graph.add_edge(unpacked, key(reader))
    _, (side, _) = nx.minimum_cut(graph, ("vta",), ("cpu",))
    return {node[1] for node in side if node[0] == "layer"}


def _fewer_regions(
    nodes: Sequence[PartNode],
    outputs: set[str],
    on_vta: set[str],
    times: Mapping[str, tuple[float | None, float]],
    forced: Mapping[str, Device],
    host: HostSpeed,
    penalties: Penalties = _NONE,
) -> set[str]:
    """Move regions to the CPU as long as that takes less time: a cut does not know what it costs to start a program."""

    def seconds(chosen: set[str]) -> float:
        layers = sum((vta or 0.0) if name in chosen else cpu for name, (vta, cpu) in times.items())
        packed = sum(penalties.tensor_seconds(name) for name in packed_tensors(nodes, chosen))
        starts = host.start * len(_regions(nodes, chosen))
        return layers + packed + conversion_seconds(nodes, outputs, chosen, host) + starts

    while True:
        free = [{name for name in region if forced.get(name) != "vta"} for region in _regions(nodes, on_vta)]
        choices = [on_vta - region for region in free if region]
        best = min(choices, key=seconds, default=on_vta)
        if seconds(best) >= seconds(on_vta):
            return on_vta
        on_vta = best


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


def _readers(nodes: Sequence[PartNode], outputs: set[str]) -> dict[str, list[str]]:
    """Return who reads each tensor; one that leaves the model is read by ``""``, which is no layer."""
    readers: dict[str, list[str]] = {name: [""] for name in outputs}
    for node in nodes:
        for name in node.inputs:
            readers.setdefault(name, []).append(node.name)
    return readers


def _elements(nodes: Sequence[PartNode]) -> dict[str, int]:
    """Return the number of values of each tensor that a layer reads or gives."""
    found: dict[str, int] = {}
    for node in nodes:
        if node.layer is None:
            continue
        for name, shape in zip(node.layer.inputs, (node.layer.in_shape, node.layer.out_shape), strict=False):
            found[name] = shape[0] * shape[1] * shape[2] * shape[3]
        shape = node.layer.out_shape
        found[node.name] = shape[0] * shape[1] * shape[2] * shape[3]
    return found


def conversion_seconds(
    nodes: Sequence[PartNode], outputs: Iterable[str], on_vta: set[str] | frozenset[str], host: HostSpeed
) -> float:
    """Sum up the times of all tensors that are made on one side and read on the other."""
    elements = _elements(nodes)
    total = 0.0
    for tensor, read_by in _readers(nodes, set(outputs)).items():
        if any((reader in on_vta) != (tensor in on_vta) for reader in read_by):
            total += elements[tensor] / host.conversions
    return total


def packed_tensors(nodes: Sequence[PartNode], on_vta: set[str] | frozenset[str]) -> set[str]:
    """Return the tensors that are not made on VTA and that it reads."""
    return {name for node in nodes if node.name in on_vta for name in node.inputs if name not in on_vta}


def _reason(
    node: PartNode,
    device: Device,
    vta: float | None,
    cpu: float,
    block: int,
    problems: Mapping[str, str],
    forced: Mapping[str, Device],
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
    why = "" if faster else ", but conversions at the border, and starting programs, would take longer than it saves"
    return f"{vta * 1e3:.3g} ms on VTA{padded}, {cpu * 1e3:.3g} ms on the CPU{why}"


def _regions(nodes: Sequence[PartNode], on_vta: set[str]) -> tuple[tuple[str, ...], ...]:
    """Put layers together that can run in one go: nothing on the CPU lies between them.

    A layer's region is one more than the regions that something on the CPU, which it depends on, comes after.
    """
    number: dict[str, int] = {}
    for node in nodes:
        before = [(name, number[name]) for name in node.inputs if name in number]
        if node.name in on_vta:
            number[node.name] = max((at for _, at in before), default=0)
        else:
            number[node.name] = max((at + (name in on_vta) for name, at in before), default=0)
    regions: dict[int, list[str]] = {}
    for node in nodes:
        if node.name in on_vta:
            regions.setdefault(number[node.name], []).append(node.name)
    return tuple(tuple(regions[at]) for at in sorted(regions))


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
