"""Modules in half, bfloat16 and double precision agree with PyTorch, in the type that PyTorch gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tvm_ext

torch = pytest.importorskip("torch")

TOLERANCE = {torch.float16: 4e-3, torch.bfloat16: 3e-2, torch.float64: 1e-12}


@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_open_extents(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(24, 16), torch.nn.Tanh(), torch.nn.LayerNorm(16)).eval().to(dtype)
    shapes = ({0: torch.export.Dim("n", max=40), 1: torch.export.Dim("t", max=9)},)
    compiled = tvm_ext.compile(torch.export.export(module, (torch.randn(3, 5, 24).to(dtype),), dynamic_shapes=shapes))
    for rows, steps in ((1, 1), (7, 3), (40, 9)):
        data = torch.randn(rows, steps, 24).to(dtype)
        with torch.no_grad():
            expected = module(data).double().numpy()
        (result,) = compiled.run([data]).values()
        np.testing.assert_allclose(result.astype("float64"), expected, atol=2 * TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_a_module(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    nn = torch.nn
    module = nn.Sequential(
        nn.Conv2d(3, 10, 3, padding=1), nn.BatchNorm2d(10), nn.Hardswish(), nn.Conv2d(10, 7, 1),
        nn.GroupNorm(7, 7), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(7, 5), nn.LayerNorm(5), nn.Softmax(-1),
    )  # fmt: skip
    module, data = module.eval().to(dtype), torch.randn(2, 3, 9, 11).to(dtype)
    with torch.no_grad():
        expected = module(data)
    (result,) = tvm_ext.compile(module, example_inputs=(data,)).run([data]).values()
    assert str(result.dtype) == str(dtype).removeprefix("torch.")
    np.testing.assert_allclose(result.astype("float64"), expected.double().numpy(), atol=TOLERANCE[dtype])


def test_samples_of_halves() -> None:
    """They are halves, too, that others are multiplied with."""

    class Sampled(torch.nn.Module):
        def forward(self, x: Any, grid: Any) -> Any:
            return torch.nn.functional.grid_sample(x, grid, align_corners=False) * x.mean()

    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 3, 5, 5, generator=generator).half()
    grid = (torch.rand(2, 4, 4, 2, generator=generator) * 2 - 1).half()
    found = tvm_ext.compile(Sampled(), example_inputs=(x, grid)).run([x.numpy(), grid.numpy()])["output"]
    expected = Sampled()(x, grid).numpy()
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(found, expected, rtol=2e-2, atol=2e-3)
