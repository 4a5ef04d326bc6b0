"""U-Net (Ronneberger et al., 2015), with padded convolutions and batch normalisation as it is used today."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

from tests.zoo.nets.layers import conv_norm


def _double(channels_in: int, channels_out: int) -> nn.Sequential:
    return nn.Sequential(conv_norm(channels_in, channels_out), conv_norm(channels_out, channels_out))


class UNet(nn.Module):
    """Four times down, four times up, with a copy of the features carried across at each level."""

    def __init__(self, classes: int = 2, width: int = 64) -> None:
        super().__init__()
        channels = [width * 2**level for level in range(5)]
        self.stem = _double(3, width)
        self.pool = nn.MaxPool2d(2)
        self.down = nn.ModuleList(_double(a, b) for a, b in pairwise(channels))
        upwards = list(zip(channels[:0:-1], channels[-2::-1], strict=True))
        self.up = nn.ModuleList(nn.ConvTranspose2d(a, b, 2, 2) for a, b in upwards)
        self.merge = nn.ModuleList(_double(a, b) for a, b in upwards)
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, image: Tensor) -> Tensor:
        """(N, 3, H, W) with H and W multiples of 16 -> logits (N, classes, H, W)."""
        levels = [self.stem(image)]
        for down in self.down:
            levels.append(down(self.pool(levels[-1])))
        x = levels.pop()
        for up, merge in zip(self.up, self.merge, strict=True):
            x = merge(torch.cat([levels.pop(), up(x)], dim=1))
        return self.head(x)
