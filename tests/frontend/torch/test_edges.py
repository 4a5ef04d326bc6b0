"""Bounds, products of integers, truth values and numbers without dimensions: against torch, compiled as a whole."""

# ruff: noqa: E402 - what follows the check for torch needs torch

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.torch_compile.eager import assert_like_eager, compiled

pytestmark = pytest.mark.torch

NAN = float("nan")
LEFT = torch.tensor([1.0, NAN, 2.0, -3.0, NAN, float("inf")])
RIGHT = torch.tensor([NAN, 5.0, 1.0, -2.0, NAN, -float("inf")])
WHOLE, ROW = torch.arange(-15, 15).reshape(5, 6), torch.tensor([-3, 7, 0, -9, 2, 5])

CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "clamp of integers": (lambda x, y: (torch.clamp(x, y), torch.clamp(x, max=y)), (WHOLE, ROW)),
    "clamp by a number in a tensor": (torch.clamp_max, (WHOLE, torch.tensor(3))),
    "clamp by wider bounds": (lambda x, y: torch.clamp(x, y, y + 0.5), (LEFT[:1], RIGHT)),
    "clamp between tensors": (lambda x, y, z: torch.clamp(x, y, z), (LEFT, RIGHT, LEFT.flip(0))),
    "clamp of nothing": (torch.clamp_min, (torch.zeros(0, 1, 3), torch.zeros(0, 5, 3))),
    "clamp of integers by floats": (torch.clamp, (ROW, LEFT.nan_to_num(0.5, 2.5, -1))),
    "numbers that do not fit the type": (
        lambda x, y: (x < -1, x == 300, x > 300, y >= 200, y != -300, y + torch.tensor(200), y * torch.tensor(-1)),
        (WHOLE.abs().to(torch.uint8), torch.tensor([3, -128, 127, -56], dtype=torch.int8)),
    ),
    "pieces of nothing": (
        lambda x: (x.split([0, 2, 0, 4], 1), x.split([0, 6], 1), x.split([6], 1), x[:, 5:2], x[7:], x[-2:-4, 1:]),
        (WHOLE,),
    ),
    "the largest none": (lambda x, y: (x.topk(0, 1), y.topk(0, 0)), (WHOLE.float(), WHOLE.to(torch.uint8))),
    "elements of nothing": (
        lambda x, i: (x[:0][:, i], x[:, :0][i], x[i[:0]], x[:, i[:0], None]),
        (WHOLE, torch.tensor([4, 0, -1])),
    ),
    "the most frequent": (
        lambda x: (x.mode(1), x.mode(0, keepdim=True), x[:, :1].mode(), x.float().mode(-1).values, x[0, 0].mode()),
        ((WHOLE * WHOLE) % 7,),
    ),
    "repeated as a tensor says": (
        lambda x, n: (
            x.repeat_interleave(n, 0, output_size=9),
            x.repeat_interleave(n.int(), 0, output_size=9),
            torch.repeat_interleave(n, output_size=9),
        ),
        (WHOLE, torch.tensor([2, 0, 3, 4, 0])),
    ),
    "clamp of bytes": (
        lambda x: (x.clamp(-3, 5), x.clamp(-3), x.clamp(max=-3), x.clamp(7, 200), -x),
        (WHOLE.abs().to(torch.uint8),),
    ),
    "any and all of nothing": (
        lambda x: (x.any(), x.all(), x.any(0), x.all(0), x.any(1), x.all(1, keepdim=True)),
        (torch.zeros(3, 0),),
    ),
    "any and all of a NaN": (lambda x: (x.any(), x.all(), x[:2].any(0), (x == 0).all()), (LEFT,)),
    "any of bytes": (
        lambda x: (x.any(), x.any(1), x.all(0), x[0, 0].any(), x[:0].any(0)),
        (WHOLE.abs().to(torch.uint8),),
    ),
    "a number as a vector": (
        lambda x, i: (
            x.sort(0),
            x.topk(1),
            x.flip(0),
            x.argmax(),
            x.argmin(0),
            x.logsumexp(0),
            x.gather(0, i),
            x.argsort(),
            x.index_select(0, i[None]),
            x.sum(0),
            x.kthvalue(1),
            x.median(0),
        ),
        (LEFT[0], torch.tensor(0)),
    ),
    "statistics of a number as a vector": (
        lambda x: (
            x.mean(-1, keepdim=True),
            x.var(0, unbiased=False),
            torch.linalg.vector_norm(x, 3, 0),
            torch.linalg.vector_norm(x, float("-inf"), -1, keepdim=True),
            torch.nn.functional.normalize(x, dim=0),
            x.unfold(0, 1, 1),
            x.unfold(0, 0, 1),
        ),
        (LEFT[3],),
    ),
    "steps downwards": (
        lambda x: (
            torch.arange(6, -7, -1) * x[0],
            torch.arange(6, -6, -2, dtype=torch.float32) * x[0],
            torch.arange(9, -10, -3, dtype=torch.bfloat16) * x[0].bfloat16(),
            torch.arange(1.0, -1.0, -0.25) * x[0],
            torch.arange(3, 3, -1) * x[0],
        ),
        (LEFT[:1],),
    ),
    "signs of truth values": (lambda x: (x.sign() & x, x.sgn() | x), (WHOLE % 2 == 0,)),
    "truth values that meet": (
        lambda x, y, i: (
            x.index_add(0, i, y),
            x.scatter_add(0, i, y),
            x.scatter_reduce(0, i, y, "prod"),
            x.scatter_reduce(0, i, y, "amin", include_self=False),
            x.scatter_reduce(0, i, y, "amax", include_self=False),
            torch.index_put(x, (i,), y, accumulate=True),
            torch.index_put(x, (x,), y[:1], accumulate=True),
        ),
        (WHOLE[0] % 2 == 0, torch.tensor([True, False, True]), torch.tensor([1, 1, 0])),
    ),
    "elements by strides": (
        lambda x: (
            x.as_strided((2, 3), (1, 2), 1),
            x.as_strided((4, 6), (6, 1)),
            x.as_strided((), (), 7),
            x.as_strided((3, 0), (1, 1)),
            x.as_strided((5, 5), (1, 1), 3),
        ),
        (WHOLE,),
    ),
    "fmax and fmin": (lambda x, y: (torch.fmax(x, y), torch.fmin(x, y)), (LEFT, RIGHT)),
    "fmax and fmin of halves": (lambda x, y: (torch.fmax(x, y), torch.fmin(x, y)), (LEFT.half(), RIGHT.half())),
    "fmax and fmin of bfloat16": (
        lambda x, y: (torch.fmax(x, y), torch.fmin(x, y)),
        (LEFT.bfloat16(), RIGHT.bfloat16()),
    ),
    "fmax of integers": (torch.fmax, (WHOLE, ROW)),
    "fmax of both": (torch.fmax, (ROW, LEFT)),
    "order of truth values": (
        lambda x, y: (x < y, x <= y, x > y, x >= y, x >= True, x < 1),
        (WHOLE > 0, ROW > 0),
    ),
    "running sum of a number": (lambda x: (x.cumsum(0), x.cumprod(0)), (torch.tensor(2.5),)),
    "running sum of a truth value": (lambda x: x.cumsum(0), (torch.tensor(True),)),
    "products of integers": (lambda x, y: (x @ y, x.int() @ y.int(), x[None] @ y[None]), (WHOLE, WHOLE.T)),
    "products of integers that overflow": (lambda x, y: x @ y, (WHOLE.to(torch.int8) * 7, WHOLE.T.to(torch.int8) * 7)),
    "scaled products of integers": (lambda x, y: torch.addmm(x @ y, x, y, alpha=2, beta=3), (WHOLE, WHOLE.T)),
    "extremes of truth values": (
        lambda x, y: (torch.maximum(x, y), torch.minimum(x, y), x.max(), x.min(), x.amax(1), x.amin(0, keepdim=True)),
        (WHOLE > 0, ROW > 0),
    ),
    "extremes of a number": (lambda x: (x.amax(0), x.amin(), x.max(), x.softmax(0), x.log_softmax(0)), (LEFT[0],)),
    "powers of two": (
        lambda x, y, z: (torch.exp2(x), torch.ldexp(x, y), torch.ldexp(y, y % 3), torch.logaddexp2(x, z)),
        (LEFT, ROW, RIGHT),
    ),
    "remainders of a number": (lambda x, y: (7 % x, -7 % (y + 0.5), torch.remainder(2.5, y)), (ROW.abs() + 1, LEFT)),
    "none is a NaN": (lambda x, y: (x.isnan(), y.isnan(), torch.heaviside(y, y)), (ROW, ROW > 0)),
    "scattered by a larger mask": (lambda x, y: x.masked_scatter(y > 0, y.float()), (ROW.float(), WHOLE)),
    "more corrected for than there is": (
        lambda x, y: (x.var(0), torch.std(y, 1, correction=5), torch.var_mean(y, 1, correction=4), y / 0),
        (torch.zeros(0, 5), WHOLE[:, :3].float()),
    ),
    "sums of vectors and products": (
        lambda x, y, z: (torch.addmv(y, x, z, alpha=0.5, beta=2.0), torch.addbmm(x[:, :5], x[None], x.T[None])),
        (WHOLE.float(), torch.ones(5), ROW.float()),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_numbers_of_torch(case: str) -> None:
    function, arguments = CASES[case]
    assert_like_eager(function, arguments, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda x: torch.native_layer_norm(x, [6], None, None, 1e-5), "only the normalised tensor"),
        (lambda x: torch.nn.functional.avg_pool2d(x.long()[None], 2, divisor_override=3), "convert them to floats"),
    ],
)
def test_what_is_refused(function: Callable[..., Any], said: str) -> None:
    with pytest.raises(Exception, match=said):
        compiled(function)(WHOLE.float())
