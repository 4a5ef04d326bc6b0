"""Pictures of open extents resized, and resized to open extents: the numbers of PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402

import tvm_ext  # noqa: E402
from tvm_ext.errors import UnsupportedOperatorError  # noqa: E402

AUTO = torch.export.Dim.AUTO
SIZES = ((1, 1), (5, 7), (17, 31), (33, 6), (9, 127), (49, 64), (128, 10))
WAYS = [("nearest", None), ("bilinear", False), ("bilinear", True), ("bicubic", False), ("bicubic", True)]


class Neck(torch.nn.Module):
    """The upper levels of a feature pyramid, each added to the next."""

    def __init__(self, mode: str, corners: bool | None, scale: float | None = None) -> None:
        super().__init__()
        self.mode, self.corners, self.scale = mode, corners, scale
        self.halved = torch.nn.Conv2d(3, 5, 3, 2, 1)
        self.quartered = torch.nn.Conv2d(5, 5, 3, 2, 1)

    def forward(self, x: Any) -> Any:
        large = self.halved(x)
        small = self.quartered(large)
        if self.scale is not None:
            return F.interpolate(small, scale_factor=self.scale, mode=self.mode, align_corners=self.corners)
        return large + F.interpolate(small, size=large.shape[-2:], mode=self.mode, align_corners=self.corners)


class Positions(torch.nn.Module):
    """A table of fixed size, resized to what the picture has."""

    def __init__(self, mode: str, corners: bool | None) -> None:
        super().__init__()
        self.mode, self.corners = mode, corners
        self.table = torch.nn.Parameter(torch.randn(1, 3, 6, 7, generator=torch.Generator().manual_seed(0)))

    def forward(self, x: Any) -> Any:
        return x + F.interpolate(self.table, size=x.shape[-2:], mode=self.mode, align_corners=self.corners)


class Repeated(torch.nn.Module):
    def __init__(self, scale: Any) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, x: Any) -> Any:
        return F.interpolate(x, scale_factor=self.scale, mode="nearest")


def check(module: torch.nn.Module, sizes: Any, least: int = 1) -> None:
    given = (torch.randn(2, 3, 20, 28),)
    span = AUTO(min=least, max=300) if least > 2 else AUTO(max=300)
    program = torch.export.export(module.eval(), given, dynamic_shapes=({2: span, 3: span},))
    model = tvm_ext.compile(program)
    for size in sizes:
        x = torch.randn(2, 3, *size)
        with torch.no_grad():
            wanted = module(x).numpy()
        (found,) = model.run([x.numpy()]).values()
        assert found.shape == wanted.shape, size
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=2e-5, err_msg=str(size))


@pytest.mark.parametrize(("mode", "corners"), WAYS)
def test_to_the_size_of_another_level(mode: str, corners: bool | None) -> None:
    check(Neck(mode, corners), SIZES[1:])


@pytest.mark.parametrize(("mode", "corners"), WAYS)
def test_by_a_factor(mode: str, corners: bool | None) -> None:
    for scale in (2.0, 3.0, 0.5) if mode == "bilinear" else (2.0,):
        # Torch makes it a condition that two rows are left.
        sizes = [size for size in SIZES[1:] if scale > 1 or min(size) > 12]
        check(Neck(mode, corners, scale), sizes)


@pytest.mark.parametrize(("mode", "corners"), WAYS)
def test_a_table_of_fixed_size(mode: str, corners: bool | None) -> None:
    check(Positions(mode, corners), ((6, 7), *SIZES))


@pytest.mark.parametrize("scale", [(2.0, 3.0), 0.25, 7.0])
def test_nearest_by_factors(scale: Any) -> None:
    small = scale == 0.25
    check(Repeated(scale), ((8, 9), (17, 31), (33, 127)) if small else SIZES, 4 if small else 1)


def test_a_factor_that_is_no_fraction_is_refused() -> None:
    given, dynamic = (torch.randn(1, 3, 20, 28),), ({2: AUTO, 3: AUTO},)
    program = torch.export.export(Repeated(1.2345678), given, dynamic_shapes=dynamic)
    with pytest.raises(UnsupportedOperatorError, match=r"scales an open extent by 1\.2345678, which is no"):
        tvm_ext.compile(program)


def test_a_fixed_extent_takes_any_factor_beside_an_open_one() -> None:
    module = Repeated((2.0, 1.7))
    program = torch.export.export(module, (torch.randn(2, 3, 20, 28),), dynamic_shapes=({2: AUTO(max=300)},))
    model = tvm_ext.compile(program)
    for height in (1, 7, 33):
        x = torch.randn(2, 3, height, 28)
        np.testing.assert_allclose(next(iter(model.run([x.numpy()]).values())), module(x).numpy())
