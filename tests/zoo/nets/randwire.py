"""Randomly wired networks (Xie et al., 2019, "Exploring Randomly Wired Neural Networks for Image Recognition")."""

from __future__ import annotations

from typing import Literal

import networkx as nx
import torch
from torch import Tensor, nn

from tests.zoo.nets.layers import conv_norm

Generator = Literal["ER", "BA", "WS"]


def random_graph(generator: Generator, nodes: int, seed: int) -> nx.DiGraph:
    """Draw a graph (section 3.3; parameters of section 4) and direct each edge from the lower to the higher index."""
    match generator:
        case "ER":
            graph = nx.erdos_renyi_graph(nodes, 0.2, seed=seed)
        case "BA":
            graph = nx.barabasi_albert_graph(nodes, 5, seed=seed)
        case "WS":
            graph = nx.connected_watts_strogatz_graph(nodes, 4, 0.75, seed=seed)
    directed = nx.DiGraph()
    directed.add_nodes_from(range(nodes))
    directed.add_edges_from((min(edge), max(edge)) for edge in graph.edges)
    return directed


class Node(nn.Module):
    """Sum of the inputs with learned positive weights, then ReLU, separable 3x3 convolution, normalisation."""

    def __init__(self, inputs: int, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        self.mix = nn.Parameter(torch.zeros(inputs)) if inputs > 1 else None
        self.relu = nn.ReLU()
        self.depthwise = nn.Conv2d(channels_in, channels_in, 3, stride, 1, groups=channels_in, bias=False)
        self.pointwise = nn.Conv2d(channels_in, channels_out, 1, bias=False)
        self.norm = nn.BatchNorm2d(channels_out)

    def forward(self, inputs: list[Tensor]) -> Tensor:
        """(N, C_in, H, W) each -> (N, C_out, H / stride, W / stride)."""
        total = inputs[0]
        if self.mix is not None:
            gates = torch.sigmoid(self.mix)
            total = inputs[0] * gates[0]
            for index, value in enumerate(inputs[1:], start=1):
                total = total + value * gates[index]
        return self.norm(self.pointwise(self.depthwise(self.relu(total))))


class Stage(nn.Module):
    """A random graph: nodes without predecessor read the stage's input at stride 2, the ends are averaged."""

    def __init__(self, graph: nx.DiGraph, channels_in: int, channels_out: int) -> None:
        super().__init__()
        self.sources = [sorted(graph.predecessors(node)) for node in range(len(graph))]
        self.ends = [node for node in range(len(graph)) if graph.out_degree(node) == 0]
        self.nodes = nn.ModuleList(
            Node(len(sources), channels_out, channels_out, 1) if sources else Node(1, channels_in, channels_out, 2)
            for sources in self.sources
        )

    def forward(self, x: Tensor) -> Tensor:
        """(N, C_in, H, W) -> (N, C_out, H / 2, W / 2)."""
        values: list[Tensor] = []
        for node, sources in zip(self.nodes, self.sources, strict=True):
            values.append(node([values[source] for source in sources] or [x]))
        return torch.stack([values[end] for end in self.ends]).mean(dim=0)


class RandWire(nn.Module):
    """The small regime of table 1: two convolutions, three random stages, a 1x1 head and the classifier."""

    def __init__(
        self,
        generator: Generator = "WS",
        seed: int = 0,
        channels: int = 78,
        nodes: int = 32,
        classes: int = 1000,
        head: int = 1280,
    ) -> None:
        super().__init__()
        self.stem = conv_norm(3, channels // 2, 3, 2)
        # Without activation at its end: the nodes begin with one.
        self.second = conv_norm(channels // 2, channels, 3, 2, activation=None)
        sizes = [channels, channels, 2 * channels, 4 * channels]
        self.stages = nn.Sequential(
            *(Stage(random_graph(generator, nodes, 3 * seed + i), sizes[i], sizes[i + 1]) for i in range(3))
        )
        self.head = nn.Sequential(nn.ReLU(), conv_norm(sizes[3], head, 1))
        self.average = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(head, classes)

    def forward(self, image: Tensor) -> Tensor:
        """(N, 3, H, W) -> logits (N, classes)."""
        features = self.head(self.stages(self.second(self.stem(image))))
        return self.classifier(self.average(features).flatten(1))
