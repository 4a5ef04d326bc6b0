"""Networks of pictures: classifiers, detectors, generators, segmentation, diffusion, written as their papers do.

They are narrow and shallow: which rules match does not depend on widths.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Make = Callable[[], nn.Module]
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def conv(enter: int, leave: int, size: int = 3, stride: int = 1, groups: int = 1, bias: bool = False) -> nn.Module:
    """Make a convolution that keeps the extents, but for its stride."""
    return nn.Conv2d(enter, leave, size, stride, size // 2, groups=groups, bias=bias)


def unit(enter: int, leave: int, size: int = 3, stride: int = 1, groups: int = 1, act: Make = nn.ReLU) -> nn.Module:
    """Make a convolution with batch normalisation and activation."""
    return nn.Sequential(conv(enter, leave, size, stride, groups), nn.BatchNorm2d(leave), act())


class Pictured(nn.Module):
    """A network that takes pictures of bytes and makes them what it was trained on."""

    def __init__(self, net: nn.Module, style: str) -> None:
        super().__init__()
        self.net, self.style = net, style

    def forward(self, x: Tensor) -> Tensor:
        """Classify pictures with values from 0 to 255."""
        mean, deviation = (torch.tensor(row)[None, :, None, None] for row in (MEAN, DEVIATION))
        if self.style == "torchvision":
            return self.net((x / 255 - mean) / deviation)
        if self.style == "tensorflow":
            return self.net(x / 127.5 - 1)
        if self.style == "caffe":
            return self.net(x.flip(1) - 255 * mean)
        return self.net((x - 255 * mean) * (1 / (255 * deviation)))


class Excited(nn.Module):
    """Squeeze and excitation."""

    def __init__(self, channels: int, gate: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.down, self.up, self.gate = nn.Conv2d(channels, 8, 1), nn.Conv2d(8, channels, 1), gate

    def forward(self, x: Tensor) -> Tensor:
        """Weigh channels."""
        return x * self.gate(self.up(F.relu(self.down(x.mean((2, 3), keepdim=True)))))


class Residual(nn.Module):
    """A residual block, activated before or after, its branch scaled or not."""

    def __init__(self, body: nn.Module, style: str = "post", channels: int = 16) -> None:
        super().__init__()
        self.body, self.style = body, style
        self.scale = nn.Parameter(torch.rand(1, channels, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Add what the branch finds."""
        if self.style == "post":
            return F.relu(x + self.body(x))
        if self.style == "tenth":
            return x + 0.1 * self.body(x)
        if self.style == "scaled":
            return x + self.scale * self.body(x)
        if self.style == "root":
            return (x + self.body(x)) / math.sqrt(2)
        return x + self.body(x)


class LastNorm(nn.Module):
    """Layer normalisation along the channels of pictures, as ConvNeXt writes it."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight, self.bias = (nn.Parameter(torch.rand(channels)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise."""
        mean = x.mean(1, keepdim=True)
        variance = (x - mean).pow(2).mean(1, keepdim=True)
        return self.weight[:, None, None] * ((x - mean) / torch.sqrt(variance + 1e-6)) + self.bias[:, None, None]


class Standardised(nn.Conv2d):
    """Convolution whose weights are standardised (of "big transfer" and normaliser-free nets)."""

    def forward(self, x: Tensor) -> Tensor:
        """Convolve."""
        mean = self.weight.mean((1, 2, 3), keepdim=True)
        deviation = self.weight.std((1, 2, 3), keepdim=True) + 1e-5
        return F.conv2d(x, (self.weight - mean) / deviation, self.bias, self.stride, self.padding)


class Modulated(nn.Module):
    """StyleGAN's convolution: channels scaled by a style before, and normalised after."""

    def __init__(self) -> None:
        super().__init__()
        self.style, self.weight = nn.Linear(16, 16), nn.Parameter(torch.randn(16, 16, 3, 3))
        self.strength, self.bias = nn.Parameter(torch.rand(1)), nn.Parameter(torch.randn(16))

    def forward(self, x: Tensor, latent: Tensor) -> Tensor:
        """Convolve in a style."""
        latent = latent * torch.rsqrt(latent.square().mean(1, keepdim=True) + 1e-8)
        style = self.style(latent) * (1 / math.sqrt(16)) + 1
        spread = torch.rsqrt(style.square() @ self.weight.square().sum((2, 3)).T + 1e-8)
        x = F.conv2d(x * style[:, :, None, None], self.weight, padding=1) * spread[:, :, None, None]
        noise = torch.ones(1, 1, *x.shape[2:]) * self.strength
        return F.leaky_relu(x + noise + self.bias[:, None, None], 0.2) * math.sqrt(2)


