"""Exported programs whose open extents are computed from each other give what PyTorch gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import tvm_ext  # noqa: E402
from tvm_ext.errors import InputError  # noqa: E402

EXTENT = torch.export.Dim("s", min=6, max=64)
SIZES = (6, 7, 17, 31, 33, 64)


class Next(torch.nn.Module):
    def forward(self, x: Any, y: Any) -> Any:
        return x + y[1:], y[3:]


class Pairs(torch.nn.Module):
    def forward(self, x: Any, y: Any) -> Any:
        return x.reshape(-1, 2, 3).mean(1) @ y.t()


class Backwards(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        n = x.shape[0]
        few = torch.arange(n, 1, -2, dtype=torch.int32)
        return torch.arange(n - 1, -1, -1)[:, None] * x, torch.arange(2 * n, n, -3), few


def compiled(module: Any, given: Sequence[Any], shapes: Any) -> Any:
    return tvm_ext.compile(torch.export.export(module.eval(), tuple(given), dynamic_shapes=shapes))


def check(model: Any, module: Any, given: Sequence[Any]) -> None:
    found = list(model.run({spec.name: x.numpy() for spec, x in zip(model.inputs, given, strict=True)}).values())
    with torch.no_grad():
        wanted = module(*given)
    for got, want in zip(found, [wanted] if torch.is_tensor(wanted) else wanted, strict=True):
        assert got.shape == tuple(want.shape)
        assert got.dtype == want.numpy().dtype
        np.testing.assert_allclose(got, want.numpy(), rtol=1e-4, atol=1e-5)


def test_one_more() -> None:
    model = compiled(Next(), (torch.randn(8, 3), torch.randn(9, 3)), ({0: EXTENT}, {0: EXTENT + 1}))
    for n in SIZES:
        check(model, Next(), (torch.randn(n, 3), torch.randn(n + 1, 3)))
    with pytest.raises(InputError, match="which is 8 by the other inputs, found 9"):
        model.run({"x": np.zeros((7, 3), "float32"), "y": np.zeros((9, 3), "float32")})


def test_twice_as_many() -> None:
    model = compiled(Pairs(), (torch.randn(20, 3), torch.randn(10, 3)), ({0: 2 * EXTENT}, {0: EXTENT}))
    for n in SIZES:
        check(model, Pairs(), (torch.randn(2 * n, 3), torch.randn(n, 3)))
    with pytest.raises(InputError, match="which is 14 by the other inputs, found 15"):
        model.run({"x": np.zeros((15, 3), "float32"), "y": np.zeros((7, 3), "float32")})


def test_counting_downwards() -> None:
    model = compiled(Backwards(), (torch.randn(9, 3),), ({0: EXTENT},))
    for n in SIZES:
        check(model, Backwards(), (torch.randn(n, 3),))


class Speech(torch.nn.Module):
    """Convolutions of every other frame, a depthwise one, and attention over what is left."""

    def __init__(self) -> None:
        super().__init__()
        self.halved, self.quartered = torch.nn.Conv1d(5, 8, 3, 2, 1), torch.nn.Conv1d(8, 8, 3, 2, 1)
        self.depthwise, self.last = torch.nn.Conv1d(8, 8, 7, 1, 3, groups=8), torch.nn.Linear(8, 11)

    def forward(self, x: Any) -> Any:
        x = self.quartered(self.halved(x).relu())
        x = (x + self.depthwise(x)).transpose(1, 2)
        x = (x @ x.transpose(1, 2)).softmax(-1) @ x
        return self.last(x).log_softmax(-1)


class Detector(torch.nn.Module):
    """Strided convolutions and heads of two levels, side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.halved, self.quartered = torch.nn.Conv2d(3, 5, 3, 2, 1), torch.nn.Conv2d(5, 5, 3, 2, 1)
        self.head = torch.nn.Conv2d(5, 6, 1)

    def forward(self, x: Any) -> Any:
        first = self.halved(x).relu()
        found = [self.head(level).flatten(2) for level in (first, self.quartered(first))]
        boxes, scores = torch.cat(found, 2).transpose(1, 2).split((4, 2), -1)
        return boxes, scores.softmax(-1)


