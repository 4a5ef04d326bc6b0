"""Blocked tensors that are joined, split and sliced along their images, against torch."""

from __future__ import annotations

from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch", reason="these tests compare with torch")
from torch import nn  # noqa: E402

import tvm_ext  # noqa: E402
from tests.layout.test_blocked import TARGETS, check, kernels_of  # noqa: E402
from tvm_ext.compiler import lower  # noqa: E402
from tvm_ext.options import PipelineOptions  # noqa: E402
from tvm_ext.target import resolve_target  # noqa: E402

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


class Pyramid(nn.Module):
    """Maps of several sizes, enlarged and joined along channels, as detectors do."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        torch.manual_seed(channels)
        self.maps = nn.ModuleList(nn.Conv2d(3, channels, 3, stride=step, padding=1) for step in (1, 2, 4))
        self.last = nn.Conv2d(3 * channels, 5, 3, padding=1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        maps = [convolution(image) for convolution in self.maps]
        scales = enumerate(maps)
        return self.last(torch.cat([nn.functional.interpolate(each, scale_factor=2**at) for at, each in scales], 1))


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize("channels", [7, 20, 24])
def test_enlarged_maps_that_end_inside_a_block(channels: int, target: object) -> None:
    check(Pyramid(channels), torch.randn(1, 3, 20, 12), target=target)


def test_borders_inside_a_block_are_between_vectors() -> None:
    """Of 24 and 24 channels in blocks of 16, halves of a block are loaded as they lie, not lane by lane."""
    imported = tvm_ext.import_model(Pyramid(24).eval(), example_inputs=(torch.randn(1, 3, 80, 80),))
    target = resolve_target({"kind": "llvm", "mcpu": "znver4", "num-cores": 2})
    lowered, _, _ = lower(imported.mod, target, PipelineOptions(disable=("vectorize", "finalize")))
    joined = [
        func for var, func in lowered.functions_items() if "concat" in var.name_hint and "resize" in var.name_hint
    ]
    assert joined
    assert all('"tvm_ext.simd": 8' in func.script() for func in joined)


class Channels(nn.Module):
    """A convolution of which some channels are taken, whose exponentials the next one reads."""

    def __init__(self, rank: int, channels: int, part: slice) -> None:
        super().__init__()
        torch.manual_seed(channels)
        self.a, self.part = CONVOLUTIONS[rank](3, channels, 3, padding=1), part
        self.b = CONVOLUTIONS[rank](len(range(channels)[part]), 5, 3, padding=1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.b(torch.exp(self.a(image)[:, self.part]))


BLOCKS_OF_CHANNELS = [(48, slice(16, 32)), (33, slice(16, None)), (33, slice(-17, 99)), (37, slice(32, 37)),
                      (7, slice(0, 7))]  # fmt: skip


@pytest.mark.parametrize("rank", CONVOLUTIONS)
@pytest.mark.parametrize(("channels", "part"), BLOCKS_OF_CHANNELS)
def test_blocks_of_channels(rank: int, channels: int, part: slice) -> None:
    model, image = Channels(rank, channels, part), torch.randn(2, 3, *IMAGES[rank])
    check(model, image)
    assert sum("from_blocked" in name for name in kernels_of(model, image)) == 1


@pytest.mark.parametrize(("channels", "part"), [(48, slice(8, 24)), (33, slice(16, 30)), (32, slice(0, 32, 2))])
def test_channels_inside_blocks(channels: int, part: slice) -> None:
    check(Channels(2, channels, part), torch.randn(2, 3, *IMAGES[2]))
