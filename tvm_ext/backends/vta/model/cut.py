"""The least time over all assignments of nodes to two sides, as a minimum cut.

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

from tvm_ext.backends.vta.model.host import HostSpeed
from tvm_ext.backends.vta.model.layers import Layer

Device = Literal["vta", "cpu"]


class PartNode(Protocol):
    """A node of the model, as :class:`tvm_ext.backends.vta.model.relax_layers.Node` is one."""

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


NO_PENALTIES = Penalties(0.0, {}, {})


def minimum_cut(
    nodes: Sequence[PartNode],
    outputs: set[str],
    times: Mapping[str, tuple[float | None, float]],
    forced: Mapping[str, Device],
    host: HostSpeed,
    penalties: Penalties = NO_PENALTIES,
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


def fewer_regions(
    nodes: Sequence[PartNode],
    outputs: set[str],
    on_vta: set[str],
    times: Mapping[str, tuple[float | None, float]],
    forced: Mapping[str, Device],
    host: HostSpeed,
    penalties: Penalties = NO_PENALTIES,
) -> set[str]:
    """Move regions to the CPU as long as that takes less time: a cut does not know what it costs to start a program."""

    def seconds(chosen: set[str]) -> float:
        layers = sum((vta or 0.0) if name in chosen else cpu for name, (vta, cpu) in times.items())
        packed = sum(penalties.tensor_seconds(name) for name in packed_tensors(nodes, chosen))
        starts = host.start * len(regions_of(nodes, chosen))
        return layers + packed + conversion_seconds(nodes, outputs, chosen, host) + starts

    while True:
        free = [{name for name in region if forced.get(name) != "vta"} for region in regions_of(nodes, on_vta)]
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


def regions_of(nodes: Sequence[PartNode], on_vta: set[str]) -> tuple[tuple[str, ...], ...]:
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
