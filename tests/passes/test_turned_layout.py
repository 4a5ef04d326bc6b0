"""Images that are narrower than a tile of columns are worked on with rows and columns exchanged."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="these tests compare with torch")
import tvm  # noqa: E402
from torch import nn  # noqa: E402

import tvm_ext  # noqa: E402
from tvm_ext.layout.lanes import ZERO  # noqa: E402
from tvm_ext.layout.relax.blocked import Blocked, is_better_turned, turn_geometry  # noqa: E402
from tvm_ext.layout.relax.blocked_layout import blocked_layout  # noqa: E402
from tvm_ext.passes.bindings import calls  # noqa: E402
from tvm_ext.passes.fold_constants import fold_constants  # noqa: E402
from tvm_ext.target import resolve_target  # noqa: E402

LEVELS = (None, {"kind": "llvm", "mcpu": "haswell"}, {"kind": "llvm", "mcpu": "x86-64-v2"})


def check(module: nn.Module, image: torch.Tensor, target: object = None, winograd: bool = False) -> None:
    """Compare a module with torch."""
    module = module.eval()
    with torch.no_grad():
        expected = module(image).numpy()
    (result,) = (
        tvm_ext.compile(module, target, example_inputs=(image,), winograd=winograd).run([image.numpy()]).values()
    )
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=2e-5 * np.abs(expected).max())


class Branches(nn.Module):
    """Gates by channel and by place, operands in plain layout, a concatenation, a transposed convolution."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        torch.manual_seed(channels)
        self.stem = nn.Conv2d(3, channels, 3, padding=1)
        self.down, self.up = nn.Conv2d(channels, 5, 1), nn.Conv2d(5, channels, 1)
        self.place, self.image = nn.Conv2d(channels, 1, (3, 1), padding=(1, 0)), nn.Parameter(torch.randn(13, width))
        self.last, self.longer = nn.Conv2d(2 * channels, 7, 3, padding=1), nn.ConvTranspose2d(7, 5, (2, 1), (2, 1))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        features = nn.functional.silu(self.stem(image))
        gate = torch.sigmoid(self.up(torch.relu(self.down(features.mean((2, 3), keepdim=True)))))
        features = features * gate + features
        features = features * torch.sigmoid(self.place(features)) + self.image + image[:, :1]
        return self.longer(self.last(torch.cat([features, torch.exp(-features)], 1)))


@pytest.mark.parametrize(("channels", "width", "level"), [(30, 1, 0), (16, 2, 1), (5, 1, 2)])
def test_branches(channels: int, width: int, level: int) -> None:
    check(Branches(channels, width), torch.randn(2, 3, 13, width), LEVELS[level])


@pytest.mark.parametrize("width", [1, 2])
def test_geometry(width: int) -> None:
    """Strides, asymmetric padding, dilation, pooling and groups differ between rows and columns."""
    torch.manual_seed(width)
    module = nn.Sequential(
        nn.ZeroPad2d((0, 1, 2, 0)), nn.Conv2d(3, 30, (5, 2), stride=(2, 1), padding=(1, 0)), nn.ReLU(),
        nn.Conv2d(30, 64, 3, padding=(2, 1), dilation=(2, 1)),
        nn.MaxPool2d((3, width), stride=(2, 1), padding=(1, 0)),
        nn.Conv2d(64, 64, (3, 1), groups=64), nn.AvgPool2d((2, 1), ceil_mode=True, count_include_pad=False),
        nn.Conv2d(64, 32, (2, 1), groups=2), nn.Conv2d(32, 9, (4, 1), stride=(3, 1)), nn.AdaptiveAvgPool2d(1),
    )  # fmt: skip
    check(module, torch.randn(2, 3, 90, width))


def test_volumes_and_winograd() -> None:
    torch.manual_seed(0)
    volumes = (nn.Conv3d(3, 16, 3, padding=1), nn.MaxPool3d((1, 2, 1)), nn.Conv3d(16, 9, (2, 3, 1), stride=(1, 2, 1)))
    check(nn.Sequential(*volumes), torch.randn(1, 3, 4, 33, 1))
    deep = (nn.Conv2d(16, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1), nn.Conv2d(64, 16, 3))
    check(nn.Sequential(*deep), torch.randn(2, 16, 100, 3), winograd=True)


def test_an_image_that_becomes_narrow() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Conv2d(3, 32, 3, padding=1), nn.Conv2d(32, 32, 3, padding=1)

        def forward(self, image: torch.Tensor) -> torch.Tensor:
            narrow = nn.functional.max_pool2d(self.first(image), (1, 4))
            both = self.second(narrow)
            return self.second(torch.cat([both, both.flip(2)], 3)[:, :, :, :1]) + both + narrow

    torch.manual_seed(0)
    check(Net(), torch.randn(3, 3, 40, 4))


def test_kernels_run_along_the_rows() -> None:
    """One conversion at each border, none between the operators, and no kernel whose images are one pixel wide."""
    module = nn.Sequential(
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, (3, 1), groups=32), nn.MaxPool2d((2, 1)),
        nn.Conv2d(32, 16, (5, 1)), nn.Sigmoid(),
    )  # fmt: skip
    imported = tvm_ext.import_model(module.eval(), example_inputs=(torch.randn(1, 16, 64, 1),))
    with resolve_target(None):
        clean = tvm.relax.transform.DeadCodeElimination()
        mod = clean(tvm.relax.transform.CanonicalizeBindings()(imported.mod))
        mod = clean(blocked_layout(winograd=False)(fold_constants()(mod)))
    bindings = [binding for block in mod["main"].body.blocks for binding in block.bindings]
    kernels = {b.value.args[0].name_hint: b.var for b in bindings if calls(b.value, "relax.call_tir")}
    assert sum("blocked" in name for name in kernels) == 2
    images = [list(map(int, var.ty.shape))[2:4] for name, var in kernels.items() if "blocked" not in name]
    assert images == [[1, 64], [1, 62], [1, 31], [1, 27]]
    assert not any(calls(b.value, name) for b in bindings for name in ("relax.reshape", "relax.permute_dims"))


def test_what_is_turned() -> None:
    wide = Blocked(tvm.relax.Var("x", tvm.relax.TensorType((1, 2, 64, 2, 16), "float32")), 32, 4, ZERO)
    narrow = Blocked(tvm.relax.Var("x", tvm.relax.TensorType((1, 2, 64, 1, 16), "float32")), 32, 4, ZERO)
    turned = Blocked(tvm.relax.Var("x", tvm.relax.TensorType((1, 2, 2, 64, 16), "float32")), 32, 4, ZERO, turned=True)
    assert turned.spatial == wide.spatial == (64, 2)
    assert [is_better_turned((1, 32, height, width), None) for height, width in ((64, 1), (4, 1), (3, 1), (64, 4))] == [
        True, True, False, False,
    ]  # fmt: skip
    assert is_better_turned((1, 32, 64, 2), None)
    assert not is_better_turned((1, 32, 64, 2), wide)  # would have to be moved
    assert is_better_turned((1, 32, 64, 1), narrow)
    assert is_better_turned((1, 32, 64, 2), turned)
    assert not is_better_turned((1, 32, 64), None)
    geometry = {"strides": [1, 2, 3], "padding": [1, 2, 3, 4, 5, 6]}
    assert turn_geometry(geometry, True) == {"strides": [1, 3, 2], "padding": [1, 3, 2, 4, 6, 5]}
    assert turn_geometry(geometry, False) == geometry
