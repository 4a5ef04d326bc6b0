"""Attention as one kernel, as the emulator runs it: no race, nothing out of bounds, what the plain kernel computes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import te, tirx

from tests.schedules.cuda_kernels import CUDA, assert_emulated, cuda_source
from tvm_ext.schedules.compute.attention import SCORES
from tvm_ext.schedules.compute.row_attention import row_attention
from tvm_ext.schedules.cuda import RULES, attention
from tvm_ext.schedules.cuda.attention_tile import AttentionTile
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
    if len(arrays) == len(given):
        given = list(arrays)
    else:
        given[len(given) - 1 - len(arrays) : -1] = arrays
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
    assert "cp_async_raw" in text  # past the registers, 128 bits an access
    check(made(shapes, "float32", dtype="float16"), "float16")


@pytest.mark.parametrize(("length", "pointers"), [(1 << 23, False), ((1 << 23) + 16, True)])
def test_keys_farther_than_offsets(length: int, pointers: bool) -> None:
    """Offsets of copies have 32 bits in bytes; of longer tensors each copy has a pointer."""
    shapes = [(2, 64, 64), (2, length, 64), (2, length, 64)]
    func = made(shapes, "float16", dtype="float16", axes=((0, 1, 2), (0, 2, 1), (0, 1, 2)))
    text = apply_rules(func, CUDA["sm_90"], RULES).script()
    copies = [line for line in text.splitlines() if "cp_async_raw" in line]
    assert [("address_of(k[" in copies[0]), ("address_of(v[" in copies[-1])] == [pointers, pointers]


@pytest.mark.parametrize("warp_rows", [16, 32])
@pytest.mark.parametrize("size", [(2, 128, 192, 32, 32), (1, 33, 129, 16, 48), (1, 17, 70, 40, 17)])
def test_tiles(size: tuple[int, int, int, int, int], warp_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Warps of one and of two bands of rows, several steps, the last of them cut off."""
    tile = AttentionTile(64, 64 if size[-1] == 32 else 32, True, warp_rows)
    monkeypatch.setattr(attention, "attention_tile", lambda shape, machine: tile)
    batch, rows, length, depth, columns = size
    shapes = [(batch, rows, depth), (batch, depth, length), (batch, length, columns)]
    axes = ((0, 1, 2), (0, 2, 1), (0, 1, 2))
    shapes[1] = (batch, length, depth)
    check(made(shapes, "float16", dtype="float16", axes=axes), "float16")
    check(made(shapes, "float16", axes=axes), "float16")


@pytest.mark.parametrize("steps", [(), (("relax.divide", (SCORES, 0.5)),), (("relax.multiply", (SCORES, -0.3)),)])
def test_scores_that_grow(steps: Any) -> None:
    """Every key is larger than those before: what was summed up is scaled again and again, or all but vanishes."""
    length, depth = 200, 16
    func = made([(1, 16, depth), (1, depth, length), (1, length, 16)], "float16", steps=steps)
    random = np.random.default_rng(3)
    query = np.abs(random.standard_normal((1, 16, depth))).astype("float32")
    for growth in (0.01, 0.1):
        key = np.broadcast_to(np.arange(length, dtype="float32") * growth, (1, depth, length)).copy()
        value = random.standard_normal((1, length, 16)).astype("float32")
        check(func, "float16", [query, key, value, np.zeros((1, 16, 16), "float32")])
        # The largest comes first: all others are nothing beside it.
        check(func, "float16", [query, key[:, :, ::-1].copy(), value, np.zeros((1, 16, 16), "float32")])


@pytest.mark.parametrize("number", [np.inf, -np.inf, np.nan])
def test_numbers_that_are_none(number: float) -> None:
    shapes = [(1, 16, 16), (1, 16, 70), (1, 70, 16)]
    random = np.random.default_rng(5)
    for which in range(3):
        arrays = [random.standard_normal(shape).astype("float32") for shape in (*shapes, (1, 16, 16))]
        arrays[which][0, 3, 3] = number
        check(made(shapes, "float16"), "float16", arrays)


def test_before_tensor_cores_it_is_ordinary_arithmetic() -> None:
    func = made([(1, 16, 32), (1, 32, 20), (1, 20, 8)], "float16")
    assert "mma" not in check(func, "float16", arch="sm_75")


def test_what_does_not_fit_is_left_to_other_rules() -> None:
    for shapes in ([(1, 4, 32), (1, 32, 64), (1, 64, 32)], [(1, 64, 256), (1, 256, 64), (1, 64, 32)]):
        assert apply_rules(made(shapes), CUDA["sm_90"], RULES).attrs[RULE_ATTRIBUTE] != "cuda.attention"


def test_registers_are_counted_in_halves() -> None:
    """Pairs of them are stored at once; were they elements of the array, ``mma`` would find every second one."""
    func = made(
        [(1, 64, 32), (1, 64, 32), (1, 64, 32)], "float16", dtype="float16", axes=((0, 1, 2), (0, 2, 1), PLAIN[2])
    )
    source = cuda_source(tvm.IRModule({"main": apply_rules(func, CUDA["sm_90"], RULES)}))
    for name in ("query", "weight", "factor"):
        assert re.search(rf"\bhalf {name}_ptr\[", source)
    assert "ex2.approx.ftz.f32" in source
    assert "cp.async.cg" in source
