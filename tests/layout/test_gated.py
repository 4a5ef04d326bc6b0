"""Convolutions of gated channels whose weights take up the gate, against torch: values, and which they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="these tests compare with torch")
from torch import nn  # noqa: E402

import tvm_ext  # noqa: E402
from tests.layout.test_blocked import TARGETS, check, kernels_of  # noqa: E402

GATES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sigmoid": torch.sigmoid,
    "hard sigmoid": nn.functional.hardsigmoid,
    "clip": lambda x: torch.clamp(x, 0.0, 1.0),
}


class Gated(nn.Module):
    """Squeeze and excitation of a convolution's result, and a projection of what is gated."""

    def __init__(self, channels: int, out: int, gate: Callable[..., Any], taps: int = 1, step: int = 1) -> None:
        super().__init__()
        torch.manual_seed(channels)
        few = max(1, channels // 4)
        self.first = nn.Conv2d(3, channels, 3, padding=1)
        self.squeeze, self.excite = nn.Conv2d(channels, few, 1), nn.Conv2d(few, channels, 1)
        self.project, self.gate = nn.Conv2d(channels, out, taps, step, padding=taps // 2), gate

    def gated(self, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        image = self.first(image)
        hidden = torch.relu(self.squeeze(image.mean((2, 3), keepdim=True)))
        return image, image * self.gate(8 * self.excite(hidden))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.project(self.gated(image)[1]))


class ReadTwice(Gated):
    """What is gated is read by another operator, too."""

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        gated = self.gated(image)[1]
        return self.project(gated) + gated.mean(1, keepdim=True)


def takes(module: nn.Module, image: torch.Tensor) -> bool:
    return any("scaled_weight" in name for name in kernels_of(module, image))


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize("channels", [1, 7, 31, 48])
def test_values(channels: int, target: object) -> None:
    check(Gated(channels, 24, torch.sigmoid), torch.randn(1, 3, 17, 13), target=target)


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("out", [1, 17])
def test_gates(gate: str, out: int) -> None:
    module, image = Gated(48, out, GATES[gate]), torch.randn(1, 3, 9, 127)
    check(module, image)
    assert takes(module, image)


def test_windows() -> None:
    """Zeros of the padding stay zero."""
    module, image = Gated(32, 8, torch.sigmoid, 3, 2), torch.randn(1, 3, 33, 31)
    check(module, image)
    assert takes(module, image)


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (Gated(48, 24, torch.tanh), (1, 3, 17, 13)),
        (Gated(48, 24, lambda x: torch.clamp(x, 0.0, 2.0)), (1, 3, 17, 13)),
        (Gated(48, 24, torch.sigmoid), (2, 3, 17, 13)),  # of each image another gate
        (Gated(48, 64, torch.sigmoid), (1, 3, 7, 7)),  # more weights than pixels
        (Gated(48, 40, torch.sigmoid), (1, 3, 7, 8)),  # more than half as many: nothing is saved
        (ReadTwice(48, 24, torch.sigmoid), (1, 3, 17, 13)),
    ],
    ids=["tanh", "up to two", "batch", "small image", "half", "read twice"],
)
def test_what_stays(module: nn.Module, shape: tuple[int, ...]) -> None:
    assert not takes(module, torch.randn(shape))
    check(module, torch.randn(shape))


@pytest.mark.parametrize("value", [np.nan, np.inf, 3e38])
@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_values_that_are_not_finite(value: float, target: object) -> None:
    """NaN and infinities reach what they reach where the image is multiplied."""
    module = Gated(33, 24, GATES["hard sigmoid"]).eval()
    image = torch.randn(1, 3, 17, 13)
    image[0, 1, 4, 5] = value
    with torch.no_grad():
        expected = module(image).numpy()
    compiled = tvm_ext.compile(module, target, example_inputs=(image,), winograd=False)
    (found,) = compiled.run([image.numpy()]).values()
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
    finite = np.isfinite(expected) & np.isfinite(found)
    np.testing.assert_allclose(found[finite], expected[finite], rtol=1e-4, atol=1e-4)
