"""The nets at the sizes of their papers, with seeded weights; one function for each, for the registry to call."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import nn

from tests.zoo.inputs import picture
from tests.zoo.nets import bert, c3d, darts, efficientnet, gpt2, mobilenet, randwire, resnet, unet, vgg
from tests.zoo.nets.initial import with_weights

Module = TypeVar("Module", bound=nn.Module)

# name: how to make the module, size of the pictures for calibration (None: the net has no batch normalisation)
_NETS: dict[str, tuple[Callable[[], nn.Module], int | None]] = {
    "resnet18": (resnet.ResNet18, 224),
    "mobilenet_v2": (mobilenet.MobileNetV2, 224),
    "efficientnet_b0": (efficientnet.EfficientNetB0, 224),
    "vgg16": (vgg.VGG16, None),
    "unet": (unet.UNet, 128),
    "c3d": (c3d.C3D, None),
    "bert_base": (bert.Bert, None),
    "tinybert": (partial(bert.Bert, bert.TINYBERT), None),
    "distilbert": (bert.DistilBert, None),
    "gpt2": (gpt2.GPT2, None),
    "darts": (darts.DartsNet, 32),
    "randwire_er": (partial(randwire.RandWire, "ER"), 224),
    "randwire_ba": (partial(randwire.RandWire, "BA"), 224),
    "randwire_ws": (partial(randwire.RandWire, "WS"), 224),
}


def seeded(name: str, make: Callable[[], Module], size: int | None) -> Module:
    """Make a module with weights seeded by its name, calibrated on two pictures of ``size`` x ``size`` pixels."""
    seed = zlib.crc32(name.encode())
    calibration = None
    if size is not None:
        calibration = [torch.from_numpy(picture(np.random.default_rng(seed), (2, 3, size, size)))]
    return with_weights(make(), seed, calibration)


def full_net(name: str) -> nn.Module:
    """The net of that name at its full size."""
    return seeded(name, *_NETS[name])


def trained_sentence_encoder(weights: Path) -> bert.SentenceEncoder:
    """all-MiniLM-L6-v2 with the weights of a safetensors file."""
    from safetensors.torch import load_file

    module = bert.SentenceEncoder(bert.MINILM)
    module.load_state_dict(bert.from_published_names(load_file(weights)))
    return module.eval()
