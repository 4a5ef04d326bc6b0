"""Functions that few models use, and edges of common ones: against torch, compiled as a whole."""

# ruff: noqa: E402 - what follows the check for torch needs torch

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F

from tests.torch_compile.eager import LENIENT, assert_like_eager, one_warning

pytestmark = pytest.mark.torch

GENERATOR = torch.Generator().manual_seed(0)
EDGES = torch.tensor([1.0, float("nan"), -0.0, 0.0, -3.0, float("inf"), float("-inf"), 20.0, 12.5, 11.9, 88.0])
WHOLE = torch.randint(-50, 50, (5, 1, 7), generator=GENERATOR)
ROW = torch.randint(-50, 50, (3, 1), generator=GENERATOR)
GAPS = torch.randn(4, 5, 6, generator=GENERATOR)
GAPS[GAPS > 0.8] = float("nan")
GAPS[0] = float("nan")
PICTURE = torch.randint(-9, 9, (1, 2, 6, 7), generator=GENERATOR).float()
SQUARE = torch.randn(5, 6, generator=GENERATOR)

CASES: dict[str, tuple[tuple[Any, ...], Callable[..., Any]]] = {
    "greatest common divisors": ((WHOLE, ROW), torch.gcd),
    "of bytes": ((WHOLE.to(torch.uint8), ROW.to(torch.uint8)), torch.gcd),
    "of nothing": ((WHOLE[:0], ROW), torch.gcd),
    "least common multiples": ((WHOLE, ROW), torch.lcm),
    "that overflow": ((WHOLE.to(torch.int8), ROW.to(torch.int8)), torch.lcm),
    "median of numbers": ((GAPS,), lambda x: (torch.nanmedian(x), torch.nanmedian(x[0]), torch.nanmedian(x[1, 2, 3]))),
    "median of numbers along axes": (
        (GAPS,),
        lambda x: (torch.nanmedian(x, 0)[0], torch.nanmedian(x[1:], 1, True), torch.nanmedian(x.bfloat16(), -1)[0]),
    ),
    "median of integers": ((WHOLE,), lambda x: torch.nanmedian(x, 0)[0]),
    "median of narrow integers": (
        (WHOLE.to(torch.int8), WHOLE.to(torch.uint8)),
        lambda x, y: (x.median(), y.median(0)[0], x.median(-1, True)[0], y.nanmedian(), x.nanmedian(0)[0]),
    ),
    "diagonals": (
        (SQUARE,),
        lambda x: (
            torch.diagonal_scatter(x, x[0, :5] * 0, 1),
            torch.diagonal_scatter(x, x[0, :4] * 0, -1),
            torch.diagonal_scatter(x[None], x[:, :1], 0, 2, 0),
            torch.diagonal_scatter(x, x[0, :0], 6),
        ),
    ),
    "Bessel function": ((torch.linspace(-30, 30, 1001), EDGES, WHOLE), lambda x, e, n: (x.i0(), e.i0(), n.i0())),
    "Bessel function of halves": ((torch.linspace(-10, 10, 101).half(),), torch.i0),
    "inverse error function": (
        (torch.linspace(-1, 1, 1001), EDGES, torch.tensor([1e-30, 1 - 2**-24, -0.999999, 0.5])),
        lambda x, e, s: (x.erfinv(), e.erfinv(), s.erfinv(), x.half().erfinv()),
    ),
    "sign bits": (
        (EDGES, EDGES.bfloat16(), EDGES.half(), EDGES.double()),
        lambda *values: tuple(value.signbit() for value in values),
    ),
    "sign bits of integers": ((WHOLE,), lambda x: (x.signbit(), (x > 0).signbit())),
    "angles": ((EDGES, WHOLE), lambda e, x: (e.angle(), e.double().angle(), e.half().angle(), x.angle())),
    "distances": (
        (SQUARE, SQUARE[0]),
        lambda x, y: tuple(torch.dist(x, y, p) for p in (0, 1, 2, 3.5, float("inf"), float("-inf"))),
    ),
    "triangles": ((SQUARE,), lambda x: (x, torch.tril_indices(5, 7, 1), torch.triu_indices(3, 4, -1))),
    "copies of views": ((SQUARE,), lambda x: (torch.permute_copy(x, (1, 0)) * 2, torch.unbind_copy(x, 1)[0] * 2)),
    "norms in another type": (
        (SQUARE.half(),),
        lambda x: tuple(torch.linalg.vector_norm(x, p, dtype=torch.float32) for p in (0, 2)),
    ),
    "running extremes in bfloat16": ((EDGES.bfloat16(),), lambda x: (torch.cummax(x, 0), torch.cummin(x, 0))),
    "circular padding that cuts off": (
        (PICTURE,),
        lambda x: tuple(
            F.pad(x, widths, mode="circular") for widths in ((-1, 1, -2, 1), (2, -1, 0, 0), (-1, -1, 1, 1))
        ),
    ),
    "steps that are cut to integers": (
        (WHOLE,),
        lambda x: (x, torch.arange(0.1, -7.9, -4.0, dtype=torch.int32), torch.arange(0.5, 3, dtype=torch.int64)),
    ),
    "indices of 32 bits": ((SQUARE, ROW.abs().int() % 5), lambda x, i: torch.gather(x, 0, i)),
}


@pytest.mark.parametrize("case", CASES)
def test_as_in_torch(case: str) -> None:
    arguments, function = CASES[case]
    assert_like_eager(function, arguments, rtol=1e-3 if "halves" in case else 1e-5, atol=1e-6)


POOLS: dict[str, tuple[Any, Callable[..., Any]]] = {
    "with a remainder": (PICTURE, lambda x: F.max_pool2d(x, 3, 2, ceil_mode=True, return_indices=True)),
    "dilated and padded": (PICTURE, lambda x: F.max_pool2d(x, 3, 2, 1, 2, True, True)),
    "of integers": (PICTURE.long(), lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True)),
    "of bfloat16": (PICTURE.bfloat16(), lambda x: F.max_pool2d(x, (2, 3), return_indices=True)),
    "of NaN": (
        torch.where(PICTURE > 3, float("nan"), PICTURE),
        lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True),
    ),
    "of the smallest": (PICTURE * float("-inf"), lambda x: F.max_pool2d(x.abs() * -1, 3, 2, 1, return_indices=True)),
    "along one axis": (PICTURE[0], lambda x: F.max_pool1d(x, 2, return_indices=True)),
    "of volumes": (
        PICTURE.reshape(2, 3, 2, 7),
        lambda x: F.max_pool3d(x, (2, 1, 3), 2, (1, 0, 1), ceil_mode=True, return_indices=True),
    ),
    "undone": (PICTURE, lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2, output_size=(6, 7))),
    "without places": (PICTURE, lambda x: (F.max_pool2d(x, (2, 3)), F.max_pool2d(x.long(), 3, 1, 1))),
}


@pytest.mark.parametrize("case", POOLS)
def test_places_of_maxima(case: str) -> None:
    picture, function = POOLS[case]
    assert_like_eager(function, (picture,))


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("antialias", [False, True])
def test_integers_are_resized_by_torch(mode: str, antialias: bool) -> None:
    picture = (torch.arange(297) * 37 % 255).to(torch.uint8).reshape(1, 3, 9, 11)
    with one_warning("integers are not interpolated; convert them to floats before"):
        assert_like_eager(
            lambda x: F.interpolate(x, (5, 7), mode=mode, antialias=antialias), (picture,), options=LENIENT
        )