class Branchy(torch.nn.Module):
    """A convolution and a pool next to each other."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.left = torch.nn.Conv2d(3, 5, 3, 2, 1), torch.nn.Conv2d(5, 5, 3, 2, 1)
        self.pool, self.end = torch.nn.MaxPool2d(2, 2), torch.nn.Conv2d(10, 3, 3, 1, 1)

    def forward(self, x: Any) -> Any:
        stem = self.stem(x).relu()
        end = self.end(torch.cat([self.left(stem), self.pool(stem)], 1))
        return end, end.mean((2, 3))


QUARTERS = (2, 3, 7, 8, 13, 17, 31, 32)


def test_frames_in_fours() -> None:
    frames = 4 * torch.export.Dim("t", min=2, max=32)
    module = Speech().eval()
    model = compiled(module, (torch.randn(2, 5, 40),), ({2: frames},))
    assert model.outputs[0].shape[0] == 2
    assert model.outputs[0].shape[2] == 11
    for n in QUARTERS:
        check(model, module, (torch.randn(2, 5, 4 * n),))
    with pytest.raises(InputError, match="input x: dimension 2 must be a multiple of 4, 0 to 128, found 30"):
        model.run({"x": np.zeros((2, 5, 30), "float32")})
    with pytest.raises(InputError, match=r"dimension 2 is 132, and the model is made for 0 to 128"):
        model.run({"x": np.zeros((2, 5, 132), "float32")})


@pytest.mark.parametrize("network", [Detector, Branchy])
def test_images_in_fours(network: Any) -> None:
    tall, wide = (4 * torch.export.Dim(name, min=2, max=32) for name in ("h", "w"))
    module = network().eval()
    model = compiled(module, (torch.randn(1, 3, 16, 24),), ({2: tall, 3: wide},))
    for n, m in zip(QUARTERS, reversed(QUARTERS), strict=True):
        check(model, module, (torch.randn(1, 3, 4 * n, 4 * m),))
    with pytest.raises(InputError, match="input x: dimension 3 must be a multiple of 4, 0 to 128, found 33"):
        model.run({"x": np.zeros((1, 3, 8, 33), "float32")})


class Offset(torch.nn.Module):
    def forward(self, x: Any, y: Any) -> Any:
        return x[1:].reshape(-1, 2).sum(1), y * 2


def test_a_multiple_and_one_more() -> None:
    few = torch.export.Dim("s", min=3, max=20)
    model = compiled(Offset(), (torch.randn(9), torch.randn(8)), ({0: 2 * few + 1}, {0: 2 * few}))
    for n in (3, 4, 7, 17, 20):
        check(model, Offset(), (torch.randn(2 * n + 1), torch.randn(2 * n)))
    with pytest.raises(InputError, match=r"input y: dimension 0 must be .*, which is 8 by the other inputs"):
        model.run({"x": np.zeros(9, "float32"), "y": np.zeros(10, "float32")})
    wrong = r"input x: dimension 0 must be \w+ \* 2 \+ 1 for a whole number \w+, 7 to 41, found 10"
    with pytest.raises(InputError, match=wrong):
        model.run({"x": np.zeros(10, "float32"), "y": np.zeros(8, "float32")})


class Halves(torch.nn.Module):
    def forward(self, x: Any, y: Any) -> Any:
        return (x[:, 1::2] - y).cumsum(1)


def test_extents_that_cannot_be_proved_equal_are_compared() -> None:
    auto, given = torch.export.Dim.AUTO, (torch.randn(3, 8), torch.randn(3, 4))
    model = compiled(Halves(), given, ({1: auto}, {1: auto}))
    for n in (4, 5, 8, 33):
        check(model, Halves(), (torch.randn(3, n), torch.randn(3, n // 2)))
    with pytest.raises(InputError, match="where the model needs"):
        model.run({"x": np.zeros((3, 8), "float32"), "y": np.zeros((3, 3), "float32")})


class EverySecond(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return x[:, ::2] * 2


def test_ranges_of_derived_extents_are_narrowed() -> None:
    extent = torch.export.Dim("s", min=3, max=64)
    program = torch.export.export(EverySecond(), (torch.randn(2, 40),), dynamic_shapes=({1: 4 * extent},))
    for asked, low, high in (((32, 100), 32, 100), ((30, 103), 32, 100), ((1, 50), 12, 48), ((200, None), 200, 256)):
        model = tvm_ext.compile(program, dynamic={"x:1": asked})
        for size in (low, high):
            check(model, EverySecond(), (torch.randn(2, size),))
        for size in (low - 4, high + 4):
            with pytest.raises(InputError, match=f"the model is made for .*to {high}|must be a multiple of 4"):
                model.run({"x": np.zeros((2, size), "float32")})
    with pytest.raises(
        InputError, match="'x:1' is to be 300 or more, and the model is made for 12 to 256 in steps of 4"
    ):
        tvm_ext.compile(program, dynamic={"x:1": (300, None)})
    with pytest.raises(InputError, match="'x:0' is to stay open, and the model fixes it to 2"):
        tvm_ext.compile(program, dynamic={"x:0": (1, 4)})
