"""Convolutions and products of 16-bit floats are computed in single precision: right results, fast kernels."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional
from tvm import relax

import tvm_ext
from tvm_ext.backends.cpu.target import native_target
from tvm_ext.compiler import lower
from tvm_ext.options import PipelineOptions
from tvm_ext.passes.single_precision import single_precision
from tvm_ext.schedules.rule import RULE_ATTRIBUTE

EPSILON = float(np.finfo(np.float16).eps)


def _net(channels: int, out: int, height: int, width: int) -> tuple[tvm.IRModule, list[np.ndarray]]:
    """Two convolutions with a depthwise one and a pooling between them, in half precision; and the weights."""
    random = np.random.default_rng(0)
    shapes = ((32, channels, 3, 3), (32, 1, 3, 3), (out, 32, 1, 1))
    weights = [(random.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype("float16") for shape in shapes]
    first, depthwise, last = (relax.const(weight, "float16") for weight in weights)
    builder = relax.BlockBuilder()
    data = relax.Var("data", relax.TensorType((1, channels, height, width), "float16"))
    with builder.function("main", [data]):
        with builder.dataflow():
            value = builder.emit(relax.op.nn.relu(builder.emit(relax.op.nn.conv2d(data, first, padding=1))))
            value = builder.emit(relax.op.nn.max_pool2d(value, (2, 2), (2, 2)))
            value = builder.emit(relax.op.nn.conv2d(value, depthwise, padding=1, groups=32))
            value = builder.emit(relax.op.nn.conv2d(builder.emit(relax.op.nn.silu(value)), last))
            result = builder.emit_output(value)
        builder.emit_func_output(result)
    return builder.get(), weights


@settings(max_examples=10, deadline=None)
@given(
    channels=st.sampled_from([1, 3, 16, 17]), out=st.sampled_from([7, 16, 33]), height=st.integers(2, 17),
    width=st.sampled_from([2, 7, 8, 15, 33]),
)  # fmt: skip
def test_a_network_of_half_precision(channels: int, out: int, height: int, width: int) -> None:
    mod, weights = _net(channels, out, height, width)
    data = np.random.default_rng(1).standard_normal((1, channels, height, width)).astype("float16")
    first, depthwise, last = (torch.from_numpy(weight).float() for weight in weights)
    value = torch.relu(functional.conv2d(torch.from_numpy(data).float(), first, padding=1))
    value = functional.conv2d(functional.max_pool2d(value, 2), depthwise, padding=1, groups=32)
    expected = functional.conv2d(functional.silu(value), last).numpy()
    (result,) = tvm_ext.compile(mod).run([data]).values()
    assert result.dtype == np.float16
    assert np.abs(result - expected).max() < 4 * EPSILON * max(1.0, np.abs(expected).max())


@pytest.mark.parametrize("size", [(1, 1, 1), (3, 65, 17), (33, 129, 31), (64, 512, 64)])
def test_sums_do_not_lose_digits(size: tuple[int, int, int]) -> None:
    rows, reduction, columns = size
    left, right = (relax.Var(name, relax.TensorType(shape, "float16")) for name, shape in
                   (("left", (rows, reduction)), ("right", (reduction, columns))))  # fmt: skip
    builder = relax.BlockBuilder()
    with builder.function("main", [left, right]):
        with builder.dataflow():
            result = builder.emit_output(relax.op.matmul(left, right))
        builder.emit_func_output(result)
    random = np.random.default_rng(0)
    arrays = [random.standard_normal(shape).astype("float16") for shape in ((rows, reduction), (reduction, columns))]
    (result,) = tvm_ext.compile(builder.get()).run(arrays).values()
    expected = arrays[0].astype("float64") @ arrays[1].astype("float64")
    np.testing.assert_allclose(result, expected, rtol=EPSILON, atol=EPSILON * 1e-2)


def test_kernels_are_those_of_float32() -> None:
    mod, _ = _net(16, 48, 32, 32)
    lowered, *_ = lower(mod, native_target(), PipelineOptions(winograd=False))
    rules = [
        str(func.attrs[RULE_ATTRIBUTE]) for func in lowered.functions.values() if isinstance(func, tvm.tirx.PrimFunc)
    ]
    assert rules.count("cpu.convolution") == 2
    assert "cpu.fallback" not in rules
    # Converted to the blocked layout and back once: the chain stays in it through 16-bit values.
    assert rules.count("cpu.transpose") == 2


def test_other_types_stay_as_they_are() -> None:
    builder = relax.BlockBuilder()
    data = relax.Var("data", relax.TensorType((4, 4), "float16"))
    with builder.function("main", [data]):
        with builder.dataflow():
            result = builder.emit_output(relax.op.matmul(data, data, out_dtype="float32"))
        builder.emit_func_output(result)
    mod = builder.get()
    tvm.ir.assert_structural_equal(single_precision()(mod), mod)