class Detector(nn.Module):
    """A head whose results become boxes, in the way of a family of detectors."""

    def __init__(self, style: str) -> None:
        super().__init__()
        self.style, self.body = style, unit(3, 16, 3, 2, act=nn.SiLU)
        self.head = nn.Conv2d(16, 3 * 7, 1)
        self.sizes = nn.Parameter(torch.rand(1, 3, 1, 1, 2) * 30)
        self.centres = nn.Parameter(torch.rand(3 * 64, 2))
        self.extents = nn.Parameter(torch.rand(3 * 64, 2) + 0.1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Give boxes and scores."""
        found = self.head(self.body(x))
        found = found.reshape(1, 3, 7, 8, 8).permute(0, 1, 3, 4, 2)
        ys, xs = torch.meshgrid(torch.arange(8), torch.arange(8), indexing="ij")
        grid = torch.stack([xs, ys], -1)[None, None].float()
        if self.style == "yolo_v3":
            centre = (torch.sigmoid(found[..., :2]) + grid) * 8
            size = torch.exp(found[..., 2:4]) * self.sizes
        elif self.style == "yolo_v5":
            near = torch.sigmoid(found)
            centre = (near[..., :2] * 2 - 0.5 + grid) * 8
            size = (near[..., 2:4] * 2) ** 2 * self.sizes
        elif self.style == "yolox":
            centre = (found[..., :2] + grid) * 8
            size = torch.exp(found[..., 2:4]) * 8
        elif self.style == "fcos":
            near, far = (F.relu(found[..., :2] * 1.5) * 8, F.relu(found[..., 2:4] * 1.5) * 8)
            places = grid * 8 + 4
            return torch.cat([places - near, places + far], -1), torch.sigmoid(found[..., 5:]).sqrt()
        else:  # SSD and Faster R-CNN: deltas of fixed boxes
            flat = found.reshape(-1, 7)
            centre = self.centres + flat[:, :2] * 0.1 * self.extents
            size = self.extents * torch.exp(flat[:, 2:4] * 0.2)
            found = flat
        corners = torch.cat([centre - size / 2, centre + size / 2], -1)
        return corners / 64, torch.sigmoid(found[..., 4:5]) * torch.softmax(found[..., 5:], -1)


class Distributed(nn.Module):
    """YOLOv8's head: distances as expected values of distributions."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.boxes, self.scores = unit(3, 16, 3, 2, act=nn.SiLU), nn.Conv2d(16, 32, 1), nn.Conv2d(16, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Give boxes and scores in one tensor."""
        x = self.body(x)
        distances = self.boxes(x).view(1, 4, 8, 64).transpose(1, 2).softmax(1)
        distances = F.conv2d(distances, torch.arange(8.0).view(1, 8, 1, 1)).view(1, 4, 64)
        near, far = distances.chunk(2, 1)
        ys, xs = torch.meshgrid(torch.arange(8) + 0.5, torch.arange(8) + 0.5, indexing="ij")
        places = torch.stack([xs.flatten(), ys.flatten()])[None]
        first, second = places - near, places + far
        boxes = torch.cat([(first + second) / 2, second - first], 1) * 8
        return torch.cat([boxes, self.scores(x).flatten(2).sigmoid()], 1)


class Diffusion(nn.Module):
    """A block of a diffusion U-Net: group normalisation, the time added to channels, attention over places."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = conv(4, 16, bias=True), conv(16, 4, bias=True)
        self.norms = nn.ModuleList([nn.GroupNorm(4, 16) for _ in range(3)])
        self.first, self.second = conv(16, 16, bias=True), conv(16, 16, bias=True)
        self.time, self.parts, self.output = nn.Linear(32, 16), nn.Conv2d(16, 48, 1), nn.Conv2d(16, 16, 1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """Predict the noise, and take a step."""
        angles = time[:, None] * torch.exp(torch.arange(16) * (-math.log(10000) / 15))
        embedding = self.time(F.silu(torch.cat([angles.sin(), angles.cos()], -1)))
        start = x
        x = self.enter(2 * x - 1)
        inner = self.first(F.silu(self.norms[0](x))) + embedding[:, :, None, None]
        x = (x + self.second(F.silu(self.norms[1](inner)))) / math.sqrt(2)
        query, key, value = self.parts(self.norms[2](x)).flatten(2).chunk(3, 1)
        weights = ((query * 16**-0.25).transpose(1, 2) @ (key * 16**-0.25)).softmax(-1)
        x = x + self.output((value @ weights.transpose(1, 2)).view(x.shape))
        noise = self.leave(F.silu(x))
        return ((start - 0.3 * noise) / 0.9).clamp(-1, 1)


class Segmenter(nn.Module):
    """A U-Net with gates of attention on what it skips."""

    def __init__(self, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.down = nn.ModuleList(
            [nn.Sequential(conv(3, 8), norm(8), nn.ReLU()), nn.Sequential(conv(8, 16), norm(16), nn.ReLU())]
        )
        self.across, self.below, self.gate = nn.Conv2d(8, 4, 1), nn.Conv2d(16, 4, 1), nn.Conv2d(4, 1, 1)
        self.up, self.last = nn.Sequential(conv(24, 8), norm(8), nn.ReLU()), nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Score each place."""
        fine = self.down[0](x)
        coarse = self.down[1](F.max_pool2d(fine, 2))
        coarse = F.interpolate(coarse, scale_factor=2.0)
        gate = torch.sigmoid(self.gate(F.relu(self.across(fine) + self.below(coarse))))
        return self.last(self.up(torch.cat([fine * gate, coarse], 1))).softmax(1)


class Superresolution(nn.Module):
    """EDSR: the mean of the data is taken away first and added last, branches are a tenth, pixels are shuffled."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = conv(3, 16, bias=True), conv(16, 12, bias=True)
        self.blocks = nn.Sequential(
            *(
                Residual(nn.Sequential(conv(16, 16, bias=True), nn.ReLU(), conv(16, 16, bias=True)), "tenth")
                for _ in range(2)
            )
        )

    def forward(self, x: Tensor) -> Tensor:
        """Enlarge twice."""
        mean = torch.tensor(MEAN)[None, :, None, None] * 255
        x = self.enter((x - mean) / 127.5)
        x = F.pixel_shuffle(self.leave(x + self.blocks(x)), 2)
        return (x * 127.5 + mean).clamp(0, 255)


class Generator(nn.Module):
    """A GAN's generator from noise, whose picture becomes one of bytes."""

    def __init__(self, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.start = nn.Linear(16, 16 * 16)
        self.net = nn.Sequential(
            norm(16),
            nn.ReLU(),
            nn.ConvTranspose2d(16, 8, 4, 2, 1, bias=False),
            norm(8),
            nn.ReLU(),
            conv(8, 3),
            nn.Tanh(),
        )

    def forward(self, noise: Tensor) -> Tensor:
        """Make a picture."""
        return (self.net(self.start(noise).view(1, 16, 4, 4)) + 1) / 2 * 255


class Depth(nn.Module):
    """A network of depths: the logistic of a convolution becomes a disparity between bounds, and its inverse."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(unit(3, 8, act=nn.ELU), nn.Conv2d(8, 1, 3, padding=1), nn.Sigmoid())

    def forward(self, x: Tensor) -> Tensor:
        """Estimate depths."""
        disparity = 0.01 + (10 - 0.01) * self.net((x - 0.45) / 0.225)
        return 1 / disparity


class Similar(nn.Module):
    """A network of descriptors: unit vectors, their products, and a learnt scale."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.scale = (
            nn.Sequential(unit(3, 16, 3, 4), nn.Flatten(), nn.Linear(256, 16)),
            nn.Parameter(torch.tensor(2.6)),
        )
        self.classes = nn.Parameter(torch.randn(5, 16))

    def forward(self, x: Tensor) -> Tensor:
        """Score classes by angles."""
        features = self.net(x)
        features = features / features.norm(dim=-1, keepdim=True)
        classes = self.classes / self.classes.norm(dim=-1, keepdim=True)
        return (self.scale.exp() * features @ classes.T).softmax(-1)


def _net(blocks: Sequence[nn.Module], stem: nn.Module | None = None, channels: int = 16) -> nn.Module:
    end = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10)]
    return nn.Sequential(stem or unit(3, 16, 3, 2), *blocks, *end)


