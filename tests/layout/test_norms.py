"""Group and instance normalisation of blocked tensors, against torch."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch", reason="these tests compare with torch")
import numpy as np  # noqa: E402
from torch import nn  # noqa: E402

import tvm_ext  # noqa: E402
from tests.layout.test_blocked import TARGETS, check, kernels_of  # noqa: E402
from tvm_ext.compiler import lower  # noqa: E402
from tvm_ext.options import PipelineOptions  # noqa: E402
from tvm_ext.schedules.rule import FAULT_ATTRIBUTE, RULE_ATTRIBUTE  # noqa: E402
from tvm_ext.target import resolve_target  # noqa: E402

CONVOLUTIONS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
IMAGES = {1: (33,), 2: (9, 10), 3: (5, 6, 7)}
# Groups inside a block, of whole blocks, that straddle blocks, of all channels; channels that do not fill a block.
GROUPS = [(32, 8), (64, 2), (80, 8), (48, 1), (16, 16), (33, 3), (7, 1), (7, 7), (24, 2), (20, 4)]


class Normalized(nn.Module):
    """A convolution, a normalisation of groups of its channels, what follows it, and a convolution."""

    def __init__(self, channels: int, groups: int, rank: int = 2, affine: bool = True) -> None:
        super().__init__()
        torch.manual_seed(channels)
        self.first, self.last = CONVOLUTIONS[rank](3, channels, 3, padding=1), CONVOLUTIONS[rank](channels, 5, 1)
        self.norm = nn.GroupNorm(groups, channels, affine=affine)
        if affine:
            nn.init.uniform_(self.norm.weight, 0.5, 1.5)
            nn.init.normal_(self.norm.bias)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.behind(self.first(image))

    def behind(self, image: torch.Tensor) -> torch.Tensor:
        return self.last(nn.functional.silu(self.norm(image)))


def scheduled(model: nn.Module, image: torch.Tensor, cores: int) -> list[object]:
    """Give the kernels of norms as they are scheduled."""
    target = resolve_target({"kind": "llvm", "mcpu": "haswell", "num-cores": cores})
    mod = tvm_ext.import_model(model.eval(), example_inputs=(image,)).mod
    lowered, _, _ = lower(mod, target, PipelineOptions(disable=("vectorize", "finalize")))
    return [func for var, func in lowered.functions_items() if "norm" in var.name_hint]


@pytest.mark.parametrize(("channels", "groups"), GROUPS)
def test_groups(channels: int, groups: int) -> None:
    check(Normalized(channels, groups), torch.randn(2, 3, *IMAGES[2]))


@pytest.mark.parametrize(("rank", "channels", "groups"), [(1, 33, 3), (3, 32, 8)])
def test_rows_and_volumes(rank: int, channels: int, groups: int) -> None:
    check(Normalized(channels, groups, rank, affine=False), torch.randn(2, 3, *IMAGES[rank]))


@pytest.mark.parametrize("extents", [(1, 1), (40, 1), (17, 31)])
def test_extents(extents: tuple[int, int]) -> None:
    check(Normalized(40, 4), torch.randn(1, 3, *extents))


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize(("channels", "images"), [(64, 1), (24, 1)])
def test_threads(target: object, channels: int, images: int) -> None:
    """Units of channels are tasks where there are enough of them; otherwise each pass over the pixels is divided."""
    check(Normalized(channels, 2), torch.randn(images, 3, 96, 80), target=target)


@pytest.mark.parametrize(("channels", "groups", "loops"), [(64, 8, 1), (24, 2, 3), (64, 2, 3)])
def test_tasks(channels: int, groups: int, loops: int) -> None:
    (func,) = scheduled(Normalized(channels, groups), torch.randn(1, 3, 96, 80), 2)
    assert func.attrs[RULE_ATTRIBUTE] == "cpu.blocked_norm"
    assert FAULT_ATTRIBUTE not in func.attrs
    assert func.script().count("T.parallel(") == loops


@pytest.mark.parametrize(("channels", "groups"), GROUPS[2::3])
def test_every_kernel_has_its_schedule(channels: int, groups: int) -> None:
    (func,) = scheduled(Normalized(channels, groups), torch.randn(1, 3, 9, 10), 1)
    assert func.attrs[RULE_ATTRIBUTE] == "cpu.blocked_norm"
    assert FAULT_ATTRIBUTE not in func.attrs


def test_nothing_leaves_its_blocks() -> None:
    names = kernels_of(Normalized(33, 3), torch.randn(1, 3, *IMAGES[2]))
    assert "norm" in names
    assert sum(name.startswith("from_blocked") for name in names) == 1


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_group_that_is_no_number(value: float) -> None:
    """It is one image's alone, and that of one group."""
    model, image = Normalized(33, 3).eval(), torch.randn(2, 3, 9, 10)
    model.last = nn.Conv2d(33, 33, 1, groups=33)
    nn.init.constant_(model.first.bias[2:3], value)
    image[0, 0, 4, 4] = value
    (found,) = tvm_ext.compile(model, example_inputs=(image,), winograd=False).run([image.numpy()]).values()
    np.testing.assert_allclose(found, model(image).detach().numpy(), rtol=1e-3, atol=1e-4)


