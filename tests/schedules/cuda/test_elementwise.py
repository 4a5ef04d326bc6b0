"""The CUDA rule for data-parallel kernels: threads one after another against numpy, and what is bound to what."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import relax

from tests.schedules.cuda_kernels import cuda_source, kernels_of, run_serially, schedule_graph, thread_extents
from tests.schedules.kernels import AWKWARD
from tvm_ext.schedules.cuda.elementwise import Elementwise

op = relax.op
RULES = (Elementwise(),)


def values(*shape: int, dtype: str = "float32", seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("width", AWKWARD)
def test_chain_with_a_broadcast(width: int) -> None:
    x, y = values(5, 3, width), values(3, 1, seed=1)
    compiled = run_serially(lambda _, a, b: op.nn.relu(op.add(op.multiply(a, b), a)), [x, y], RULES)
    assert set(compiled.rules.values()) == {"cuda.elementwise"}
    np.testing.assert_allclose(compiled(x, y), np.maximum(x * y + x, 0), rtol=1e-6, atol=1e-6)


@given(
    shape=st.lists(st.sampled_from([1, 2, 7, 9, 16, 33]), min_size=1, max_size=4),
    dims=st.integers(0, 15),
    dtype=st.sampled_from(["float32", "float16", "int32", "int64", "int8"]),
)
@settings(max_examples=15, deadline=None)
def test_any_broadcast_of_any_type(shape: list[int], dims: int, dtype: str) -> None:
    other = [1 if dims >> axis & 1 else extent for axis, extent in enumerate(shape)]
    random = np.random.default_rng(0)
    x, y = random.integers(-9, 9, shape).astype(dtype), random.integers(-9, 9, other).astype(dtype)
    compiled = run_serially(lambda _, a, b: op.maximum(op.subtract(a, b), b), [x, y], RULES)
    np.testing.assert_array_equal(compiled(x, y), np.maximum(x - y, y))


@pytest.mark.parametrize(("dtype", "word"), [("float32", "float4"), ("float16", "uint4"), ("int32", "int4")])
def test_accesses_of_128_bits(dtype: str, word: str) -> None:
    x = np.zeros((64, 1024), dtype)
    module = schedule_graph(lambda _, a: op.nn.relu(op.add(a, a)), [x], RULES)
    source = cuda_source(module)
    assert f"({word}*)" in source
    (kernel,) = kernels_of(module).values()
    extents = thread_extents(kernel)
    assert extents["threadIdx.x"] % 32 == 0
    assert extents["blockIdx.x"] * extents["threadIdx.x"] * (16 // x.itemsize) == x.size


def test_nothing_is_computed_by_one_block_only_where_there_are_more_elements() -> None:
    module = schedule_graph(lambda _, a: op.exp(a), [values(33, 1025)], RULES)
    (kernel,) = kernels_of(module).values()
    assert thread_extents(kernel)["blockIdx.x"] > 100


def test_gather_concatenation_padding_and_resize() -> None:
    x, y, index = values(7, 33), values(7, 5, seed=1), np.array([3, 0, 6, 6], "int64")
    compiled = run_serially(lambda _, a, i: op.take(a, i, axis=0), [x, index], RULES)
    np.testing.assert_array_equal(compiled(x, index), x[index])
    compiled = run_serially(lambda _, a, b: op.nn.relu(op.concat([a, b], axis=1)), [x, y], RULES)
    np.testing.assert_array_equal(compiled(x, y), np.maximum(np.concatenate([x, y], 1), 0))
    compiled = run_serially(lambda _, a: op.nn.pad(a, [1, 2, 3, 0]), [x], RULES)
    np.testing.assert_array_equal(compiled(x), np.pad(x, ((1, 2), (3, 0))))


def test_nan_and_several_results() -> None:
    x = values(9, 31)
    x[3] = np.nan
    compiled = run_serially(lambda _, a: relax.op.split(a, 3, axis=0), [x], RULES)
    np.testing.assert_array_equal(np.concatenate(compiled.all(x)), x)


def test_other_kernels_are_declined() -> None:
    module = schedule_graph(lambda _, a: op.sum(a, axis=1), [values(4, 5)], RULES)
    assert all("tirx.is_scheduled" not in (func.attrs or {}) for func in kernels_of(module).values())
