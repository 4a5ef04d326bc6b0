"""ResNet-18 (He et al., 2016, "Deep Residual Learning for Image Recognition", table 1)."""

from __future__ import annotations

from torch import Tensor, nn

from tests.zoo.nets.layers import conv_norm


class BasicBlock(nn.Module):
    """Two 3x3 convolutions around which the input is added; a 1x1 convolution where the shape changes."""

    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        self.first = conv_norm(channels_in, channels_out, 3, stride)
        self.second = conv_norm(channels_out, channels_out, 3, activation=None)
        same_shape = stride == 1 and channels_in == channels_out
        self.shortcut = (
            nn.Identity() if same_shape else conv_norm(channels_in, channels_out, 1, stride, activation=None)
        )
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """(N, C_in, H, W) -> (N, C_out, H / stride, W / stride)."""
        return self.relu(self.second(self.first(x)) + self.shortcut(x))


class ResNet18(nn.Module):
    """Stem, four stages of two basic blocks, average pooling, classifier."""

    def __init__(self, classes: int = 1000, width: int = 64) -> None:
        super().__init__()
        self.stem = conv_norm(3, width, 7, 2)
        self.pool = nn.MaxPool2d(3, 2, 1)
        blocks = []
        channels = width
        for stage in range(4):
            wider = width * 2**stage
            blocks += [BasicBlock(channels, wider, 1 if stage == 0 else 2), BasicBlock(wider, wider, 1)]
            channels = wider
        self.blocks = nn.Sequential(*blocks)
        self.average = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(channels, classes)

    def forward(self, image: Tensor) -> Tensor:
        """(N, 3, H, W) -> logits (N, classes)."""
        features = self.blocks(self.pool(self.stem(image)))
        return self.classifier(self.average(features).flatten(1))
