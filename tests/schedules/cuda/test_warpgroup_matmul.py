"""Products by ``wgmma``, as the emulator runs them: what is under way when, swizzled tiles, warps that agree."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import te, tirx

from scripts.cuda.emulate import drawn, reference
from tests.schedules.cuda_kernels import CUDA, cuda_source
from tvm_ext.backends.cuda.async_copies import with_async_copies
from tvm_ext.backends.cuda.emulator.emulate import Emulator
from tvm_ext.errors import CompileError
from tvm_ext.schedules.cuda.machine import machine_of
from tvm_ext.schedules.cuda.product import find_product
from tvm_ext.schedules.cuda.product_tile import Tile
from tvm_ext.schedules.cuda.registers import registers_of_lanes
from tvm_ext.schedules.cuda.warpgroup_matmul import WarpgroupMatmul, schedule_warpgroup_product
from tvm_ext.schedules.rule import new_schedule

TARGET = CUDA["sm_90"]
SMALL = Tile(64, 64, 64, 64, 64, 1, 3)


def product(
    rows: int, columns: int, depth: int, turned: tuple[bool, bool] = (False, False), dtype: str = "float16"
) -> tirx.PrimFunc:
    """Make ``relu(A @ B)``; a turned factor is stored the other way round."""
    a = te.placeholder((depth, rows) if turned[0] else (rows, depth), dtype, "first")
    b = te.placeholder((columns, depth) if turned[1] else (depth, columns), dtype, "second")
    k = te.reduce_axis((0, depth), "k")

    def element(i: Any, j: Any) -> Any:
        left, right = a[k, i] if turned[0] else a[i, k], b[j, k] if turned[1] else b[k, j]
        return te.sum(left.astype("float32") * right.astype("float32"), axis=k)

    sums = te.compute((rows, columns), element, "sums")
    result = te.compute((rows, columns), lambda i, j: te.max(sums[i, j], 0.0).astype(dtype), "result")
    return te.create_prim_func([a, b, result])


def convolution(channels: int, size: int, filters: int) -> tirx.PrimFunc:
    """Make a convolution of 3 x 3, NHWC, with a border of zeros."""
    x = te.placeholder((1, size, size, channels), "float16", "pixels")
    w = te.placeholder((3, 3, channels, filters), "float16", "weights")
    padded = te.compute(
        (1, size + 2, size + 2, channels),
        lambda n, y, z, c: tirx.if_then_else(
            tirx.all(y >= 1, y <= size, z >= 1, z <= size), x[n, y - 1, z - 1, c], tirx.const(0, "float16")
        ),
        "padded",
    )
    r, s, c = te.reduce_axis((0, 3), "r"), te.reduce_axis((0, 3), "s"), te.reduce_axis((0, channels), "c")
    result = te.compute(
        (1, size, size, filters),
        lambda n, y, z, o: te.sum(
            padded[n, y + r, z + s, c].astype("float32") * w[r, s, c, o].astype("float32"), axis=[r, s, c]
        ),
        "result",
    )
    return te.create_prim_func([x, w, result])


def scheduled(func: tirx.PrimFunc, tile: Tile) -> tirx.PrimFunc:
    schedule, machine = new_schedule(func), machine_of(TARGET)
    found = find_product(schedule)
    assert found is not None
    dtype = str(func.params[0].dtype)
    schedule_warpgroup_product(schedule, found, tile, machine, (dtype, dtype))
    return with_async_copies(registers_of_lanes(schedule.mod["main"]), TARGET)


def agrees(func: tirx.PrimFunc, kernel: tirx.PrimFunc) -> bool:
    arrays = drawn(func)
    expected = reference(func, arrays)[-1].astype("float32")
    run = Emulator(kernel, TARGET)([array.copy() for array in arrays])
    assert not run.report.faults, str(run.report)
    got = run.arrays[-1].astype("float32")
    error = np.abs(got - expected).max()
    return bool(error <= 4e-3 * np.abs(expected).max())


@pytest.mark.parametrize("turned", [(False, False), (False, True), (True, False), (True, True)])
@pytest.mark.parametrize(
    "tile", [SMALL, Tile(128, 64, 64, 64, 64, 1, 4), Tile(64, 128, 64, 64, 128, 2, 3)], ids=["one", "two", "parts"]
)
def test_factors_stored_either_way(turned: tuple[bool, bool], tile: Tile) -> None:
    func = product(72, 136, 520, turned)
    assert agrees(func, scheduled(func, tile))


@pytest.mark.parametrize("sizes", [(7, 64, 256), (3, 8, 264), (17, 33, 320), (129, 127, 328), (64, 64, 256)])
def test_awkward_sizes(sizes: tuple[int, int, int]) -> None:
    rows, columns, depth = sizes
    func = product(rows, columns, depth, (False, True))
    assert agrees(func, scheduled(func, SMALL))


def test_wide_instructions_and_bfloat16() -> None:
    func = product(64, 256, 256, dtype="bfloat16")
    assert agrees(func, scheduled(func, Tile(64, 256, 64, 64, 256, 1, 3)))


@pytest.mark.parametrize("channels", [8, 64])
def test_convolutions_put_their_pixels_together_in_shared_memory(channels: int) -> None:
    func = convolution(channels, 9 if channels == 64 else 17, 64)
    tile = SMALL if channels == 64 else Tile(64, 64, 64, 64, 64, 1, 3)
    if channels == 8:  # 72 deep: fewer steps than tiles at a time
        assert WarpgroupMatmul().apply(func, TARGET) is None
        return
    assert agrees(func, scheduled(func, tile))


def without(kernel: tirx.PrimFunc, name: str) -> tirx.PrimFunc:
    """Leave the calls of a device function out."""

    def drop(statement: tirx.Evaluate, _mutator: Any) -> tirx.Evaluate:
        called = getattr(statement.value, "args", None)
        is_it = called and str(getattr(called[0], "value", "")) == name
        return tirx.Evaluate(0) if is_it else statement

    return kernel.with_body(tvm_ffi.structural_mutate(kernel.body, [(tirx.Evaluate, drop)]))


def test_the_emulator_sees_what_is_not_waited_for() -> None:
    func = product(64, 64, 512)
    kernel = scheduled(func, SMALL)
    assert agrees(func, kernel)
    assert not agrees(func, without(kernel, "tvm_ext_wgmma_wait1"))  # tiles are overwritten while products read them
    with pytest.raises(CompileError, match="nothing waits for"):
        agrees(func, without(kernel, "tvm_ext_wgmma_sums_32"))
    with pytest.raises(CompileError, match=r"fence\.proxy\.async"):
        agrees(func, without(kernel, "tvm_ext_wgmma_visible"))


def test_the_rule_takes_large_products_of_hopper() -> None:
    large, small = product(2048, 2048, 2048), product(33, 17, 128)
    rule = WarpgroupMatmul()
    assert rule.apply(large, TARGET) is not None
    assert rule.apply(small, TARGET) is None
    assert rule.apply(large, CUDA["sm_80"]) is None
    assert rule.apply(large, tvm.target.Target({"kind": "cuda", "arch": "sm_100"})) is None
    assert rule.apply(product(2048, 2048, 2048, dtype="float32"), TARGET) is None


def test_the_instructions_are_in_the_source() -> None:
    kernel = scheduled(product(256, 256, 512), Tile(128, 128, 64, 64, 128, 1, 4))
    source = cuda_source(tvm.IRModule({"main": kernel.with_attr("global_symbol", "main")}))
    assert "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16" in source
    assert source.count("fence.proxy.async.shared::cta") == 1  # of the device function
    assert "wgmma.wait_group.sync.aligned 1" in source
