"""Winograd's products for CUDA: what they compute, and where the cost model takes them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script import relax as R

from scripts.cuda.emulate import compare
from scripts.cuda.kernels import kernels_of, target_of
from tvm_ext.backends.cuda.winograd import seconds, winograd_convolutions
from tvm_ext.schedules.cuda.machine import machine_of
from tvm_ext.schedules.rule import RULE_ATTRIBUTE
from tvm_ext.target import resolve_target

TARGET = target_of("sm_90")


def convolution(
    shape: tuple[int, int, int, int], outputs: int, padding: Any, dtype: str = "float32", last: bool = False
) -> tuple[tvm.IRModule, np.ndarray]:
    """Make a convolution of (N, C, H, W) with a bias and relu; gives its weights (O, I, 3, 3), too."""
    images, channels, height, width = shape
    weight = (np.random.default_rng(1).standard_normal((outputs, channels, 3, 3)) / np.sqrt(9 * channels)).astype(dtype)
    turned = np.ascontiguousarray(weight.transpose(0, 2, 3, 1)) if last else weight
    layouts = {"data_layout": "NHWC", "kernel_layout": "OHWI"} if last else {}
    builder = relax.BlockBuilder()
    x = relax.Var("x", R.Tensor((images, height, width, channels) if last else shape, dtype))
    with builder.function("main", [x]):
        with builder.dataflow():
            product = builder.emit(R.nn.conv2d(x, relax.const(turned), padding=padding, out_dtype="float32", **layouts))
            biased = builder.emit(R.add(product, R.const(0.25, "float32")))
            result = builder.emit_output(R.nn.relu(biased))
        builder.emit_func_output(result)
    return builder.get(), weight


def expected(x: np.ndarray, weight: np.ndarray, padding: Any) -> np.ndarray:
    top, left, bottom, right = padding
    padded = np.pad(x.astype("float64"), ((0, 0), (0, 0), (top, bottom), (left, right)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    return np.maximum(np.einsum("nchwij,ocij->nohw", windows, weight.astype("float64")) + 0.25, 0)


CASES = [
    ((1, 16, 7, 9), 17, (1, 1, 1, 1)),
    ((2, 17, 3, 3), 16, (1, 1, 1, 1)),
    ((1, 33, 5, 31), 31, (0, 0, 0, 0)),
    ((1, 16, 1, 1), 33, (1, 1, 1, 1)),
    ((3, 31, 6, 4), 16, (0, 2, 1, 1)),
]


@pytest.mark.parametrize(("shape", "outputs", "padding"), CASES)
@pytest.mark.parametrize(("dtype", "last"), [("float32", False), ("float16", True), ("float16", False)])
def test_what_is_computed(shape: tuple[int, int, int, int], outputs: int, padding: Any, dtype: str, last: bool) -> None:
    mod, weight = convolution(shape, outputs, padding, dtype, last)
    with TARGET:
        turned = winograd_convolutions(always=True)(mod)
    assert "conv2d" not in turned.script()
    x = np.random.default_rng(2).standard_normal(shape).astype(dtype)
    plain = relax.VirtualMachine(tvm.compile(turned, "llvm"), tvm.cpu())
    given = np.ascontiguousarray(x.transpose(0, 2, 3, 1)) if last else x
    got = plain["main"](tvm.runtime.tensor(given)).numpy()
    got = got.transpose(0, 3, 1, 2) if last else got
    wanted = expected(x, weight, padding)
    tolerance = 1e-5 if dtype == "float32" else 2e-2
    np.testing.assert_allclose(got, wanted, rtol=tolerance, atol=tolerance)
    kernels = kernels_of("winograd", turned, TARGET)
    for kernel in kernels:
        why, _ = compare(kernel, TARGET)
        assert why == "", f"{kernel.name}: {why}"
    rules = {str(kernel.scheduled.attrs[RULE_ATTRIBUTE]) for kernel in kernels}
    on_tensor_cores = {"cuda.tensor_matmul", "cuda.warpgroup_matmul"}
    if shape != (1, 16, 1, 1):  # one tile is a product with a vector
        assert bool(rules & on_tensor_cores) == (dtype == "float16")
    assert len(kernels) == 3


def call_of(mod: tvm.IRModule) -> relax.Call:
    return mod["main"].body.blocks[0].bindings[0].value


def products(mod: tvm.IRModule, target: tvm.target.Target, **options: Any) -> bool:
    return any("winograd" in kernel.name for kernel in kernels_of("choice", mod, target, **options))


def test_many_channels_in_float32_take_it() -> None:
    mod, _ = convolution((1, 128, 56, 56), 128, (1, 1, 1, 1))
    a100 = resolve_target("nvidia/a100")
    direct, apart = seconds(call_of(mod), machine_of(a100))
    assert apart < direct
    assert products(mod, a100)
    assert not products(mod, a100, winograd=False)


def test_small_images_and_tensor_cores_do_not() -> None:
    small, _ = convolution((1, 64, 14, 14), 64, (1, 1, 1, 1))
    assert not products(small, TARGET)
    large, _ = convolution((1, 128, 56, 56), 128, (1, 1, 1, 1))
    assert not products(large, TARGET, precision="float16")


def test_infinities_stay_in_their_tiles() -> None:
    """Only results whose tile reads an infinity may differ from those of a direct convolution."""
    mod, _ = convolution((1, 16, 12, 12), 16, (1, 1, 1, 1))
    with TARGET:
        turned = winograd_convolutions(always=True)(mod)
    x = np.random.default_rng(2).standard_normal((1, 16, 12, 12)).astype("float32")
    x[0, 3, 5, 5] = np.inf
    plain = relax.VirtualMachine(tvm.compile(turned, "llvm"), tvm.cpu())
    got = plain["main"](tvm.runtime.tensor(x)).numpy()
    assert np.isfinite(got[:, :, :4]).all()
    assert np.isfinite(got[:, :, 8:]).all()
    assert not np.isfinite(got[:, :, 4:7, 4:7]).all()
