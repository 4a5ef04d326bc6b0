"""Cumulative sums and products: right in the emulator, and without races between threads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script import relax as R

from scripts.cuda.kernels import kernels_of, target_of
from tests.cuda.whole_model import EmulatedModel
from tests.schedules.kernels import graph
from tvm_ext.backends.cuda.emulator.emulate import Emulator
from tvm_ext.backends.cuda.own_locals import own_locals
from tvm_ext.backends.cuda.resources import kernel_resources
from tvm_ext.backends.cuda.toolkit import find_toolkit
from tvm_ext.errors import CompileError
from tvm_ext.schedules.cuda.scan import NAME, scan_kernel
from tvm_ext.schedules.rule import RULE_ATTRIBUTE

TARGET = target_of("sm_90")


def emulated(kernel: Any, x: np.ndarray, out: str) -> np.ndarray:
    done = Emulator(kernel, TARGET)([x, np.full(x.shape, 77, out)])
    assert not done.report.faults
    return done.arrays[1]


@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (5, 127), (2, 129), (3, 1030), (2, 5000)])
@pytest.mark.parametrize("exclusive", [False, True])
def test_sums(shape: tuple[int, int], exclusive: bool) -> None:
    x = np.random.default_rng(0).integers(-99, 99, shape).astype("int32")
    got = emulated(scan_kernel(*shape, "int32", "int64", False, exclusive), x, "int64")
    np.testing.assert_array_equal(got, np.cumsum(x, 1, dtype="int64") - (x if exclusive else 0))


def test_products_and_numbers_that_are_not_finite() -> None:
    x = np.random.default_rng(0).uniform(0.9, 1.1, (3, 1100)).astype("float32")
    x[0, 7], x[1, 500] = np.nan, np.inf
    for exclusive in (False, True):
        expected = np.cumprod(x.astype("float64"), 1)
        if exclusive:
            expected = np.concatenate([np.ones((3, 1)), expected[:, :-1]], 1)
        got = emulated(scan_kernel(3, 1100, "float32", "float32", True, exclusive), x, "float32")
        np.testing.assert_allclose(got, expected, rtol=1e-4)


def test_halves_add_up_in_single_precision() -> None:
    x = np.full((1, 4096), 0.25, "float16")
    got = emulated(scan_kernel(1, 4096, "float16", "float16", False, False), x, "float16")
    np.testing.assert_array_equal(got[0], (np.arange(1, 4097) * 0.25).astype("float16"))


@pytest.mark.parametrize(("shape", "axis"), [((3, 33, 5), 1), ((3, 33), 0), ((7, 129), -1), ((5, 4), None)])
def test_any_axis(shape: Sequence[int], axis: int | None) -> None:
    mod = graph(lambda _, x: R.cumsum(x, axis=axis), [(shape, "float32")])
    kernels = kernels_of("cumsum", mod, TARGET)
    (scan,) = [kernel for kernel in kernels if kernel.scheduled.attrs[RULE_ATTRIBUTE] == NAME]
    assert all(RULE_ATTRIBUTE in kernel.scheduled.attrs for kernel in kernels)
    toolkit = find_toolkit()
    if toolkit is not None:
        assert not any(row.spills for row in kernel_resources({"scan": scan.scheduled}, TARGET, toolkit))
    x = np.random.default_rng(0).standard_normal(shape).astype("float32")
    with tvm.target.Target("llvm"):
        plain = relax.VirtualMachine(tvm.compile(mod, "llvm"), tvm.cpu())
    expected = plain["main"](tvm.runtime.tensor(x)).numpy()
    wide = np.cumsum(x.astype("float64"), axis)
    np.testing.assert_allclose(expected, wide, rtol=1e-4, atol=1e-4)
    lines = np.moveaxis(x, axis, -1) if axis is not None else x
    rows = np.ascontiguousarray(lines.reshape(1, -1) if axis is None else lines.reshape(-1, shape[axis]))
    got = emulated(scan.scheduled, rows, "float32")
    moved = wide if axis is None else np.moveaxis(wide, axis, -1)
    np.testing.assert_allclose(got, moved.reshape(rows.shape), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("axis", "exclusive"), [(0, False), (1, True), (2, False)])
def test_open_extents(axis: int, exclusive: bool) -> None:
    """TVM's scan has threads of a warp read what others write in the same step."""
    n, m = (tvm.tirx.Var(name, "int64") for name in "nm")
    scanned = graph(lambda _, x: R.cumsum(x, axis=axis, exclusive=exclusive), [((n, m, 2), "float32")])
    model = EmulatedModel(scanned, TARGET)
    assert model.rules["scan"] == NAME
    for shape in ((1, 1, 2), (3, 70, 2), (2, 1300, 2)):
        x = np.random.default_rng(0).standard_normal(shape).astype("float32")
        expected = np.cumsum(x.astype("float64"), axis) - (x if exclusive else 0)
        np.testing.assert_allclose(model(x)[0], expected, rtol=1e-4, atol=1e-4)
    assert not model.faults


def test_numbers_of_threads_are_declared_in_their_kernel() -> None:
    """TVM's own scan declares them around the launch, where the emulator refuses them."""
    from tvm.topi.gpu import cumsum

    data = tvm.te.placeholder((3, 33), "float32", name="x")
    with TARGET:
        func = tvm.te.create_prim_func([data, cumsum(data, 1)]).with_attr("global_symbol", "main")
    x = np.random.default_rng(0).standard_normal((3, 33)).astype("float32")
    with TARGET:
        threads = tvm.s_tir.dlight.ApplyDefaultSchedule(tvm.s_tir.dlight.gpu.Fallback())
        stock = threads(tvm.IRModule({"main": func}))
        mended = own_locals()(stock)
    with pytest.raises(CompileError, match="outside their kernel"):
        Emulator(stock["main"], TARGET)([x, np.zeros_like(x)])
    done = Emulator(mended["main"], TARGET)([x, np.zeros_like(x)])
    assert not done.report.faults
    np.testing.assert_allclose(done.arrays[1], np.cumsum(x, 1), rtol=1e-4, atol=1e-4)
