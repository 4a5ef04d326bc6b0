"""Single cells of irregularly wired nets, for memory planning: each with a small head, so that its result is no output.

- NASNet-A (Zoph et al., 2018, "Learning Transferable Architectures for Scalable Image Recognition", figure 4);
- AmoebaNet-A (Real et al., 2019, "Regularized Evolution for Image Classifier Architecture Search");
- the normal cell of DARTS at the size of its ImageNet net (:mod:`tests.zoo.nets.darts`);
- one stage of RandWire (:mod:`tests.zoo.nets.randwire`) at sizes for CIFAR images;
- cells in the manner of SwiftNet (Cheng et al., 2019, "SwiftNet: Using Graph Propagation as Meta-knowledge to Search
  Highly Representative Neural Architectures"), whose wirings are not published: random ones with the numbers of
  operators that B. H. Ahn et al. (MLSys 2020) state, 21, 19 and 22, convolutions of concatenations among them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from tests.zoo.nets.darts import DARTS_V2
from tests.zoo.nets.darts import Cell as DartsCell
from tests.zoo.nets.randwire import Generator, Stage, random_graph


@dataclass(frozen=True)
class Wiring:
    """Five blocks of two operations; states 0 and 1 are the cell's inputs (last, before last), block i is state i + 2.

    The states that no operation reads are concatenated.
    """

    operations: tuple[str, ...]
    sources: tuple[int, ...]
    stride: int = 1

    @property
    def ends(self) -> list[int]:
        """The states that are concatenated."""
        return [state for state in range(len(self.operations) // 2 + 2) if state not in self.sources]


NASNET_NORMAL = Wiring(
    ("sep5", "sep3", "sep5", "sep3", "avg3", "none", "avg3", "avg3", "sep3", "none"), (0, 1, 1, 1, 0, 1, 1, 1, 0, 0)
)
NASNET_REDUCTION = Wiring(
    ("sep5", "sep7", "max3", "sep7", "avg3", "sep5", "none", "avg3", "sep3", "max3"),
    (0, 1, 0, 1, 0, 1, 3, 2, 2, 0),
    stride=2,
)
AMOEBANET_NORMAL = Wiring(
    ("avg3", "max3", "sep3", "none", "none", "avg3", "sep5", "sep3", "avg3", "sep3"), (0, 0, 1, 1, 0, 1, 0, 2, 5, 0)
)


def _separable(channels: int, kernel: int, stride: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for step in (stride, 1):
        layers += [
            nn.ReLU(),
            nn.Conv2d(channels, channels, kernel, step, kernel // 2, groups=channels, bias=False),
            nn.Conv2d(channels, channels, 1, bias=False),
            nn.BatchNorm2d(channels),
        ]
    return nn.Sequential(*layers)


def _operation(name: str, channels: int, stride: int) -> nn.Module:
    match name:
        case "none":
            return nn.Identity() if stride == 1 else nn.Conv2d(channels, channels, 1, stride, bias=False)
        case "avg3":
            return nn.AvgPool2d(3, stride, 1, count_include_pad=False)
        case "max3":
            return nn.MaxPool2d(3, stride, 1)
    return _separable(channels, int(name.removeprefix("sep")), stride)


class Head(nn.Module):
    """What the next cell begins with, a ReLU and a 1x1 convolution to ``width`` channels; then ten numbers."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.squeeze = nn.Sequential(nn.ReLU(), nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm2d(width))
        self.classifier = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) -> (N, 10)."""
        return self.classifier(self.squeeze(x).mean(dim=(2, 3)))


class WiredCell(nn.Module):
    """A cell of NASNet or AmoebaNet: both inputs by 1x1 convolutions to ``channels``, the blocks, the head."""

    def __init__(self, wiring: Wiring, inputs: tuple[int, int], channels: int) -> None:
        super().__init__()
        self.wiring = wiring
        self.squeeze = nn.ModuleList(
            nn.Sequential(nn.ReLU(), nn.Conv2d(count, channels, 1, bias=False), nn.BatchNorm2d(channels))
            for count in inputs
        )
        self.operations = nn.ModuleList(
            _operation(name, channels, wiring.stride if source < 2 else 1)
            for name, source in zip(wiring.operations, wiring.sources, strict=True)
        )
        self.head = Head(channels * len(wiring.ends), channels)

    def forward(self, last: Tensor, before_last: Tensor) -> Tensor:
        """(N, C, H, W) each -> (N, 10)."""
        states = [squeeze(value) for squeeze, value in zip(self.squeeze, (last, before_last), strict=True)]
        for block in range(len(self.operations) // 2):
            left, right = 2 * block, 2 * block + 1
            states.append(
                self.operations[left](states[self.wiring.sources[left]])
                + self.operations[right](states[self.wiring.sources[right]])
            )
        return self.head(torch.cat([states[end] for end in self.wiring.ends], dim=1))


class DartsNormalCell(nn.Module):
    """The first normal cell of DARTS for ImageNet: 48 channels, 28 x 28."""

    def __init__(self, channels: int = 48) -> None:
        super().__init__()
        self.cell = DartsCell(DARTS_V2.normal, (channels, channels), channels, (False, False))
        self.head = Head(4 * channels, channels)

    def forward(self, before_last: Tensor, last: Tensor) -> Tensor:
        """(N, C, H, W) each -> (N, 10)."""
        return self.head(self.cell(before_last, last))


class RandWireStage(nn.Module):
    """One stage of 32 nodes."""

    def __init__(self, generator: Generator, seed: int, channels: int) -> None:
        super().__init__()
        self.stage = Stage(random_graph(generator, 32, seed), channels, channels)
        self.head = Head(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) -> (N, 10)."""
        return self.head(self.stage(x))


