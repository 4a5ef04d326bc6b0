"""Attention as one kernel, as the emulator runs it: no race, nothing out of bounds, what the plain kernel computes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from tvm import te, tirx

from tests.schedules.cuda_kernels import CUDA, assert_emulated
from tvm_ext.schedules.compute.attention import SCORES
from tvm_ext.schedules.compute.row_attention import row_attention
from tvm_ext.schedules.cuda import RULES
from tvm_ext.schedules.rule import RULE_ATTRIBUTE, apply_rules

PLAIN = ((0, 1, 2), (0, 1, 2), (0, 1, 2))
TOLERANCE = {"float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2}


def made(
    shapes: Sequence[Sequence[int]],
    operand: str = "float32",
    others: Sequence[tuple[Sequence[int], str]] = (),
    steps: Sequence[Any] = (("relax.multiply", (SCORES, 0.125)),),
    axes: Sequence[Sequence[int]] = PLAIN,
    out_axes: Sequence[int] = (0, 1, 2),
    dtype: str = "float32",
) -> tirx.PrimFunc:
    tensors = [te.placeholder(shape, dtype, name) for shape, name in zip(shapes, ("q", "k", "v"), strict=True)]
    more = [te.placeholder(shape, kind, "other") for shape, kind in others]
    result = row_attention(*tensors, more, axes, steps, out_axes, operand)
    return te.create_prim_func([*tensors, *more, result])


def check(func: tirx.PrimFunc, operand: str = "float32", arrays: Sequence[np.ndarray] = (), arch: str = "sm_90") -> str:
    scheduled = apply_rules(func, CUDA[arch], RULES)
    assert scheduled.attrs[RULE_ATTRIBUTE] == "cuda.attention"
    random = np.random.default_rng(7)
    given = [
        random.standard_normal([int(extent) for extent in param.shape]).astype(str(param.dtype))
        for param in func.params
    ]
    for number, array in enumerate(arrays):
        given[len(given) - 1 - len(arrays) + number] = array
    assert_emulated(func, scheduled, given, TOLERANCE[operand])
    return scheduled.script()


@pytest.mark.parametrize("operand", ["float32", "float16"])
@pytest.mark.parametrize("size", [(2, 128, 64, 64), (1, 8, 1, 3), (3, 33, 17, 7), (1, 17, 129, 33), (1, 9, 127, 128)])
def test_shapes(size: tuple[int, int, int, int], operand: str) -> None:
    batch, rows, length, depth = size
    columns = {64: 64, 3: 1, 7: 17, 33: 33, 128: 100}[depth]
    func = made([(batch, rows, depth), (batch, depth, length), (batch, length, columns)], operand)
    text = check(func, operand)
    assert ("mma" in text) == (operand == "float16")


@pytest.mark.parametrize("operand", ["float32", "float16"])
def test_heads_side_by_side(operand: str) -> None:
    """Operands as a projection leaves them, (batch, sequence, head, width), and the result in the same order."""
    shapes = [(2, 33, 3, 16), (2, 40, 3, 16), (2, 40, 3, 24)]
    axes = ((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3))
    check(made(shapes, operand, axes=axes, out_axes=(0, 2, 1, 3)), operand)


@pytest.mark.parametrize("operand", ["float32", "float16"])
def test_masks(operand: str) -> None:
    """A causal mask, a bias for each key, and a row of which nothing is seen, whose result is NaN."""
    shapes = [(2, 3, 19, 16), (2, 3, 16, 19), (2, 3, 19, 16)]
    axes = ((0, 1, 2, 3),) * 3
    others = [((19, 19), "bool"), ((2, 1, 1, 19), "float32")]
    steps = (("relax.add", (SCORES, 1)), ("relax.where", (0, SCORES, float("-inf"))))
    seen = np.tril(np.ones((19, 19), bool))
    bias = np.random.default_rng(1).standard_normal((2, 1, 1, 19)).astype("float32")
    func = made(shapes, operand, others, steps, axes, (0, 1, 2, 3))
    check(func, operand, [seen, bias])
    seen[5] = False
    check(func, operand, [seen, bias])


def test_halves_in_memory() -> None:
    shapes = [(2, 64, 32), (2, 32, 64), (2, 64, 32)]
    text = check(made(shapes, "float16", dtype="float16"), "float16")
    assert "T.vectorized(T.int64(8))" in text  # 128 bits an access
    check(made(shapes, "float32", dtype="float16"), "float16")


def test_before_tensor_cores_it_is_ordinary_arithmetic() -> None:
    func = made([(1, 16, 32), (1, 32, 20), (1, 20, 8)], "float16")
    assert "mma" not in check(func, "float16", arch="sm_75")


def test_what_does_not_fit_is_left_to_other_rules() -> None:
    for shapes in ([(1, 4, 32), (1, 32, 64), (1, 64, 32)], [(1, 64, 256), (1, 256, 64), (1, 64, 32)]):
        assert apply_rules(made(shapes), CUDA["sm_90"], RULES).attrs[RULE_ATTRIBUTE] != "cuda.attention"
