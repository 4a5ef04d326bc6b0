"""What the convolutional nets share."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

Activation = Callable[[], nn.Module]


def conv_norm(
    channels_in: int,
    channels_out: int,
    kernel: int = 3,
    stride: int = 1,
    *,
    groups: int = 1,
    activation: Activation | None = nn.ReLU,
) -> nn.Sequential:
    """Convolution that keeps the size (up to the stride), batch normalisation, activation."""
    convolution = nn.Conv2d(channels_in, channels_out, kernel, stride, kernel // 2, groups=groups, bias=False)
    layers: list[nn.Module] = [convolution, nn.BatchNorm2d(channels_out)]
    if activation is not None:
        layers.append(activation())
    return nn.Sequential(*layers)
