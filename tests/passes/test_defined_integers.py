"""Integers divided by zero, the smallest divided by -1, and shifts by more bits than there are, have a value."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op
from tvm.script import ir as I
from tvm.script import tirx as T

import tvm_ext
from tests.modules import run
from tvm_ext.passes.defined_integers import defined_integers

TYPES = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


def compiled(operator: Any, dtype: str, length: int) -> Any:
    builder = relax.BlockBuilder()
    x, y = (relax.Var(name, relax.TensorType([length], dtype)) for name in "xy")
    with builder.function("main", [x, y]):
        with builder.dataflow():
            result = builder.emit_output(operator(x, y))
        builder.emit_func_output(result)
    return tvm_ext.compile(builder.get()).executable


def wrapped(function: Any, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Compute with integers of any size, then keep the type's bits."""
    info = np.iinfo(x.dtype)
    values = [function(int(a), int(b)) for a, b in zip(x, y, strict=True)]
    return np.array([(value - info.min) % 2**info.bits + info.min for value in values], x.dtype)


def truncated(a: int, b: int) -> int:
    if b == 0:
        return a
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


DIVISIONS = {
    "divide": (op.divide, truncated),
    "floor_divide": (op.floor_divide, lambda a, b: a // b if b else a),
    "mod": (op.mod, lambda a, b: a - truncated(a, b) * b if b else 0),
    "floor_mod": (op.floor_mod, lambda a, b: a % b if b else 0),
}
SHIFTS = {
    "left_shift": (op.left_shift, lambda a, b, bits: a << b if 0 <= b < bits else 0),
    "right_shift": (op.right_shift, lambda a, b, bits: a >> (b if 0 <= b < bits else bits)),
}


def operands(dtype: str, divisors: list[int], length: int) -> tuple[np.ndarray, np.ndarray]:
    info = np.iinfo(dtype)
    numbers = [value for value in (info.min, info.min + 1, -7, -1, 0, 1, 7, 100, info.max) if value >= info.min]
    held = [value for value in (*divisors, info.min, info.max) if info.min <= value <= info.max]
    x, y = np.repeat(np.array(numbers, dtype), len(held)), np.tile(np.array(held, dtype), len(numbers))
    return np.resize(x, length), np.resize(y, length)


@pytest.mark.parametrize("name", DIVISIONS)
@pytest.mark.parametrize("dtype", TYPES)
def test_every_division_has_a_value(name: str, dtype: str) -> None:
    operator, function = DIVISIONS[name]
    x, y = operands(dtype, [-1, 0, 1, 2, -3], 67)
    (found,) = run(compiled(operator, dtype, 67), [x, y])
    np.testing.assert_array_equal(found, wrapped(function, x, y))


@pytest.mark.parametrize("name", SHIFTS)
@pytest.mark.parametrize("dtype", TYPES)
def test_every_shift_has_a_value(name: str, dtype: str) -> None:
    operator, function = SHIFTS[name]
    x, y = operands(dtype, [0, 1, 7, 8, 31, 32, 63, 64], 67)
    (found,) = run(compiled(operator, dtype, 67), [x, y])
    bits = np.iinfo(dtype).bits
    np.testing.assert_array_equal(found, wrapped(lambda a, b: function(a, b, bits), x, y))


@pytest.mark.parametrize("operator", [op.divide, op.floor_divide, op.mod, op.floor_mod])
def test_folded_divisions_are_those_of_kernels(operator: Any) -> None:
    x, y = operands("int32", [-1, 0, 1, 2, -3], 67)
    (expected,) = run(compiled(operator, "int32", 67), [x, y])
    (found,) = run(compiled(lambda a, b: operator(relax.const(x), relax.const(y)), "int32", 67), [x, y])
    np.testing.assert_array_equal(found, expected)


@I.ir_module
class Indices:
    """Quotients of loop variables and extents, which are left alone, and floats."""

    @T.prim_func
    def main(a: T.handle, b: T.handle) -> None:
        n = T.int64()
        x = T.match_buffer(a, (n, 8), "int32")
        y = T.match_buffer(b, (n * 8,), "float32")
        for i in range(n * 8):
            y[i] = T.cast(x[i // 8, i % n % 8] // 3, "float32") / y[i]


def test_quotients_of_extents_stay_as_they_are() -> None:
    tvm.ir.assert_structural_equal(defined_integers()(Indices), Indices)
