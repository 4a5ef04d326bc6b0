"""The same nets a few thousand parameters small, each with inputs: for tests that must be fast."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from tests.zoo.inputs import padding_mask, picture, tokens
from tests.zoo.nets import bert, c3d, darts, efficientnet, gpt2, mobilenet, randwire, resnet, unet, vgg
from tests.zoo.nets.full import seeded

_SIZES = bert.Sizes(layers=2, hidden=24, heads=3, intermediate=48, vocabulary=100, positions=16)
_NO_TYPES = bert.Sizes(layers=2, hidden=24, heads=3, intermediate=48, vocabulary=100, positions=16, types=0)


@dataclass(frozen=True)
class Small:
    """How to make a net, what it takes, and the shape of its first output."""

    make: Callable[[], nn.Module]
    draw: Callable[[np.random.Generator], list[np.ndarray]]
    output_shape: tuple[int, ...]
    calibration_size: int | None = None

    def module(self) -> nn.Module:
        """The net, weights seeded, in evaluation mode."""
        return seeded("small", self.make, self.calibration_size)

    def inputs(self, seed: int = 0) -> tuple[Tensor, ...]:
        """Inputs as torch tensors, in memory aligned as compiled code needs it (torch's own, unlike numpy's)."""
        return tuple(torch.from_numpy(value).clone() for value in self.draw(np.random.default_rng(seed)))


def _image(size: int, rng: np.random.Generator) -> list[np.ndarray]:
    return [picture(rng, (1, 3, size, size))]


def _clip(rng: np.random.Generator) -> list[np.ndarray]:
    return [picture(rng, (1, 3, 16, 32, 32))]


def _text(inputs: int, rng: np.random.Generator) -> list[np.ndarray]:
    drawn = [tokens(rng, 1, 12, 100), padding_mask(rng, 1, 12), np.repeat([[0, 1]], 6, axis=1).astype(np.int64)]
    return drawn[:inputs]


def _randwire(generator: randwire.Generator) -> Small:
    make = partial(randwire.RandWire, generator, channels=8, nodes=8, classes=10, head=16)
    return Small(make, partial(_image, 64), (1, 10), 64)


SMALL = {
    "resnet18": Small(partial(resnet.ResNet18, 10, 8), partial(_image, 64), (1, 10), 64),
    "mobilenet_v2": Small(partial(mobilenet.MobileNetV2, 10, 0.25, 32), partial(_image, 64), (1, 10), 64),
    "efficientnet_b0": Small(partial(efficientnet.EfficientNetB0, 10, 0.25, 32), partial(_image, 64), (1, 10), 64),
    "vgg16": Small(partial(vgg.VGG16, 10, 4, 32, 32), partial(_image, 32), (1, 10)),
    "unet": Small(partial(unet.UNet, 2, 4), partial(_image, 32), (1, 2, 32, 32), 32),
    "c3d": Small(partial(c3d.C3D, 10, 4, 32, 32), _clip, (1, 10)),
    "bert": Small(partial(bert.Bert, _SIZES), partial(_text, 3), (1, 12, 24)),
    "distilbert": Small(partial(bert.DistilBert, _NO_TYPES), partial(_text, 2), (1, 12, 24)),
    "sentence_encoder": Small(partial(bert.SentenceEncoder, _SIZES), partial(_text, 3), (1, 24)),
    "gpt2": Small(partial(gpt2.GPT2, 2, 24, 3, 100, 16), partial(_text, 1), (1, 12, 100)),
    "darts": Small(partial(darts.DartsNet, 4, 6), partial(_image, 16), (1, 10), 16),
    "randwire_er": _randwire("ER"),
    "randwire_ba": _randwire("BA"),
    "randwire_ws": _randwire("WS"),
}
