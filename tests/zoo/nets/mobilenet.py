"""MobileNetV2 (Sandler et al., 2018, "Inverted Residuals and Linear Bottlenecks", table 2)."""

from __future__ import annotations

from torch import Tensor, nn

from tests.zoo.nets.layers import conv_norm

# expansion t, channels c, repeats n, first stride s: the rows of table 2
_STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


class InvertedResidual(nn.Module):
    """Expand, filter each channel, project without activation; the input is added where the shape stays."""

    def __init__(self, channels_in: int, channels_out: int, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = channels_in * expansion
        layers: list[nn.Module] = []
        if expansion != 1:
            layers.append(conv_norm(channels_in, hidden, 1, activation=nn.ReLU6))
        layers.append(conv_norm(hidden, hidden, 3, stride, groups=hidden, activation=nn.ReLU6))
        layers.append(conv_norm(hidden, channels_out, 1, activation=None))
        self.layers = nn.Sequential(*layers)
        self.residual = stride == 1 and channels_in == channels_out

    def forward(self, x: Tensor) -> Tensor:
        """(N, C_in, H, W) -> (N, C_out, H / stride, W / stride)."""
        return x + self.layers(x) if self.residual else self.layers(x)


class MobileNetV2(nn.Module):
    """Stem, inverted residuals, 1x1 head, classifier; ``width`` scales all channels but the head's."""

    def __init__(self, classes: int = 1000, width: float = 1.0, head: int = 1280) -> None:
        super().__init__()
        channels = int(32 * width)
        layers: list[nn.Module] = [conv_norm(3, channels, 3, 2, activation=nn.ReLU6)]
        for expansion, base, repeats, first_stride in _STAGES:
            for repeat in range(repeats):
                stride = first_stride if repeat == 0 else 1
                layers.append(InvertedResidual(channels, int(base * width), stride, expansion))
                channels = int(base * width)
        layers.append(conv_norm(channels, head, 1, activation=nn.ReLU6))
        self.features = nn.Sequential(*layers)
        self.average = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(head, classes)

    def forward(self, image: Tensor) -> Tensor:
        """(N, 3, H, W) -> logits (N, classes)."""
        return self.classifier(self.average(self.features(image)).flatten(1))
