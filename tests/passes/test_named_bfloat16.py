"""Conversions of bfloat16 in values that have a name: numbers, not the bits of numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op
from tvm.script import ir as I
from tvm.script import tirx as T

import tvm_ext  # noqa: F401 - registers the pipeline
from tvm_ext.backends.cpu.target import native_target
from tvm_ext.passes.named_bfloat16 import named_bfloat16

EDGES = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 3.3e38, 1e-40, 257.0]


def numbers(size: int, seed: int) -> np.ndarray:
    values = np.random.default_rng(seed).standard_normal(size).astype("float32")
    values[: len(EDGES)] = np.random.default_rng(seed).permutation(EDGES)[:size]
    return values.astype(ml_dtypes.bfloat16)


def rounded(values: np.ndarray) -> np.ndarray:
    return values.astype(ml_dtypes.bfloat16).astype("float32")


CASES: dict[str, tuple[Callable[[Any, Any], Any], Callable[[np.ndarray, np.ndarray], np.ndarray]]] = {
    "maximum": (op.maximum, np.maximum),
    "minimum": (op.minimum, np.minimum),
    "between": (
        lambda x, y: op.minimum(op.maximum(x, y), op.add(y, relax.const(1.0, "bfloat16"))),
        lambda x, y: np.minimum(np.maximum(x, y), rounded(y + 1)),
    ),
}


@pytest.mark.parametrize("size", [1, 7, 16, 33, 127])
@pytest.mark.parametrize("case", CASES)
def test_extremes(case: str, size: int) -> None:
    function, expected = CASES[case]
    operands = [relax.Var(name, relax.TensorType((size,), "bfloat16")) for name in "xy"]
    builder = relax.BlockBuilder()
    with builder.function("main", operands):
        with builder.dataflow():
            result = builder.emit_output(builder.normalize(function(*operands)))
        builder.emit_func_output(result)
    x, y = numbers(size, 0), numbers(size, 1)
    machine = relax.VirtualMachine(tvm.compile(builder.get(), native_target(), relax_pipeline="tvm_ext"), tvm.cpu())
    found = machine["main"](tvm.runtime.tensor(x), tvm.runtime.tensor(y)).numpy()
    with np.errstate(invalid="ignore", over="ignore"):
        wanted = expected(x.astype("float32"), y.astype("float32"))
    np.testing.assert_array_equal(found.astype("float32"), rounded(wanted))


@pytest.mark.parametrize("size", [1, 16, 127])
def test_numbers_that_are_rounded_and_widened_again(size: int) -> None:
    operand = relax.Var("x", relax.TensorType((size,), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [operand]):
        with builder.dataflow():
            narrow = builder.emit(op.astype(builder.emit(op.multiply(operand, operand)), "bfloat16"))
            result = builder.emit_output(op.add(builder.emit(op.astype(narrow, "float32")), operand))
        builder.emit_func_output(result)
    x = np.random.default_rng(4).standard_normal(size).astype("float32")
    machine = relax.VirtualMachine(tvm.compile(builder.get(), native_target(), relax_pipeline="tvm_ext"), tvm.cpu())
    np.testing.assert_array_equal(machine["main"](tvm.runtime.tensor(x)).numpy(), rounded(x * x) + x)


def test_arithmetic_on_bits() -> None:
    @I.ir_module
    class Before:
        @T.prim_func
        def main(x: T.Buffer((16,), "bfloat16"), y: T.Buffer((16,), "float32")) -> None:
            for i in T.serial(16):
                v: T.let[T.float32] = T.Cast("float32", x[i])
                y[i] = v * v + T.Cast("float32", x[i])

    @I.ir_module
    class Expected:
        @T.prim_func
        def main(x: T.Buffer((16,), "bfloat16"), y: T.Buffer((16,), "float32")) -> None:
            for i in T.serial(16):
                v: T.let[T.float32] = T.reinterpret(
                    "float32", T.shift_left(T.Cast("uint32", T.reinterpret("uint16", x[i])), T.uint32(16))
                )
                y[i] = v * v + T.Cast("float32", x[i])

    tvm.ir.assert_structural_equal(named_bfloat16()(Before), Expected)


@pytest.mark.parametrize("lanes", [1, 8])
def test_rounding_inside_a_named_value(lanes: int) -> None:
    """Between two neighbours that are a bfloat16 the nearest is given, and of two as near the even one."""
    wide, half = (f"{name}x{lanes}" if lanes > 1 else name for name in ("float32", "bfloat16"))
    place = f"T.Ramp(i * {lanes}, 1, {lanes})" if lanes > 1 else "i"
    source = f"""
@T.prim_func
def main(x: T.Buffer((4096,), "float32"), y: T.Buffer((4096,), "float32")) -> None:
    for i in T.serial({4096 // lanes}):
        v: T.let[T.{wide}] = T.Cast("{wide}", T.Cast("{half}", x[{place}]))
        y[{place}] = v
"""
    func = named_bfloat16()(tvm.IRModule({"main": tvm.script.from_source(source, {"T": T})}))
    x = np.random.default_rng(2).integers(0, 2**32, 4096, dtype="uint64").astype("uint32")
    x[:1024] &= 0xFFFF0000
    x[:1024] |= 0x8000  # ties
    x = x.view("float32")
    x = np.where(np.isnan(x), np.float32(1.5), x)
    found = tvm.runtime.empty(x.shape)
    tvm.compile(func, target="llvm")["main"](tvm.runtime.tensor(x), found)
    np.testing.assert_array_equal(found.numpy(), rounded(x))
