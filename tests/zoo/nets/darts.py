"""The image classifier that DARTS found (Liu et al., 2019, "DARTS", second order; cells of figures 4 and 5)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

# A cell's nodes 0 and 1 are the outputs of the two cells before; each further node adds two (operation, source node)
# pairs.
Pair = tuple[str, int]


@dataclass(frozen=True)
class Genotype:
    """Both cells: two pairs for each of the four inner nodes; all inner nodes are concatenated."""

    normal: tuple[Pair, ...]
    reduction: tuple[Pair, ...]


DARTS_V2 = Genotype(
    normal=(
        ("sep_conv_3x3", 0),
        ("sep_conv_3x3", 1),
        ("sep_conv_3x3", 0),
        ("sep_conv_3x3", 1),
        ("sep_conv_3x3", 1),
        ("skip_connect", 0),
        ("skip_connect", 0),
        ("dil_conv_3x3", 2),
    ),
    reduction=(
        ("max_pool_3x3", 0),
        ("max_pool_3x3", 1),
        ("skip_connect", 2),
        ("max_pool_3x3", 1),
        ("max_pool_3x3", 0),
        ("skip_connect", 2),
        ("skip_connect", 2),
        ("max_pool_3x3", 1),
    ),
)


def _relu_conv(channels_in: int, channels_out: int) -> nn.Sequential:
    return nn.Sequential(nn.ReLU(), nn.Conv2d(channels_in, channels_out, 1, bias=False), nn.BatchNorm2d(channels_out))


def _separable(channels: int, stride: int, dilation: int) -> nn.Sequential:
    """ReLU, depthwise 3x3, pointwise, normalisation."""
    return nn.Sequential(
        nn.ReLU(),
        nn.Conv2d(channels, channels, 3, stride, dilation, dilation, groups=channels, bias=False),
        nn.Conv2d(channels, channels, 1, bias=False),
        nn.BatchNorm2d(channels),
    )


class FactorizedReduce(nn.Module):
    """Halve the size by two 1x1 convolutions of stride 2, one pixel apart, each giving half of the channels."""

    def __init__(self, channels_in: int, channels_out: int) -> None:
        super().__init__()
        self.relu = nn.ReLU()
        self.even = nn.Conv2d(channels_in, channels_out // 2, 1, 2, bias=False)
        self.odd = nn.Conv2d(channels_in, channels_out // 2, 1, 2, bias=False)
        self.norm = nn.BatchNorm2d(channels_out)

    def forward(self, x: Tensor) -> Tensor:
        """(N, C_in, H, W) -> (N, C_out, H / 2, W / 2)."""
        x = self.relu(x)
        return self.norm(torch.cat([self.even(x), self.odd(x[:, :, 1:, 1:])], dim=1))


def _operation(name: str, channels: int, stride: int) -> nn.Module:
    match name:
        case "sep_conv_3x3":
            return nn.Sequential(_separable(channels, stride, 1), _separable(channels, 1, 1))
        case "dil_conv_3x3":
            return _separable(channels, stride, 2)
        case "max_pool_3x3":
            return nn.MaxPool2d(3, stride, 1)
        case "skip_connect":
            return nn.Identity() if stride == 1 else FactorizedReduce(channels, channels)
    raise ValueError(f"no operation '{name}' in the search space")


class Cell(nn.Module):
    """One cell; in a reduction cell the operations on the two inputs have stride 2."""

    def __init__(
        self, pairs: tuple[Pair, ...], inputs: tuple[int, int], channels: int, halves: tuple[bool, bool]
    ) -> None:
        super().__init__()
        reduction, reduction_before = halves
        self.sources = [source for _, source in pairs]
        first, second = inputs
        self.first = FactorizedReduce(first, channels) if reduction_before else _relu_conv(first, channels)
        self.second = _relu_conv(second, channels)
        self.operations = nn.ModuleList(
            _operation(name, channels, 2 if reduction and source < 2 else 1) for name, source in pairs
        )

    def forward(self, before_last: Tensor, last: Tensor) -> Tensor:
        """The two cells' outputs before -> (N, 4 * channels, H, W)."""
        nodes = [self.first(before_last), self.second(last)]
        results = zip(self.operations[::2], self.operations[1::2], self.sources[::2], self.sources[1::2], strict=True)
        for left, right, left_source, right_source in results:
            nodes.append(left(nodes[left_source]) + right(nodes[right_source]))
        return torch.cat(nodes[2:], dim=1)


class DartsNet(nn.Module):
    """A stem and ``layers`` cells, reduction cells at one and two thirds of the depth (sizes for CIFAR-10)."""

    def __init__(self, channels: int = 36, layers: int = 20, classes: int = 10, genotype: Genotype = DARTS_V2) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 3 * channels, 3, padding=1, bias=False), nn.BatchNorm2d(3 * channels))
        cells = []
        before_last = last = 3 * channels
        reduction_before = False
        for layer in range(layers):
            reduction = layer in (layers // 3, 2 * layers // 3)
            channels *= 2 if reduction else 1
            pairs = genotype.reduction if reduction else genotype.normal
            cells.append(Cell(pairs, (before_last, last), channels, (reduction, reduction_before)))
            before_last, last, reduction_before = last, 4 * channels, reduction
        self.cells = nn.ModuleList(cells)
        self.average = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(last, classes)

    def forward(self, image: Tensor) -> Tensor:
        """(N, 3, H, W) -> logits (N, classes)."""
        before_last = last = self.stem(image)
        for cell in self.cells:
            before_last, last = last, cell(before_last, last)
        return self.classifier(self.average(last).flatten(1))
