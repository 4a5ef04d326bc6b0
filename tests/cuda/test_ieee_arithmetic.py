"""Values that are no numbers, cancelling sums and wrong indices: a GPU gives what a CPU gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tvm import relax
from tvm.script import relax as R

from scripts.cuda.kernels import kernels_of, target_of
from tests.schedules.kernels import graph
from tvm_ext.backends.cuda.emulator.emulate import Emulator
from tvm_ext.backends.cuda.emulator.memory import numpy_type
from tvm_ext.backends.cuda.resources import kernel_resources
from tvm_ext.backends.cuda.toolkit import find_toolkit
from tvm_ext.schedules.rule import RULE_ATTRIBUTE

op = relax.op
TARGET = target_of("sm_90")
NAN, INFINITY = np.float32("nan"), np.float32("inf")


def run(build: Callable[..., Any], *inputs: np.ndarray, result: np.ndarray) -> np.ndarray:
    """Run the one kernel of a graph in the emulator, on memory that holds garbage before."""
    (kernel,) = kernels_of("graph", graph(build, [(x.shape, str(x.dtype)) for x in inputs]), TARGET)
    garbage = np.frombuffer(b"\x7b" * result.nbytes, result.dtype).reshape(result.shape).copy()
    done = Emulator(kernel.scheduled, TARGET)([*inputs, garbage])
    assert not done.report.faults, str(done.report)
    return done.arrays[-1]


def pairs() -> tuple[np.ndarray, np.ndarray]:
    """Every pair of some numbers, NaN and infinities among them; 49, so that vectors do not fit."""
    values = np.array([NAN, INFINITY, -INFINITY, 0, -0.0, 1.5, -2], "float32")
    first, second = np.meshgrid(values, values)
    return first.copy(), second.copy()


@pytest.mark.parametrize("relation", ["less", "less_equal", "greater", "greater_equal"])
def test_what_does_not_hold_of_nan(relation: str) -> None:
    """TVM takes ``not x < y`` for ``x >= y``, which is false of NaN, too."""
    x, y = pairs()
    expected = ~getattr(np, relation)(x, y)
    build = lambda _, a, b: op.logical_not(getattr(op, relation)(a, b))  # noqa: E731
    np.testing.assert_array_equal(run(build, x, y, result=expected), expected)


def test_one_of_two_opposites_need_not_hold() -> None:
    x, y = pairs()
    expected = (x < y) | (x >= y)
    build = lambda _, a, b: op.logical_or(op.less(a, b), op.greater_equal(a, b))  # noqa: E731
    np.testing.assert_array_equal(run(build, x, y, result=expected), expected)


def test_differences_of_infinities_are_not_simplified() -> None:
    x, y = pairs()
    with np.errstate(invalid="ignore", over="ignore"):
        expected = np.exp(x) - np.exp(x), (x + y) - y
    got = run(lambda _, a: op.subtract(op.exp(a), op.exp(a)), x, result=expected[0])
    np.testing.assert_array_equal(got, expected[0])
    got = run(lambda _, a, b: op.subtract(op.add(a, b), b), x, y, result=expected[1])
    np.testing.assert_array_equal(np.isfinite(got), np.isfinite(expected[1]))
    np.testing.assert_array_equal(np.isnan(got), np.isnan(expected[1]))


def test_signs_and_leaky_relu_of_nan() -> None:
    x, _ = pairs()
    np.testing.assert_array_equal(run(lambda _, a: op.sign(a), x, result=x), np.sign(x))
    got = run(lambda _, a: op.nn.leakyrelu(a, 0.0), x, result=x)
    np.testing.assert_array_equal(got, np.where(np.isnan(x), x, np.maximum(x, 0)))


@pytest.mark.parametrize(("dtype", "value"), [("float32", 1000.1), ("float16", 77.7)])
def test_groups_of_equal_numbers_have_no_variance_below_zero(dtype: str, value: float) -> None:
    """One kernel, whose variance is that of what is left when the mean is taken off."""
    x, ones = np.full((2, 6, 65, 33), value, dtype), np.ones(6, dtype)
    specs = [(array.shape, dtype) for array in (x, ones, ones)]
    module = graph(lambda _, a, b, c: op.nn.group_norm(a, b, c, 3, 1, [2, 3]), specs)
    (kernel,) = kernels_of("graph", module, TARGET)
    assert kernel.scheduled.attrs[RULE_ATTRIBUTE] == "cuda.row_reduction"
    done = Emulator(kernel.scheduled, TARGET)([x, ones, np.zeros(6, dtype), np.full_like(x, NAN)])
    assert not done.report.faults
    # The rounding of the mean is divided by the root of epsilon.
    np.testing.assert_allclose(done.arrays[-1], 0, atol=0.1)


def test_sampling_by_a_grid_is_printed() -> None:
    """Bicubic taps are kernels of their own: TVM's single expression has a hundred thousand nodes."""
    module = graph(
        lambda _, a, g: op.image.grid_sample(a, g, "bicubic", padding_mode="reflection"),
        [((1, 3, 7, 9), "float32"), ((1, 2, 5, 7), "float32")],
    )
    kernels = kernels_of("graph", module, TARGET)
    assert len(kernels) > 1
    assert max(len(kernel.scheduled.script()) for kernel in kernels) < 100_000


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_divisors_with_a_zero_are_printed(dtype: str) -> None:
    """TVM's simplifier must not see the zero of a relu in a divisor; the address of a literal, for it, is no C++."""
    x = np.array([NAN, INFINITY, -INFINITY, 1.5, -2, 0], numpy_type(dtype))
    module = graph(lambda _, a: op.divide(R.const(1.0, dtype), op.nn.relu(a)), [(x.shape, dtype)])
    (kernel,) = kernels_of("graph", module, TARGET)
    got = Emulator(kernel.scheduled, TARGET)([x, np.full_like(x, 7)]).arrays[-1].astype("float64")
    with np.errstate(divide="ignore"):
        np.testing.assert_array_equal(got, (1 / np.maximum(x, x.dtype.type(0))).astype("float64"))
    toolkit = find_toolkit()
    if toolkit is not None:
        assert kernel_resources({"kernel": kernel.scheduled}, TARGET, toolkit)
