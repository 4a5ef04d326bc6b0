"""Masked stores of narrow integers write the lanes of their mask, and nothing behind them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import relax, te, tirx
from tvm.ir.prim import expr as prim

from tests.schedules.kernels import graph
from tvm_ext.backends.cpu.target import native_target
from tvm_ext.passes.lone_lanes import lone_lanes

LANES, ROWS = 16, 3
UNTOUCHED = 77


def constant(value: int) -> Any:
    return tirx.const(value, "int32")


def numbers() -> Any:
    return prim.Ramp(constant(0), constant(1), LANES)


def splat(value: Any) -> Any:
    return prim.Broadcast(value, LANES)


MASKS: dict[str, tuple[Callable[[Any], Any], Callable[[int], list[int]]]] = {
    "one": (lambda row: numbers() < splat(constant(1)), lambda row: [0]),
    "two": (lambda row: numbers() < splat(constant(2)), lambda row: [0, 1]),
    "as many as the row's number": (lambda row: numbers() < splat(row), lambda row: list(range(row))),
    "the row's own": (lambda row: prim.EQ(numbers(), splat(row)), lambda row: [row]),
    "the last": (lambda row: prim.EQ(numbers(), splat(constant(LANES - 1))), lambda row: [LANES - 1]),
}


def narrowed(source: str, dtype: str, mask: Callable[[Any], Any]) -> tvm.IRModule:
    """Rows of 16 numbers, as another type under a mask; rows of what is written are twice as long."""
    x = te.placeholder((ROWS * LANES,), source, name="x")

    def kernel(data: Any, result: Any) -> Any:
        row = tvm.ir.Var("row", tvm.ir.PrimType("int32"))
        place = prim.Ramp(row * LANES, constant(1), LANES)
        value = prim.Cast(f"{dtype}x{LANES}", tirx.BufferLoad(data, [place]))
        index = prim.Ramp(row * (2 * LANES), constant(1), LANES)
        store = tirx.Evaluate(tirx.op.masked_store(result, value, index, mask(row)))
        return tirx.For(row, constant(0), constant(ROWS), tirx.ForKind.SERIAL, store)

    y = te.extern([(2 * ROWS * LANES,)], [x], lambda ins, outs: kernel(ins[0], outs[0]), dtype=dtype)
    return tvm.IRModule({"main": te.create_prim_func([x, y])})


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize(
    ("source", "dtype"), [("int32", "int16"), ("int32", "uint8"), ("int64", "int32"), ("int16", "int8")]
)
def test_only_the_lanes_of_the_mask_are_written(source: str, dtype: str, mask: str) -> None:
    build, lanes = MASKS[mask]
    target = native_target()
    with target:
        mod = lone_lanes()(narrowed(source, dtype, build))
    values = np.arange(ROWS * LANES, dtype=source) % 50 + 1
    result = tvm.runtime.tensor(np.full(2 * ROWS * LANES, UNTOUCHED, dtype))
    tvm.compile(mod, target)["main"](tvm.runtime.tensor(values), result)
    expected = np.full((ROWS, 2 * LANES), UNTOUCHED, dtype)
    for row in range(ROWS):
        expected[row, lanes(row)] = values.reshape(ROWS, LANES)[row, lanes(row)]
    np.testing.assert_array_equal(result.numpy().reshape(ROWS, -1), expected)


def test_no_other_processor_pays_for_it() -> None:
    mod = narrowed("int32", "int8", MASKS["one"][0])
    with tvm.target.Target({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "haswell"}):
        tvm.ir.assert_structural_equal(lone_lanes()(mod), mod)
    with tvm.target.Target({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "skylake-avx512"}):
        assert "masked_store" not in lone_lanes()(mod).script()


@pytest.mark.parametrize("columns", [1, 4, 5, 9, 17])
@pytest.mark.parametrize("dtype", ["bfloat16", "int8", "int16"])
def test_transposed_and_narrowed(dtype: str, columns: int) -> None:
    """The last tile of a row is one column, which ends where the next row begins, or the tensor."""

    def build(bb: relax.BlockBuilder, x: relax.Expr) -> relax.Expr:
        return relax.op.astype(bb.emit(relax.op.permute_dims(x, [2, 0, 1])), dtype)

    values = np.random.default_rng(0).integers(-100, 100, (5, columns, 3)).astype("float32")
    mod = graph(build, [(values.shape, "float32")])
    machine = relax.VirtualMachine(tvm.compile(mod, native_target(), relax_pipeline="tvm_ext"), tvm.cpu())
    found = machine["main"](tvm.runtime.tensor(values)).numpy()
    expected = values.transpose(2, 0, 1).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    np.testing.assert_array_equal(found.astype("float32"), expected.astype("float32"))