def _plain(act: Make = nn.ReLU, style: str = "post") -> nn.Module:
    return _net(
        [Residual(nn.Sequential(unit(16, 16, act=act), conv(16, 16), nn.BatchNorm2d(16)), style) for _ in range(2)]
    )


def _inverted(act: Make, gate: Callable[[Tensor], Tensor] | None) -> nn.Module:
    def block() -> nn.Module:
        inner = [unit(16, 32, 1, act=act), unit(32, 32, 5, groups=32, act=act)]
        excited = [Excited(32, gate)] if gate else []
        return Residual(nn.Sequential(*inner, *excited, conv(32, 16, 1), nn.BatchNorm2d(16)), "none")

    return _net([block(), block()])


def _convnext() -> nn.Module:
    def block() -> nn.Module:
        body = [
            conv(16, 16, 7, groups=16, bias=True),
            LastNorm(16),
            nn.Conv2d(16, 64, 1),
            nn.GELU(),
            nn.Conv2d(64, 16, 1),
        ]
        return Residual(nn.Sequential(*body), "scaled")

    return _net([block(), block()], nn.Sequential(nn.Conv2d(3, 16, 4, 4), LastNorm(16)))


def _pre_activated() -> nn.Module:
    blocks = [Residual(nn.Sequential(nn.BatchNorm2d(16), nn.ReLU(), conv(16, 16)), "none") for _ in range(2)]
    return _net([*blocks, nn.BatchNorm2d(16), nn.ReLU()])


