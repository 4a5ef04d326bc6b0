"""EfficientNet-B0 (Tan and Le, 2019, "EfficientNet", table 1) with squeeze-and-excitation (Hu et al., 2018)."""

from __future__ import annotations

from torch import Tensor, nn

from tests.zoo.nets.layers import conv_norm

# expansion, channels, repeats, first stride, kernel: stages 2 to 8 of table 1
_STAGES = (
    (1, 16, 1, 1, 3),
    (6, 24, 2, 2, 3),
    (6, 40, 2, 2, 5),
    (6, 80, 3, 2, 3),
    (6, 112, 3, 1, 5),
    (6, 192, 4, 2, 5),
    (6, 320, 1, 1, 3),
)


class SqueezeExcitation(nn.Module):
    """Scale each channel by a gate computed from the averages of all channels."""

    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.average = nn.AdaptiveAvgPool2d(1)
        self.reduce = nn.Conv2d(channels, squeezed, 1)
        self.activation = nn.SiLU()
        self.expand = nn.Conv2d(squeezed, channels, 1)
        self.gate = nn.Sigmoid()

    def forward(self, x: Tensor) -> Tensor:
        """Shape is kept."""
        return x * self.gate(self.expand(self.activation(self.reduce(self.average(x)))))


class MBConv(nn.Module):
    """Inverted residual with squeeze-and-excitation to a quarter of the block's input channels."""

    def __init__(self, channels_in: int, channels_out: int, stride: int, expansion: int, kernel: int) -> None:
        super().__init__()
        hidden = channels_in * expansion
        layers: list[nn.Module] = []
        if expansion != 1:
            layers.append(conv_norm(channels_in, hidden, 1, activation=nn.SiLU))
        layers.append(conv_norm(hidden, hidden, kernel, stride, groups=hidden, activation=nn.SiLU))
        layers.append(SqueezeExcitation(hidden, max(1, channels_in // 4)))
        layers.append(conv_norm(hidden, channels_out, 1, activation=None))
        self.layers = nn.Sequential(*layers)
        self.residual = stride == 1 and channels_in == channels_out

    def forward(self, x: Tensor) -> Tensor:
        """(N, C_in, H, W) -> (N, C_out, H / stride, W / stride)."""
        return x + self.layers(x) if self.residual else self.layers(x)


class EfficientNetB0(nn.Module):
    """Stem, seven stages of MBConv, 1x1 head, classifier; ``width`` scales all channels but the head's."""

    def __init__(self, classes: int = 1000, width: float = 1.0, head: int = 1280) -> None:
        super().__init__()
        channels = int(32 * width)
        layers: list[nn.Module] = [conv_norm(3, channels, 3, 2, activation=nn.SiLU)]
        for expansion, base, repeats, first_stride, kernel in _STAGES:
            for repeat in range(repeats):
                stride = first_stride if repeat == 0 else 1
                layers.append(MBConv(channels, int(base * width), stride, expansion, kernel))
                channels = int(base * width)
        layers.append(conv_norm(channels, head, 1, activation=nn.SiLU))
        self.features = nn.Sequential(*layers)
        self.average = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(head, classes)

    def forward(self, image: Tensor) -> Tensor:
        """(N, 3, H, W) -> logits (N, classes)."""
        return self.classifier(self.average(self.features(image)).flatten(1))
