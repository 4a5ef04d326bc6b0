"""Indices that come from a tensor and lie outside the axis they index."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

from tests.schedules.kernels import graph
from tvm_ext.backends.cpu.target import native_target
from tvm_ext.passes.bounded_indices import bound_indices

op = relax.op
GENERATOR = np.random.default_rng(0)


def _run(build: Any, *inputs: np.ndarray) -> np.ndarray:
    module = graph(build, [(array.shape, str(array.dtype)) for array in inputs])
    executable = tvm.compile(module, native_target(), relax_pipeline="tvm_ext")
    machine = relax.VirtualMachine(executable, tvm.cpu())
    return machine["main"](*(tvm.runtime.tensor(array) for array in inputs)).numpy()


OUTSIDE = np.array([0, 6, 7, -1, 10**6, -(10**6), 3])


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("axis", [0, 1])
def test_take_stays_inside(dtype: str, axis: int) -> None:
    x, indices = GENERATOR.random((7, 7)).astype("float32"), OUTSIDE.astype(dtype)
    result = _run(lambda builder, a, i: builder.emit(op.take(a, i, axis)), x, indices)
    np.testing.assert_array_equal(result, np.take(x, np.clip(indices, 0, 6), axis))


def test_take_of_a_long_axis_by_short_integers() -> None:
    x, indices = GENERATOR.random((1000, 3)).astype("float32"), np.array([0, 127, -128, 5], "int8")
    result = _run(lambda builder, a, i: builder.emit(op.take(a, i, 0)), x, indices)
    np.testing.assert_array_equal(result, x[np.clip(indices, 0, 999)])


def test_gather_elements_stays_inside() -> None:
    x = GENERATOR.random((7, 7)).astype("float32")
    indices = np.tile(OUTSIDE.astype("int64"), (7, 1))
    result = _run(lambda builder, a, i: builder.emit(op.gather_elements(a, i, 1)), x, indices)
    np.testing.assert_array_equal(result, np.take_along_axis(x, np.clip(indices, 0, 6), 1))


def test_scatter_leaves_out_what_lies_outside() -> None:
    x, updates = np.zeros((7, 3), "float32"), np.ones((4, 3), "float32")
    indices = np.array([[1], [10**6], [7], [-(10**6)]], "int64")
    result = _run(lambda builder, a, i, u: builder.emit(op.scatter_nd(a, i, u)), x, indices, updates)
    expected = x.copy()
    expected[1] = 1
    np.testing.assert_array_equal(result, expected)


def _kernel(build: Any, *inputs: tuple[tuple[int, ...], str]) -> Any:
    module = relax.transform.LegalizeOps()(graph(build, inputs))
    (kernel,) = [func for func in module.functions.values() if isinstance(func, tirx.PrimFunc)]
    return kernel


def test_a_kernel_without_such_indices_is_left_alone() -> None:
    kernel = _kernel(lambda builder, a: builder.emit(op.strided_slice(a, [0], [1], [7], [2])), ((7, 3), "float32"))
    assert bound_indices(kernel).same_as(kernel)


def test_an_index_that_is_limited_already_is_left_alone() -> None:
    kernel = _kernel(
        lambda builder, a, i: builder.emit(op.take(a, i, 0, mode="clip")), ((7, 3), "float32"), ((5,), "int32")
    )
    assert bound_indices(kernel).same_as(kernel)


def test_an_empty_table_gives_nothing() -> None:
    result = _run(
        lambda builder, a, i: builder.emit(op.take(a, i, 0)), np.zeros((0, 3), "float32"), np.array([0, 5], "int64")
    )
    np.testing.assert_array_equal(result, np.zeros((2, 3), "float32"))
