"""Models and calls that users bring to ``torch.compile``: made here, with seeded random weights, nothing downloaded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tests.zoo.nets.full import full_net
from tests.zoo.nets.small import SMALL

Inputs = tuple[Any, ...]


@dataclass(frozen=True)
class Case:
    """A model and the calls it is compared in.

    Attributes
    ----------
    make : function
        Gives the module, in evaluation mode.
    draw : function
        Gives the inputs of each call; the last one is timed.
    tolerance : float
        Largest difference from eager mode, in standard deviations of the output.
    falls_back : bool
        Whether an operator in it cannot be compiled.
    """

    make: Callable[[], nn.Module]
    draw: Callable[[], Sequence[Inputs]]
    tolerance: float = 1e-4
    falls_back: bool = False


class Interrupted(nn.Module):
    """A graph break between the features and the classifier of a picture net."""

    def __init__(self) -> None:
        super().__init__()
        self.net = full_net("mobilenet_v2")

    def forward(self, image: Tensor) -> Tensor:
        """(N, 3, H, W) -> logits (N, classes)."""
        features = self.net.average(self.net.features(image)).flatten(1)
        torch._dynamo.graph_break()
        return self.net.classifier(features)


class Decomposed(nn.Module):
    """Layers around an orthogonal basis of the rows, which no converter knows."""

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 64))
        self.after = nn.Sequential(nn.Linear(64, 512), nn.GELU(), nn.Linear(512, 256))

    def forward(self, rows: Tensor) -> Tensor:
        """(N, 256) -> (N, 256)."""
        return self.after(torch.linalg.qr(self.before(rows)).Q)


def pictures(*numbers: int, size: int = 224) -> Callable[[], Sequence[Inputs]]:
    """Draw batches of pictures."""
    return lambda: [(torch.randn(number, 3, size, size),) for number in numbers]


def sentences(length: int, vocabulary: int) -> Callable[[], Sequence[Inputs]]:
    """Draw a sentence: tokens, a mask of all of them, one type."""
    ones = torch.ones(1, length, dtype=torch.int64)
    return lambda: [(torch.randint(vocabulary, (1, length)), ones, ones * 0) for _ in range(2)]


def in_bfloat16() -> nn.Module:
    """Seed a transformer, whose weights and activations are in bfloat16."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True)
    return nn.Sequential(nn.Embedding(1000, 256), nn.TransformerEncoder(layer, 3), nn.Linear(256, 10)).bfloat16()


def decomposed() -> nn.Module:
    """Seed the net with an operator that cannot be compiled."""
    torch.manual_seed(0)
    return Decomposed()


CASES = {
    "resnet18": Case(lambda: full_net("resnet18"), pictures(1, 1)),
    "mobilenet_v2": Case(lambda: full_net("mobilenet_v2"), pictures(1, 1)),
    "bert_base": Case(lambda: full_net("bert_base"), sentences(128, 30000)),
    "gpt2": Case(lambda: full_net("gpt2"), lambda: [(torch.randint(50000, (1, 64)),) for _ in range(2)]),
    "graph_break": Case(Interrupted, pictures(1, 1)),
    "dynamic_batch": Case(SMALL["resnet18"].module, pictures(1, 4, 7, 2, 4, size=64)),
    "bfloat16": Case(in_bfloat16, lambda: [(torch.randint(1000, (1, 64)),) for _ in range(2)], tolerance=0.05),
    "fallback": Case(decomposed, lambda: [(torch.randn(128, 256),) for _ in range(2)], 1e-3, falls_back=True),
    "efficientnet_b0": Case(lambda: full_net("efficientnet_b0"), pictures(1, 1)),
    "tinybert": Case(lambda: full_net("tinybert"), sentences(64, 30000)),
}
"""By the names under which they are reported."""
