"""Quantised numbers in marked loops: rounded in vectors, twice in one expression, and in the place they are of."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import te, tirx
from tvm.script import tirx as T

from tests.schedules.kernels import AWKWARD, TARGETS
from tests.schedules.simd.test_loops import lowered, marked, run
from tvm_ext.schedules.compute.quantized import dequantize, quantize
from tvm_ext.schedules.simd.loops import SIMD_ATTRIBUTE, vectorize_marked_loops


def silu(count: int) -> tirx.PrimFunc:
    """``x * sigmoid(x)`` of quantised numbers, both factors of which are rounded."""
    source = te.placeholder((count,), "uint8", "source")
    wide = dequantize(source, 0.05, 120)
    gate = dequantize(quantize(te.compute((count,), lambda i: te.sigmoid(wide[i])), 1 / 256, 0, "uint8"), 1 / 256, 0)
    product = te.compute((count,), lambda i: wide[i] * gate[i], name="product")
    func = te.create_prim_func([source, quantize(product, 0.04, 110, "uint8")])
    schedule = tvm.s_tir.Schedule(func)
    for block in schedule.get_child_blocks(schedule.get_sblock("root"))[:-1]:
        schedule.compute_inline(block)
    return schedule.mod["main"]


def expected(x: np.ndarray) -> np.ndarray:
    wide = (x.astype(np.int32) - 120).astype(np.float32) * np.float32(0.05)
    gate = np.clip(np.rint(256 / (1 + np.exp(-wide.astype(np.float64)))), 0, 255) / 256
    return np.clip(np.rint(wide * gate / 0.04) + 110, 0, 255).astype(np.uint8)


def loops_left(func: tirx.PrimFunc) -> list[tirx.For]:
    """Loops that are still marked: no vectors were made of them."""
    left: list[tirx.For] = []
    tvm_ffi.structural_walk(
        func.body, (tirx.For, lambda loop: left.append(loop) if SIMD_ATTRIBUTE in (loop.annotations or {}) else None)
    )
    return left


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("count", [*AWKWARD, 256, 1000])
def test_twice_in_one_expression(count: int, target: str) -> None:
    x = np.arange(count).astype(np.uint8)
    func = lowered(marked(silu(count), "quantize_1", 64), target)
    assert count == 1 or not loops_left(func)
    result = run(func, [x], (count,), "uint8", target)
    assert np.abs(result.astype(int) - expected(x).astype(int)).max() <= 1
    assert (result == expected(x)).mean() > 0.99


def test_in_the_place_of_what_is_read() -> None:
    """The address of what is stored is written in another way than that of what is read."""

    @T.prim_func
    def kernel(data: T.Buffer((5120,), "uint8")) -> None:
        for row, part in T.grid(64, 5):
            for lane in T.serial(16, annotations={"tvm_ext.simd": 16}):
                data[row * 80 + (part * 16 + lane)] = data[row * 80 + part * 16 + lane] * T.uint8(3)

    left = vectorize_marked_loops(kernel)
    assert not loops_left(left)
    data = tvm.runtime.tensor(np.arange(5120).astype(np.uint8))
    tvm.compile(tvm.IRModule({"main": left.with_attr("global_symbol", "main")}), target=TARGETS["native"])["main"](data)
    np.testing.assert_array_equal(data.numpy(), np.arange(5120).astype(np.uint8) * np.uint8(3))


def test_in_another_place_than_what_is_read() -> None:
    """Each iteration reads what the one before has stored."""

    @T.prim_func
    def kernel(data: T.Buffer((5120,), "uint8")) -> None:
        for lane in T.serial(16, annotations={"tvm_ext.simd": 16}):
            data[lane + 1] = data[lane] * T.uint8(3)

    assert loops_left(vectorize_marked_loops(kernel))