class SwiftCell(nn.Module):
    """A random cell of ``operators`` operators: 1x1 and depthwise convolutions, some of concatenations."""

    def __init__(self, operators: int, channels: int, seed: int) -> None:
        super().__init__()
        generator = np.random.default_rng(seed)
        self.sources: list[list[int]] = []
        self.layers = nn.ModuleList()
        widths = [channels]
        left = operators - 2  # the last concatenation and its convolution
        while left > 0:
            recent = list(range(max(0, len(widths) - 6), len(widths)))
            if left >= 2 and len(recent) > 2 and generator.random() < 0.35:
                count = int(generator.integers(2, min(4, len(recent)) + 1))
                sources = sorted(generator.choice(recent, count, replace=False).tolist())
                left -= 2
            else:
                sources = [recent[int(generator.integers(0, len(recent)))]]
                left -= 1
            width = sum(widths[source] for source in sources)
            if len(sources) == 1 and generator.random() < 0.5:
                layer: nn.Module = nn.Conv2d(width, width, 3, padding=1, groups=width)
            elif len(sources) > 1 and generator.random() < 0.3:
                layer = nn.Conv2d(width, width, 3, padding=1, groups=width)
            else:
                width, into = channels * int(generator.integers(1, 3)), width
                layer = nn.Conv2d(into, width, 1)
            self.sources.append(sources)
            self.layers.append(layer)
            widths.append(width)
        read = {source for sources in self.sources for source in sources}
        self.ends = [node for node in range(1, len(widths)) if node not in read]
        self.last = nn.Conv2d(sum(widths[end] for end in self.ends), channels, 1)
        self.head = Head(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) -> (N, 10)."""
        values = [x]
        for sources, layer in zip(self.sources, self.layers, strict=True):
            values.append(layer(torch.cat([values[source] for source in sources], dim=1)))
        return self.head(self.last(torch.cat([values[end] for end in self.ends], dim=1)))


def cells() -> dict[str, tuple[nn.Module, tuple[tuple[int, ...], ...]]]:
    """Make all cells, weights drawn, in evaluation mode: module and input shapes by name."""
    torch.manual_seed(0)
    found: dict[str, tuple[nn.Module, tuple[tuple[int, ...], ...]]] = {
        "darts_normal": (DartsNormalCell(), ((1, 48, 28, 28),) * 2),
        "nasnet_normal": (WiredCell(NASNET_NORMAL, (64, 64), 32), ((1, 64, 32, 32),) * 2),
        "nasnet_reduction": (WiredCell(NASNET_REDUCTION, (64, 64), 64), ((1, 64, 32, 32),) * 2),
        "amoebanet_normal": (WiredCell(AMOEBANET_NORMAL, (64, 64), 32), ((1, 64, 32, 32),) * 2),
    }
    for letter, operators, size in (("a", 21, 56), ("b", 19, 28), ("c", 22, 14)):
        for seed in (0, 1):
            found[f"swiftnet_{letter}{seed}"] = (SwiftCell(operators, 16, seed), ((1, 16, size, size),))
    sizes = {"cifar10": (48, 32), "cifar100": (96, 16)}
    for generator in ("ER", "BA", "WS"):
        for seed, (images, (channels, size)) in enumerate(sizes.items()):
            name = f"randwire_{generator.lower()}_{images}"
            found[name] = (RandWireStage(generator, 10 + seed, channels), ((1, channels, size, size),))
    return {name: (module.eval(), shapes) for name, (module, shapes) in found.items()}
