"""Blocked tensors that are joined, split and sliced along their images, against torch."""

from __future__ import annotations

from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch", reason="these tests compare with torch")
from torch import nn  # noqa: E402

from tests.layout.test_blocked import check, kernels_of  # noqa: E402

CONVOLUTIONS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
IMAGES = {1: (33,), 2: (9, 10), 3: (5, 6, 7)}
PARTS: dict[str, Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor]] = {
    "joined": lambda a, b, axis: torch.cat([a, torch.relu(b), b + 1], axis),
    "of other numbers": lambda a, b, axis: torch.cat([torch.exp(a), torch.sqrt(torch.relu(b))], axis),
    "split": lambda a, b, axis: torch.cat(list(reversed(torch.split(a, 2, axis))), axis) + b,
    "sliced": lambda a, b, axis: a.narrow(axis, 1, 4) * torch.sigmoid(b).narrow(axis, 0, 4),
    "cyclic": lambda a, b, axis: torch.roll(a, 2, axis) - b,
}


class Parts(nn.Module):
    """Two convolutions, what is done with their results, and a convolution."""

    def __init__(self, rank: int, channels: int, what: str, axis: int) -> None:
        super().__init__()
        torch.manual_seed(channels)
        convolution = CONVOLUTIONS[rank]
        self.a, self.b = convolution(3, channels, 3, padding=1), convolution(3, channels, 1)
        self.c = convolution(channels, 5, 3, padding=1)
        self.what, self.axis = PARTS[what], axis

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.c(self.what(self.a(image), self.b(image), self.axis))


@pytest.mark.parametrize("what", PARTS)
@pytest.mark.parametrize(("rank", "axis"), [(1, 2), (2, 2), (2, 3), (2, -1), (3, 2), (3, 4)])
@pytest.mark.parametrize("channels", [7, 16, 33])
def test_along_an_image(what: str, rank: int, axis: int, channels: int) -> None:
    """Lanes beyond the channels of each part are what the next convolution may read."""
    check(Parts(rank, channels, what, axis), torch.randn(2, 3, *IMAGES[rank]))


@pytest.mark.parametrize("what", PARTS)
@pytest.mark.parametrize("axis", [2, 3])
def test_where_rows_and_columns_are_exchanged(what: str, axis: int) -> None:
    """Of images that are a pixel wide kernels walk the other axis."""
    check(Parts(2, 16, what, axis), torch.randn(1, 3, 6 if axis == 2 else 40, 40 if axis == 2 else 6))
    if axis == 2:
        check(Parts(2, 16, what, axis), torch.randn(1, 3, 40, 1))


@pytest.mark.parametrize("what", ["joined", "split", "sliced"])
def test_no_tensor_leaves_its_blocks(what: str) -> None:
    names = kernels_of(Parts(2, 16, what, 2), torch.randn(1, 3, 9, 10))
    assert not any(name.startswith("to_blocked") for name in names if name != "to_blocked")
    assert sum(name.startswith("from_blocked") for name in names) <= 1
