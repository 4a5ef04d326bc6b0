"""Convolutional networks for exporters that keep every operator: S3D, YOLO-V4, and U-Net with its size arithmetic."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.zoo.nets.efficientnet import EfficientNetB0


def _conv3d(
    channels_in: int, channels_out: int, kernel: tuple[int, int, int], stride: tuple[int, int, int]
) -> nn.Module:
    padding = tuple(extent // 2 for extent in kernel)
    convolution = nn.Conv3d(channels_in, channels_out, kernel, stride, padding, bias=False)  # type: ignore[arg-type]
    return nn.Sequential(convolution, nn.BatchNorm3d(channels_out), nn.ReLU())


def _separable(channels_in: int, channels_out: int, size: int = 3, stride: int = 1) -> nn.Module:
    """A convolution over rows and columns, then one over time."""
    return nn.Sequential(
        _conv3d(channels_in, channels_out, (1, size, size), (1, stride, stride)),
        _conv3d(channels_out, channels_out, (size, 1, 1), (stride, 1, 1)),
    )


def _point(channels_in: int, channels_out: int) -> nn.Module:
    return _conv3d(channels_in, channels_out, (1, 1, 1), (1, 1, 1))


class Mixed(nn.Module):
    """An inception block whose 3 x 3 x 3 convolutions are separable."""

    def __init__(self, channels: int, widths: tuple[int, int, int, int, int, int]) -> None:
        super().__init__()
        one, two_in, two, three_in, three, four = widths
        self.branches = nn.ModuleList(
            [
                _point(channels, one),
                nn.Sequential(_point(channels, two_in), _separable(two_in, two)),
                nn.Sequential(_point(channels, three_in), _separable(three_in, three)),
                nn.Sequential(nn.MaxPool3d(3, 1, 1), _point(channels, four)),
            ]
        )

    def forward(self, x: Tensor) -> Tensor:
        """The branches side by side."""
        return torch.cat([branch(x) for branch in self.branches], 1)


# Widths of the branches (Xie et al., 2018, "Rethinking Spatiotemporal Feature Learning", after Inception-v1).
_MIXED = (
    ((64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64)),
    (
        (192, 96, 208, 16, 48, 64),
        (160, 112, 224, 24, 64, 64),
        (128, 128, 256, 24, 64, 64),
        (112, 144, 288, 32, 64, 64),
        (256, 160, 320, 32, 128, 128),
    ),
    ((256, 160, 320, 32, 128, 128), (384, 192, 384, 48, 128, 128)),
)


class S3D(nn.Module):
    """S3D (Xie et al., 2018): Inception with separable convolutions over space and time."""

    def __init__(self, classes: int = 400) -> None:
        super().__init__()
        layers: list[nn.Module] = [_separable(3, 64, 7, 2), nn.MaxPool3d((1, 3, 3), (1, 2, 2), (0, 1, 1))]
        layers += [_point(64, 64), _separable(64, 192), nn.MaxPool3d((1, 3, 3), (1, 2, 2), (0, 1, 1))]
        channels = 192
        for number, stage in enumerate(_MIXED):
            if number == 1:
                layers.append(nn.MaxPool3d(3, 2, 1))
            elif number == 2:
                layers.append(nn.MaxPool3d(2, 2))
            for widths in stage:
                layers.append(Mixed(channels, widths))
                channels = widths[0] + widths[2] + widths[4] + widths[5]
        self.features = nn.Sequential(*layers)
        self.head = nn.Conv3d(channels, classes, 1)

    def forward(self, clip: Tensor) -> Tensor:
        """(N, 3, frames, H, W) -> logits (N, classes)."""
        x = self.features(clip)
        x = F.avg_pool3d(x, (2, 7, 7), stride=1)
        return self.head(x).view(x.size(0), -1, x.size(2)).mean(2)


class _Conv(nn.Module):
    def __init__(self, channels_in: int, channels_out: int, size: int, stride: int = 1, mish: bool = False) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(channels_in, channels_out, size, stride, size // 2, bias=False)
        self.norm = nn.BatchNorm2d(channels_out)
        self.mish = mish

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.convolution(x))
        return x * torch.tanh(F.softplus(x)) if self.mish else F.leaky_relu(x, 0.1)


class _Stage(nn.Module):
    """A cross-stage partial block: half of the channels pass by the residual blocks."""

    def __init__(self, channels_in: int, channels: int, blocks: int, first: bool) -> None:
        super().__init__()
        half = channels if first else channels // 2
        self.down = _Conv(channels_in, channels, 3, 2, True)
        self.left, self.right = _Conv(channels, half, 1, 1, True), _Conv(channels, half, 1, 1, True)
        inner = channels // 2 if first else half
        self.blocks = nn.ModuleList(
            nn.Sequential(_Conv(half, inner, 1, 1, True), _Conv(inner, half, 3, 1, True)) for _ in range(blocks)
        )
        self.after, self.join = _Conv(half, half, 1, 1, True), _Conv(2 * half, channels, 1, 1, True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.down(x)
        left, right = self.left(x), self.right(x)
        for block in self.blocks:
            right = right + block(right)
        return self.join(torch.cat([self.after(right), left], 1))


def _alternate(channels: int, count: int) -> nn.Sequential:
    """1 x 1 convolutions to half of the channels, and 3 x 3 ones back, in turn."""
    sizes = [1 if number % 2 == 0 else 3 for number in range(count)]
    layers = [_Conv(channels if s == 1 else channels // 2, channels // 2 if s == 1 else channels, s) for s in sizes]
    return nn.Sequential(*layers)


class YoloV4(nn.Module):
    """YOLO-V4 (Bochkovskiy et al., 2020) up to the three convolutions that predict boxes."""

    def __init__(self, outputs: int = 255) -> None:
        super().__init__()
        self.stem = _Conv(3, 32, 3, 1, True)
        widths = (32, 64, 128, 256, 512, 1024)
        self.stages = nn.ModuleList(
            _Stage(widths[i], widths[i + 1], blocks, i == 0) for i, blocks in enumerate((1, 2, 8, 8, 4))
        )
        self.before, self.behind = _alternate(1024, 3), nn.Sequential(_Conv(2048, 512, 1), *_alternate(1024, 3)[1:])
        self.up = nn.ModuleList([_Conv(512, 256, 1), _Conv(256, 128, 1)])
        self.side = nn.ModuleList([_Conv(512, 256, 1), _Conv(256, 128, 1)])
        self.merge = nn.ModuleList([_alternate(512, 5), _alternate(256, 5)])
        self.down = nn.ModuleList([_Conv(128, 256, 3, 2), _Conv(256, 512, 3, 2)])
        self.back = nn.ModuleList([_alternate(512, 5), _alternate(1024, 5)])
        self.heads = nn.ModuleList(
            nn.Sequential(_Conv(w, 2 * w, 3), nn.Conv2d(2 * w, outputs, 1)) for w in (128, 256, 512)
        )

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        """(N, 3, H, W) -> predictions at strides 8, 16 and 32."""
        x, levels = self.stem(image), []
        for stage in self.stages:
            x = stage(x)
            levels.append(x)
        x = self.before(x)
        pooled = [F.max_pool2d(x, size, 1, size // 2) for size in (13, 9, 5)]
        paths = [self.behind(torch.cat([*pooled, x], 1))]
        for number in range(2):
            wide = F.interpolate(self.up[number](paths[-1]), size=levels[3 - number].size()[2:], mode="nearest")
            paths.append(self.merge[number](torch.cat([self.side[number](levels[3 - number]), wide], 1)))
        x = paths[2]
        results = [self.heads[0](x)]
        for number in range(2):
            x = self.back[number](torch.cat([self.down[number](x), paths[1 - number]], 1))
            results.append(self.heads[number + 1](x))
        return tuple(results)


class _Double(nn.Sequential):
    def __init__(self, channels_in: int, channels_out: int) -> None:
        layers: list[nn.Module] = []
        for channels in (channels_in, channels_out):
            layers += [nn.Conv2d(channels, channels_out, 3, padding=1), nn.BatchNorm2d(channels_out), nn.ReLU()]
        super().__init__(*layers)


class UNet(nn.Module):
    """U-Net (Ronneberger et al., 2015) for pictures of any size: what was rounded off going down is padded going up."""

    def __init__(self, classes: int = 2, width: int = 16) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(5)]
        self.stem = _Double(3, width)
        self.down = nn.ModuleList(_Double(a, b) for a, b in pairwise(widths))
        self.up = nn.ModuleList(
            nn.ConvTranspose2d(b, a, 2, 2) for a, b in zip(widths[-2::-1], widths[:0:-1], strict=True)
        )
        self.merge = nn.ModuleList(_Double(2 * a, a) for a in widths[-2::-1])
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, image: Tensor) -> Tensor:
        """(N, 3, H, W) -> logits (N, classes, H, W)."""
        levels = [self.stem(image)]
        for down in self.down:
            levels.append(down(F.max_pool2d(levels[-1], 2)))
        x = levels.pop()
        for up, merge in zip(self.up, self.merge, strict=True):
            x, beside = up(x), levels.pop()
            rows, columns = beside.size()[2] - x.size()[2], beside.size()[3] - x.size()[3]
            x = F.pad(x, [columns // 2, columns - columns // 2, rows // 2, rows - rows // 2])
            x = merge(torch.cat([beside, x], dim=1))
        return self.head(x)


# How to make each net, and the shape of its input.
NETS = {
    "efficientnet_b0": (EfficientNetB0, (1, 3, 224, 224)),
    "unet": (UNet, (1, 3, 256, 256)),
    "s3d": (S3D, (1, 3, 16, 224, 224)),
    "yolo_v4": (YoloV4, (1, 3, 416, 416)),
}
