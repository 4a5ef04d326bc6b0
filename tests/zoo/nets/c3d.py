"""C3D (Tran et al., 2015, "Learning Spatiotemporal Features with 3D Convolutional Networks", figure 3)."""

from __future__ import annotations

from torch import Tensor, nn

# channels of the 3x3x3 convolutions of each stage, in units of the width
_STAGES = ((1,), (2,), (4, 4), (8, 8), (8, 8))


class C3D(nn.Module):
    """Eight 3x3x3 convolutions with pooling after each stage, and three dense layers; takes clips of 16 frames."""

    def __init__(self, classes: int = 101, width: int = 64, hidden: int = 4096, size: int = 112) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for index, stage in enumerate(_STAGES):
            for factor in stage:
                layers += [nn.Conv3d(channels, width * factor, 3, padding=1), nn.ReLU()]
                channels = width * factor
            # The first pooling keeps the frames, the last one pads so that 7 rows become 4.
            padding = (0, 1, 1) if index == 4 else 0
            layers.append(nn.MaxPool3d((1, 2, 2) if index == 0 else 2, padding=padding))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(
            nn.Linear(channels * (size // 16 // 2 + 1) ** 2, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, classes),
        )

    def forward(self, clip: Tensor) -> Tensor:
        """(N, 3, 16, size, size) -> logits (N, classes)."""
        return self.classifier(self.features(clip).flatten(1))
