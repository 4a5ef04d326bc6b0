"""GhostNet without squeeze and excitation (Han et al., CVPR 2020), with made-up weights: halves side by side."""

from __future__ import annotations

import torch
from torch import nn

# Taps, channels inside, channels of the result, stride: table 1 of the paper.
ROWS = (
    (3, 16, 16, 1), (3, 48, 24, 2), (3, 72, 24, 1), (5, 72, 40, 2), (5, 120, 40, 1), (3, 240, 80, 2), (3, 200, 80, 1),
    (3, 184, 80, 1), (3, 184, 80, 1), (3, 480, 112, 1), (3, 672, 112, 1), (5, 672, 160, 2), (5, 960, 160, 1),
    (5, 960, 160, 1), (5, 960, 160, 1), (5, 960, 160, 1),
)  # fmt: skip


def _convolution(channels: int, results: int, taps: int, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    return nn.Conv2d(channels, results, taps, stride, taps // 2, groups=groups)


class Ghost(nn.Module):
    """Half of the channels by a convolution of one tap, the other half from these, channel by channel."""

    def __init__(self, channels: int, results: int, relu: bool) -> None:
        super().__init__()
        half = results // 2
        self.primary, self.cheap = _convolution(channels, half, 1), _convolution(half, half, 3, groups=half)
        self.act = nn.ReLU() if relu else nn.Identity()

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Compute both halves."""
        made = self.act(self.primary(image))
        return torch.cat([made, self.act(self.cheap(made))], 1)


class Bottleneck(nn.Module):
    """Two ghosts, a depthwise convolution between them where rows and columns become fewer, and a shortcut."""

    def __init__(self, channels: int, taps: int, inside: int, results: int, stride: int) -> None:
        super().__init__()
        between = [_convolution(inside, inside, taps, stride, inside)] if stride > 1 else []
        self.body = nn.Sequential(Ghost(channels, inside, True), *between, Ghost(inside, results, False))
        is_same = stride == 1 and channels == results
        self.shortcut = nn.Identity() if is_same else nn.Sequential(
            _convolution(channels, channels, taps, stride, channels), _convolution(channels, results, 1)
        )  # fmt: skip

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Add the shortcut."""
        return self.body(image) + self.shortcut(image)


def ghostnet() -> nn.Module:
    """Make the network, for images of 224 x 224 or other sizes."""
    torch.manual_seed(0)
    layers: list[nn.Module] = [_convolution(3, 16, 3, 2), nn.ReLU()]
    channels = 16
    for taps, inside, results, stride in ROWS:
        layers.append(Bottleneck(channels, taps, inside, results, stride))
        channels = results
    layers += [_convolution(channels, 960, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(960, 1000)]
    return nn.Sequential(*layers).eval()