class Pixels(nn.Module):
    """A convolution, a normalisation of the channels of each pixel, and a convolution."""

    def __init__(self, channels: int, rank: int = 2) -> None:
        super().__init__()
        torch.manual_seed(channels)
        self.first, self.last = CONVOLUTIONS[rank](3, channels, 3, padding=1), CONVOLUTIONS[rank](channels, 5, 1)
        shape = (channels, *[1] * rank)
        self.weight, self.bias = (nn.Parameter(torch.rand(shape) + 0.5) for _ in range(2))

    def norm(self, image: torch.Tensor) -> torch.Tensor:
        left = image - image.mean(1, keepdim=True)
        return self.weight * (left / torch.sqrt(left.pow(2).mean(1, keepdim=True) + 1e-6)) + self.bias

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.behind(self.first(image))

    def behind(self, image: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.norm(image)))


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize(("channels", "extents"), [(64, (9, 10)), (7, (17, 31)), (33, (3, 1)), (48, (96, 80))])
def test_pixels(target: object, channels: int, extents: tuple[int, int]) -> None:
    check(Pixels(channels), torch.randn(2, 3, *extents), target=target)


@pytest.mark.parametrize("rank", [1, 3])
def test_pixels_of_rows_and_volumes(rank: int) -> None:
    check(Pixels(33, rank), torch.randn(2, 3, *IMAGES[rank]))


def test_tasks_of_pixels() -> None:
    (func,) = scheduled(Pixels(33), torch.randn(1, 3, 96, 80), 2)
    assert func.attrs[RULE_ATTRIBUTE] == "cpu.channel_norm"
    assert FAULT_ATTRIBUTE not in func.attrs
    assert func.script().count("T.parallel(") == 1


@pytest.mark.parametrize("model", [Normalized(32, 4), Normalized(32, 32), Pixels(32)])
def test_means_far_larger_than_what_differs(model: nn.Module) -> None:
    model = copy.deepcopy(model).eval()
    nn.init.constant_(model.first.bias, 3000.0)
    image = torch.randn(1, 3, 33, 31)
    compiled = tvm_ext.compile(model, example_inputs=(image,), winograd=False)
    (found,) = compiled.run([image.numpy()]).values()
    with torch.no_grad():
        middle = model.first(image).double()  # what a float holds of it
        wanted = model.double().behind(middle).numpy()
    assert np.abs(found - wanted).max() < 2e-3 * wanted.std()


class Instances(nn.Module):
    """Instance normalisation between padded convolutions, as networks of style transfer have it."""

    def __init__(self, channels: int, mode: str, rank: int = 2) -> None:
        super().__init__()
        torch.manual_seed(channels)
        norm = {1: nn.InstanceNorm1d, 2: nn.InstanceNorm2d, 3: nn.InstanceNorm3d}[rank]
        padding = {"padding": 1, "padding_mode": mode}
        self.layers = nn.Sequential(
            CONVOLUTIONS[rank](3, channels, 3, **padding), norm(channels, affine=True), nn.ReLU(),
            CONVOLUTIONS[rank](channels, channels, 3, **padding), norm(channels), nn.ReLU(),
            CONVOLUTIONS[rank](channels, 4, 3, **padding),
        )  # fmt: skip

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.layers(image)


PADDED = [("zeros", 2, 16), ("reflect", 1, 7), ("reflect", 2, 33), ("replicate", 2, 33), ("circular", 2, 33),
          ("replicate", 3, 16)]  # fmt: skip


@pytest.mark.parametrize(("mode", "rank", "channels"), PADDED)
def test_instances(mode: str, rank: int, channels: int) -> None:
    check(Instances(channels, mode, rank), torch.randn(2, 3, *IMAGES[rank]))
