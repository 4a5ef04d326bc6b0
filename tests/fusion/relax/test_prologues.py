"""Prologues: the same values as with kernels of their own, awkward channels, padding, NaN; and fewer kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import tvm
from tvm import relax
from tvm.relax import op

from tests.memory.relax.modules import lowered, results_of

Array = np.ndarray


def block(channels: int, out: int, kernel: int, stride: int, padding: int, size: int = 9) -> tuple[tvm.IRModule, Any]:
    """``y = conv(x); y, conv(relu(y * a + b))`` with a positive ``b``, so that padding before the relu would show."""
    rng = np.random.default_rng(channels * 100 + out * 10 + kernel)
    first = rng.standard_normal((channels, 8, 1, 1)).astype("float32")
    second = rng.standard_normal((out, channels, kernel, kernel)).astype("float32")
    scale = rng.uniform(0.5, 1.5, (1, channels, 1, 1)).astype("float32")
    shift = rng.uniform(0.5, 2.5, (1, channels, 1, 1)).astype("float32")
    x = relax.Var("x", relax.TensorType((1, 8, size, size), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit(op.nn.conv2d(x, relax.const(first)))
            z = builder.emit(op.add(builder.emit(op.multiply(y, relax.const(scale))), relax.const(shift)))
            z = builder.emit(op.nn.relu(z))
            z = builder.emit(op.nn.conv2d(z, relax.const(second), strides=(stride, stride), padding=padding))
            results = builder.emit_output(relax.Tuple([y, z]))
        builder.emit_func_output(results)

    def expected(value: Array) -> list[Array]:
        conv = torch.nn.functional.conv2d
        middle = conv(torch.from_numpy(value).double(), torch.from_numpy(first).double())
        active = torch.relu(middle * torch.from_numpy(scale).double() + torch.from_numpy(shift).double())
        last = conv(active, torch.from_numpy(second).double(), stride=stride, padding=padding)
        return [middle.numpy(), last.numpy()]

    return builder.get(), expected


def names(mod: tvm.IRModule) -> list[str]:
    return [variable.name_hint for variable, func in mod.functions_items() if isinstance(func, tvm.tirx.PrimFunc)]


CASES = [
    (1, 3, 3, 1, 1),
    (7, 17, 3, 1, 1),
    (17, 31, 3, 2, 1),
    (31, 33, 1, 1, 0),
    (33, 7, 1, 1, 0),
    (17, 16, 5, 1, 2),
    (64, 48, 1, 1, 0),
    (48, 64, 3, 1, 1),
    (40, 24, 1, 2, 0),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_values(case: tuple[int, int, int, int, int]) -> None:
    mod, expected = block(*case)
    low = lowered(mod, winograd=False)
    assert any("_of_" in name for name in names(low)), "nothing was computed while an input is copied"
    value = np.random.default_rng(1).standard_normal((1, 8, 9, 9)).astype("float32")
    for found, wanted in zip(results_of(low, [value]), expected(value), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


def test_nan_stays_where_it_is() -> None:
    mod, expected = block(17, 31, 3, 1, 1)
    low = lowered(mod, winograd=False)
    value = np.random.default_rng(2).standard_normal((1, 8, 9, 9)).astype("float32")
    value[0, 3, 2, 5] = np.nan
    found, wanted = results_of(low, [value])[1], expected(value)[1]
    np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted))
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


def test_off() -> None:
    mod, _ = block(17, 31, 3, 1, 1)
    assert not any("_of_" in name for name in names(lowered(mod, prologues=False)))


def window(channels: int, kind: str, kernel: int, stride: int, padding: int) -> tuple[tvm.IRModule, Any]:
    """``y = conv(x); y, window(y * a - 3)``: negative numbers, which padding with zeros would hide in a maximum."""
    rng = np.random.default_rng(channels * 10 + kernel)
    first = rng.standard_normal((channels, 8, 1, 1)).astype("float32")
    filters = rng.standard_normal((channels, 1, kernel, kernel)).astype("float32")
    scale = rng.uniform(0.1, 0.5, (1, channels, 1, 1)).astype("float32")
    x = relax.Var("x", relax.TensorType((1, 8, 9, 9), "float32"))
    builder = relax.BlockBuilder()
    size, strides = (kernel, kernel), (stride, stride)
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit(op.nn.conv2d(x, relax.const(first)))
            z = builder.emit(op.multiply(y, relax.const(scale)))
            z = builder.emit(op.subtract(z, relax.const(np.full((1, channels, 1, 1), 3, "float32"))))
            if kind == "depthwise":
                z = op.nn.conv2d(z, relax.const(filters), strides=strides, padding=padding, groups=channels)
            elif kind == "max":
                z = op.nn.max_pool2d(z, size, strides, padding)
            else:
                z = op.nn.avg_pool2d(z, size, strides, padding, count_include_pad=kind == "average")
            results = builder.emit_output(relax.Tuple([y, builder.emit(z)]))
        builder.emit_func_output(results)

    def expected(value: Array) -> list[Array]:
        functional = torch.nn.functional
        middle = functional.conv2d(torch.from_numpy(value).double(), torch.from_numpy(first).double())
        moved = middle * torch.from_numpy(scale).double() - 3
        if kind == "depthwise":
            weight = torch.from_numpy(filters).double()
            last = functional.conv2d(moved, weight, stride=stride, padding=padding, groups=channels)
        elif kind == "max":
            last = functional.max_pool2d(moved, kernel, stride, padding)
        else:
            last = functional.avg_pool2d(moved, kernel, stride, padding, count_include_pad=kind == "average")
        return [middle.numpy(), last.numpy()]

    return builder.get(), expected


@pytest.mark.parametrize("kind", ["depthwise", "max", "average", "average of image"])
@pytest.mark.parametrize("case", [(1, 3, 1, 1), (7, 3, 2, 1), (17, 5, 1, 2), (33, 3, 1, 0)], ids=str)
def test_windows(kind: str, case: tuple[int, int, int, int]) -> None:
    channels = case[0] + (case[0] == 1 and kind == "depthwise")
    mod, expected = window(channels, kind, *case[1:])
    low = lowered(mod, winograd=False)
    # With a projection behind it a depthwise convolution is part of a kernel that has such names of its own.
    assert any("_of_" in name or name.startswith("inverted_residual") for name in names(low)), names(low)
    value = np.random.default_rng(3).standard_normal((1, 8, 9, 9)).astype("float32")
    value[0, 2, 4, 4] = np.nan
    for found, wanted in zip(results_of(low, [value]), expected(value), strict=True):
        np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted))
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


def test_what_moves_data_stays_alone() -> None:
    """A conversion between layouts has tiles of its own; a concatenation is planned away."""
    rng = np.random.default_rng(4)
    weight = relax.const(rng.standard_normal((32, 32, 3, 3)).astype("float32"))
    x = relax.Var("x", relax.TensorType((1, 16, 9, 9), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            parts = [
                builder.emit(op.nn.conv2d(x, relax.const(rng.standard_normal((16, 16, 1, 1)).astype("float32"))))
                for _ in range(2)
            ]
            joined = builder.emit(op.concat(parts, axis=1))
            result = builder.emit_output(op.nn.conv2d(joined, weight, padding=1))
        builder.emit_func_output(result)
    low = lowered(builder.get(), winograd=False)
    assert not any("_of_" in name for name in names(low))
