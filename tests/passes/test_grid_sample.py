"""Bicubic sampling by a grid, against PyTorch: all paddings, ends and centres, pictures of one pixel, far places."""

# ruff: noqa: E402 - what follows the check for torch needs torch

from __future__ import annotations

import time

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch.nn import functional
from tvm import relax

import tvm_ext

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    ("shape", "dtype", "modes"),
    [
        ((2, 3, 5, 7), "float32", [("zeros", False), ("border", True), ("reflection", False)]),
        ((1, 2, 1, 9), "float32", [("zeros", True), ("border", False)]),
        ((1, 17, 4, 3), "float64", [("reflection", True)]),
    ],
)
def test_bicubic_sampling_is_that_of_torch(shape: tuple[int, ...], dtype: str, modes: list[tuple[str, bool]]) -> None:
    generator = np.random.default_rng(0)
    picture = generator.standard_normal(shape).astype(dtype)
    places = (generator.random((shape[0], 3, 17, 2)) * 5 - 2.5).astype(dtype)
    builder = relax.BlockBuilder()
    x, grid = (
        relax.Var(name, relax.TensorType(sizes, dtype))
        for name, sizes in (("x", shape), ("grid", (shape[0], 2, 3, 17)))
    )
    with builder.function("main", [x, grid]):
        with builder.dataflow():
            sampled = [
                builder.emit(relax.op.image.grid_sample(x, grid, "bicubic", "NCHW", padding, corners))
                for padding, corners in modes
            ]
            result = builder.emit_output(relax.Tuple(sampled))
        builder.emit_func_output(result)
    start = time.process_time()
    compiled = tvm_ext.compile(builder.get())
    assert time.process_time() - start < 30
    found = compiled.run([picture, np.ascontiguousarray(places.transpose(0, 3, 1, 2))]).values()
    for (padding, corners), values in zip(modes, found, strict=True):
        expected = functional.grid_sample(
            torch.from_numpy(picture), torch.from_numpy(places), "bicubic", padding, corners
        ).numpy()
        np.testing.assert_allclose(values, expected, rtol=1e-5, atol=3e-5, err_msg=f"{padding}, {corners}")