def _standardised() -> nn.Module:
    blocks = [
        Residual(nn.Sequential(nn.GroupNorm(4, 16), nn.ReLU(), Standardised(16, 16, 3, padding=1)), "none")
        for _ in range(2)
    ]
    return _net(blocks)


def _picture(size: int = 16) -> tuple[Tensor, ...]:
    return (torch.rand(1, 3, size, size),)


NETS: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Tensor, ...]]]] = {
    **{
        f"resnet_{style}": (lambda style=style: Pictured(_plain(), style), _picture)
        for style in ("torchvision", "tensorflow", "caffe", "keras")
    },  # type: ignore[misc]
    "resnet_rescaled": (lambda: _plain(nn.SiLU, "root"), _picture),
    "resnet_scaled": (lambda: _plain(nn.LeakyReLU, "scaled"), _picture),
    "resnet_preactivated": (_pre_activated, _picture),
    "big_transfer": (_standardised, _picture),
    "mobilenet_v3": (lambda: _inverted(nn.Hardswish, F.hardsigmoid), _picture),
    "efficientnet": (lambda: _inverted(nn.SiLU, torch.sigmoid), _picture),
    "mobilenet_v1": (lambda: _inverted(nn.ReLU6, None), _picture),
    "mish_net": (lambda: _plain(nn.Mish), _picture),
    "convnext": (_convnext, _picture),
    "style_gan": (Modulated, lambda: (torch.randn(1, 16, 8, 8), torch.randn(1, 16))),
    "dcgan": (lambda: Generator(nn.BatchNorm2d), lambda: (torch.randn(1, 16),)),
    "instance_gan": (lambda: Generator(lambda c: nn.InstanceNorm2d(c, affine=True)), lambda: (torch.randn(1, 16),)),
    **{name: (lambda name=name: Detector(name), _picture) for name in ("yolo_v3", "yolo_v5", "yolox", "fcos", "ssd")},  # type: ignore[misc]
    "yolo_v8": (Distributed, _picture),
    "diffusion_unet": (Diffusion, lambda: (torch.randn(1, 4, 8, 8), torch.tensor([17.0]))),
    "attention_unet": (lambda: Segmenter(nn.BatchNorm2d), _picture),
    "group_unet": (lambda: Segmenter(lambda c: nn.GroupNorm(4, c)), _picture),
    "edsr": (Superresolution, _picture),
    "monodepth": (Depth, _picture),
    "clip_scores": (Similar, _picture),
}
