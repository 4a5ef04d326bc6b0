"""Quantize and dequantize nodes: taken out, their scales kept."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import relax

from tests.modules import STOCK
from tvm_ext.backends.vta.model.quantize import to_integers
from tvm_ext.backends.vta.model.quantized_model import remove_quantization


def quantised(scale: float, zero_point: int, dtype: str) -> tvm.IRModule:
    """A sigmoid, quantised and dequantised, and a constant that stands quantised, added to it."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4,), "float32"))
    arguments = relax.const(np.float32(scale)), relax.const(zero_point, dtype)
    weights = relax.const(np.array([1, -2, 3, -4], np.int8))
    with builder.function("main", [x]):
        with builder.dataflow():
            value = builder.emit(relax.op.tanh(x))
            integers = builder.emit(relax.op.quantize(value, *arguments, axis=0, out_dtype=dtype))
            floats = builder.emit(relax.op.dequantize(integers, *arguments, axis=0))
            half = relax.const(np.float32(0.5)), relax.const(0, "int8")
            constant = builder.emit(relax.op.dequantize(weights, *half, axis=0))
            output = builder.emit_output(relax.op.add(floats, constant))
        builder.emit_func_output(output)
    return builder.get()


@pytest.mark.parametrize(
    ("scale", "zero_point", "dtype", "fraction"),
    [
        (2**-4, 0, "int8", 4),
        (2**3, 0, "int8", -3),
        (2**-4, 128, "uint8", 4),
        (2**-5, 0, "uint8", 4),  # up to 255 of its steps, where int8 has 127
        (0.1, 0, "int8", 3),
        (0.01, -128, "int8", 5),
    ],
)
def test_scales(scale: float, zero_point: int, dtype: str, fraction: int) -> None:
    mod, fractions = remove_quantization(quantised(scale, zero_point, dtype))
    assert list(fractions.values()) == [fraction]
    text = mod["main"].script()
    assert "quantize" not in text
    assert ("relu" in text) == (zero_point in (-128, 0) and (dtype, zero_point) != ("int8", 0))


@settings(max_examples=40, deadline=None)
@given(st.floats(1e-4, 10), st.integers(-128, 127))
def test_the_range_fits_int8(scale: float, zero_point: int) -> None:
    _, fractions = remove_quantization(quantised(scale, zero_point, "int8"))
    (fraction,) = fractions.values()
    largest = np.float32(scale) * max((128 + zero_point) * 127 / 128, 127 - zero_point)
    assert largest * 2.0**fraction <= 127.5
    assert largest * 2.0 ** (fraction + 1) > 127.5


def test_values_are_those_of_the_model() -> None:
    mod, fractions = remove_quantization(quantised(2**-6, 0, "int8"))
    executable = tvm.compile(mod, STOCK)
    x = np.array([-3, -0.2, 0.4, 1], np.float32)
    found = relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(x)).numpy()
    np.testing.assert_allclose(found, np.tanh(x) + np.array([0.5, -1, 1.5, -2]), rtol=1e-5)
    integers = to_integers(np.tanh(x), next(iter(fractions.values())))
    np.testing.assert_array_equal(integers, np.floor(np.tanh(x) * 64 + 0.5))
