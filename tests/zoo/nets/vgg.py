"""VGG-16 (Simonyan and Zisserman, 2015, "Very Deep Convolutional Networks", table 1, column D)."""

from __future__ import annotations

from torch import Tensor, nn

# channels of the 3x3 convolutions of each stage, in units of the width; a 2x2 max-pool ends each stage
_STAGES = ((1, 1), (2, 2), (4, 4, 4), (8, 8, 8), (8, 8, 8))


class VGG16(nn.Module):
    """Thirteen 3x3 convolutions and three dense layers, all with biases and no normalisation."""

    def __init__(self, classes: int = 1000, width: int = 64, hidden: int = 4096, size: int = 224) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for stage in _STAGES:
            for factor in stage:
                layers += [nn.Conv2d(channels, width * factor, 3, padding=1), nn.ReLU()]
                channels = width * factor
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(
            nn.Linear(channels * (size // 32) ** 2, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, classes),
        )

    def forward(self, image: Tensor) -> Tensor:
        """(N, 3, size, size) -> logits (N, classes)."""
        return self.classifier(self.features(image).flatten(1))
