"""Concatenations of many tensors: joined in groups, right, and compiled in time that grows with their number only."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax

import tvm_ext
from tvm_ext.passes.wide_concatenations import WIDEST, wide_concatenations


def _module(count: int, operator: str, axis: int) -> tvm.IRModule:
    """``y = operator((x * w0, x * w1, ...))`` of extents that differ, with a scalar weight for each operand."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((3, 2), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            parts = [
                builder.emit(relax.op.multiply(x if index % 5 or operator == "stack" else _doubled(x, axis), weight))
                for index, weight in enumerate(relax.const(np.float32(index + 1)) for index in range(count))
            ]
            result = builder.emit_output(getattr(relax.op, operator)(parts, axis))
        builder.emit_func_output(result)
    return builder.get()


def _doubled(x: relax.Var, axis: int) -> relax.Expr:
    return relax.op.concat([x, x], axis)


def _expected(x: np.ndarray, count: int, operator: str, axis: int) -> np.ndarray:
    parts = [
        (x if index % 5 or operator == "stack" else np.concatenate([x, x], axis)) * np.float32(index + 1)
        for index in range(count)
    ]
    return np.concatenate(parts, axis) if operator == "concat" else np.stack(parts, axis)


@pytest.mark.parametrize(
    ("operator", "count", "axis", "memory"),
    [("concat", 51, 0, "stock"), ("concat", 83, -1, "stock"), ("stack", 97, -1, "arena"), ("stack", 273, 1, "stock")],
)
def test_results(operator: str, count: int, axis: int, memory: str) -> None:
    compiled = tvm_ext.compile(_module(count, operator, axis), memory=memory)
    x = np.random.default_rng(0).standard_normal((3, 2)).astype("float32")
    (result,) = compiled.run([x]).values()
    np.testing.assert_array_equal(result, _expected(x, count, operator, axis))


def test_no_kernel_has_many_operands() -> None:
    mod = relax.transform.LegalizeOps()(wide_concatenations()(_module(500, "concat", 0)))
    operands = [len(func.params) for func in mod.functions.values() if isinstance(func, tvm.tirx.PrimFunc)]
    assert max(operands) <= 17  # and 500 in 32 groups, which take another two


@pytest.mark.parametrize("count", [2, 16, WIDEST])
def test_others_are_left_alone(count: int) -> None:
    mod = _module(count, "concat", 0)
    tvm.ir.assert_structural_equal(wide_concatenations()(mod), mod)
