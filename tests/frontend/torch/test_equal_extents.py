"""Open extents that PyTorch takes for equal and that are written in two ways, as where halves of an image meet."""

# ruff: noqa: E402 - what follows the check for torch needs torch

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import Tensor, nn
from torch.nn import functional

import tvm_ext
from tests.torch_compile.eager import TARGET
from tvm_ext.errors import InputError

pytestmark = pytest.mark.torch


class Shuffled(nn.Module):
    """Halves of an image, put in their places again and added to it."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 3, 3, padding=1)
        self.down, self.up = nn.Conv2d(8, 16, 2, 2), nn.Conv2d(16, 32, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.enter(x)
        return x * self.leave(functional.pixel_shuffle(self.up(self.down(y)), 2) + y)


class Joined(nn.Module):
    """Two levels, each joined along the channels."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(16, 3, 3, padding=1)
        self.down = nn.ModuleList([nn.Conv2d(8, 16, 3, 2, 1), nn.Conv2d(16, 16, 3, 2, 1)])
        self.up = nn.ModuleList([nn.ConvTranspose2d(16, 16, 2, 2), nn.ConvTranspose2d(32, 8, 2, 2)])

    def forward(self, x: Tensor) -> Tensor:
        y = self.enter(x).relu()
        z = self.down[0](y).relu()
        w = torch.cat([self.up[0](self.down[1](z).relu()), z], 1)
        return self.leave(torch.cat([self.up[1](w), y], 1))


class Counted(nn.Module):
    """Channels that PyTorch counts as quotients of the extents, beside as many that are a number."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Conv2d(12, 12, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = functional.pixel_unshuffle(x, 2)
        count, channels, height, width = y.shape
        parts = self.mix(y).reshape(count, 3, channels // 3, height * width)
        return functional.normalize(parts, dim=-1) @ parts.transpose(2, 3)


@pytest.mark.parametrize("kind", [Shuffled, Joined, Counted])
def test_halves_come_together(kind: type[nn.Module]) -> None:
    module = kind().eval()
    opened = {f"x:{axis}": (1, None) for axis in (0, 2, 3)}
    compiled = tvm_ext.compile(module, TARGET, example_inputs=(torch.randn(2, 3, 12, 16),), dynamic=opened)
    for shape in ((1, 3, 20, 24), (3, 3, 8, 36)):
        x = torch.randn(shape)
        (found,) = compiled.run({"x": x}).values()
        np.testing.assert_allclose(found, module(x).detach().numpy(), atol=1e-5)
    with pytest.raises(InputError, match=r"x_2 = 13 .*where the model needs"):
        compiled.run({"x": torch.randn(1, 3, 13, 16)})
