"""Products on tensor cores, as the emulator runs them: fragments lane by lane, barriers, shared memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from tvm import relax

from tests.schedules.cuda_kernels import CUDA, cuda_source, kernels_of, schedule_graph, thread_extents
from tvm_ext.schedules.cuda import RULES
from tvm_ext.schedules.cuda.fragments import columns_fragment, result_fragment, rows_fragment
from tvm_ext.schedules.rule import RULE_ATTRIBUTE

op = relax.op


def values(*shape: int, seed: int = 0, dtype: str = "float16") -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def emulated(build: Callable, inputs: Sequence[np.ndarray], shape: Sequence[int], dtype: str) -> np.ndarray:
    """Schedule one kernel, and run it on the emulator, which must find neither races nor accesses out of bounds."""
    emulate = pytest.importorskip("tvm_ext.backends.cuda.emulator.emulate")
    (kernel,) = kernels_of(schedule_graph(build, inputs, RULES)).values()
    assert kernel.attrs[RULE_ATTRIBUTE] == "cuda.tensor_matmul"
    assert "tvm_ext.schedule_fault" not in kernel.attrs
    run = emulate.Emulator(kernel.with_attr("global_symbol", "main"), CUDA["sm_90"])
    result = run([*inputs, np.zeros(shape, dtype)])
    found = str(result.report)
    assert "race" not in found, found
    assert "bounds" not in found, found
    return result.arrays[-1]


def biased(_: relax.BlockBuilder, x: relax.Var, w: relax.Var, b: relax.Var) -> relax.Expr:
    return op.nn.relu(op.add(op.matmul(x, w, out_dtype="float32"), b))


@pytest.mark.parametrize("shape", [(33, 17, 129), (127, 300, 31), (8, 1024, 64)])
def test_products(shape: tuple[int, int, int]) -> None:
    rows, depth, columns = shape
    x, w, b = values(rows, depth), values(depth, columns, seed=1), values(columns, seed=2, dtype="float32")
    got = emulated(biased, [x, w, b], (rows, columns), "float32")
    expected = np.maximum(x.astype("float32") @ w.astype("float32") + b, 0)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    ("shape", "weight", "strides", "padding"),
    [
        ((1, 16, 14, 14), (32, 16, 3, 3), 1, 1),
        ((2, 32, 9, 9), (64, 32, 1, 1), 2, 0),
        pytest.param((1, 64, 7, 7), (128, 64, 3, 3), 1, 1, marks=pytest.mark.slow),
        pytest.param((1, 3, 33, 33), (16, 3, 7, 7), 2, 3, marks=pytest.mark.slow),
    ],
)
def test_convolutions(shape: Sequence[int], weight: Sequence[int], strides: int, padding: int) -> None:
    x, w, b = values(*shape), values(*weight, seed=1), values(1, weight[0], 1, 1, seed=2, dtype="float32")

    def build(_: relax.BlockBuilder, x: relax.Var, w: relax.Var, b: relax.Var) -> relax.Expr:
        product = op.nn.conv2d(x, w, strides=strides, padding=padding, out_dtype="float32")
        return op.astype(op.nn.relu(op.add(product, b)), "float16")

    tensors = (torch.from_numpy(array.astype("float32")) for array in (x, w))
    expected = torch.nn.functional.conv2d(*tensors, stride=strides, padding=padding).numpy() + b
    got = emulated(build, [x, w, b], expected.shape, "float16")
    np.testing.assert_allclose(got.astype("float32"), np.maximum(expected, 0), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("place", [rows_fragment, columns_fragment, result_fragment])
def test_a_fragment_has_every_element_once(place: Callable) -> None:
    found = {place(i, k) for i in range(16) for k in range(16)}
    assert found == {(lane, local) for lane in range(32) for local in range(8)}


def test_the_instructions_are_in_the_source_and_a_lane_holds_its_own_part() -> None:
    module = schedule_graph(biased, [values(256, 256), values(256, 256), values(256, dtype="float32")], RULES, "sm_80")
    source = cuda_source(module)
    assert "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32" in source
    assert "ldmatrix.sync.aligned.m8n8.x4.shared.b16" in source
    assert "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16" in source  # the right factor is stored row by row
    (kernel,) = kernels_of(module).values()
    assert thread_extents(kernel)["threadIdx.x"] == 32
    assert 'scope="warp"' not in kernel.script()


def test_what_has_no_tensor_cores_is_declined() -> None:
    inputs = [values(64, 64), values(64, 64), values(64, dtype="float32")]
    (kernel,) = kernels_of(schedule_graph(biased, inputs, RULES, "sm_75")).values()
    assert kernel.attrs[RULE_ATTRIBUTE] == "cuda.matmul"
    inputs = [array.astype("float32") for array in inputs]
    (kernel,) = kernels_of(schedule_graph(biased, inputs, RULES)).values()
    assert kernel.attrs[RULE_ATTRIBUTE] == "cuda.matmul"


def test_bfloat16() -> None:
    def build(_: relax.BlockBuilder, x: relax.Var, w: relax.Var) -> relax.Expr:
        left, right = op.astype(x, "bfloat16"), op.astype(w, "bfloat16")
        return op.matmul(left, right, out_dtype="float32")

    module = schedule_graph(build, [values(64, 64, dtype="float32")] * 2, RULES)
    assert "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32" in cuda_source(module)
