"""Kernels that slide a window over each channel: poolings are made of vectors, and hand NaN on."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op

from tvm_ext.backends.cpu.target import native_target

WIDTHS = {"x86-64-v3": 8, "x86-64-v4": 16}


def pooling(shape: tuple[int, ...], **attributes: object) -> tvm.IRModule:
    """Make a convolution, which brings the blocked layout, and a max pooling behind it."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    weight = relax.const(np.random.default_rng(0).standard_normal((32, shape[1], 1, 1)).astype("float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            hidden = builder.emit(op.nn.conv2d(x, weight))
            output = builder.emit_output(op.nn.max_pool2d(hidden, (3, 3), (2, 2), **attributes))
        builder.emit_func_output(output)
    return builder.get()


@pytest.mark.parametrize("cpu", WIDTHS)
@pytest.mark.parametrize("padding", [(0, 0, 0, 0), (1, 1, 1, 1)], ids=["inside", "padded"])
def test_maxima_are_of_vectors(cpu: str, padding: tuple[int, ...]) -> None:
    """One iteration after the other, LLVM took seconds for them, and so did the kernel."""
    target = tvm.target.Target({"kind": "llvm", "mcpu": cpu})
    mod = pooling((1, 16, 27, 27), padding=padding)
    source = tvm.compile(mod, target, relax_pipeline="tvm_ext").mod.imports[0].inspect_source("ll")
    function = re.search(r"^define [^\n]*max_pool\w*_compute_\(.*?^}", source, re.DOTALL | re.MULTILINE)
    assert function is not None
    assert f"fcmp uno <{WIDTHS[cpu]} x float>" in function[0]
    assert "fcmp uno float" not in function[0]


@pytest.mark.parametrize("cpu", ["x86-64-v2", *WIDTHS])
def test_maxima_take_the_instruction_for_them(cpu: str) -> None:
    """LLVM made two comparisons and a choice where NaN was handed on as the operand that it was found in."""
    target = tvm.target.Target({"kind": "llvm", "mcpu": cpu})
    assembly = (
        tvm.compile(pooling((1, 16, 27, 27)), target, relax_pipeline="tvm_ext").mod.imports[0].inspect_source("asm")
    )
    function = re.search(r"^max_pool\w*_compute_:.*?^\.Lfunc_end", assembly, re.DOTALL | re.MULTILINE)
    assert function is not None
    maxima, comparisons = (len(re.findall(rf"\sv?{name}ps\s", function[0])) for name in ("max", r"cmp\w*"))
    assert 0 < comparisons <= maxima


@pytest.mark.parametrize("padding", [(0, 0, 0, 0), (1, 1, 1, 1)], ids=["inside", "padded"])
@pytest.mark.parametrize("side", [7, 17, 33])
def test_every_window_with_nan_gives_nan(padding: tuple[int, ...], side: int) -> None:
    generator = np.random.default_rng(side)
    x = generator.standard_normal((1, 3, side, side)).astype("float32")
    x[:, :, side // 2, side // 3] = np.nan
    mod = pooling(x.shape, padding=padding)
    ours, stock = (
        relax.VirtualMachine(tvm.compile(mod, native_target(), relax_pipeline=pipeline), tvm.cpu())
        for pipeline in ("tvm_ext", "default")
    )
    found = ours["main"](tvm.runtime.tensor(x)).numpy()
    held = np.nan_to_num(x, nan=0.0)
    expected = stock["main"](tvm.runtime.tensor(held)).numpy()
    is_nan = np.isnan(found)
    first, steps = side // 2 + padding[0], side // 3 + padding[0]
    windows = np.zeros(found.shape[2:], bool)
    for row in range(windows.shape[0]):
        for column in range(windows.shape[1]):
            windows[row, column] = 0 <= first - 2 * row < 3 and 0 <= steps - 2 * column < 3
    assert windows.any()
    np.testing.assert_array_equal(is_nan, np.broadcast_to(windows, found.shape))
    np.testing.assert_allclose(found[~is_nan], expected[~is_nan], rtol=1e-5, atol=1e-5)
