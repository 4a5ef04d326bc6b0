"""What follows a reduction, at its place: the block's axes become those of the result, and the values stay the same."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import te
from tvm.s_tir import Schedule

from tvm_ext.backends.cpu.target import native_target
from tvm_ext.passes.vector_code import vector_code
from tvm_ext.schedules.cpu.fallback import Fallback
from tvm_ext.schedules.cpu.joined_store import join_store, spread_rows
from tvm_ext.schedules.kernel.blocks import loop_extents, top_blocks
from tvm_ext.schedules.rule import RULE_ATTRIBUTE, apply_rules

GENERATOR = np.random.default_rng(0)


def reduced(store: object, shape: tuple[int, ...]) -> Schedule:
    """Sum the last axis of a (6, 8, 5) tensor, and compute ``shape`` from the sums."""
    data = te.placeholder((6, 8, 5), "float32", name="data")
    k = te.reduce_axis((0, 5), "k")
    total = te.compute((6, 8), lambda i, j: te.sum(data[i, j, k], k), name="total")
    result = te.compute(shape, lambda *index: store(total, *index), name="result")  # type: ignore[operator]
    return Schedule(tvm.IRModule({"main": te.create_prim_func([data, result])}))


def check(schedule: Schedule, expected: object) -> None:
    x = GENERATOR.normal(size=(6, 8, 5)).astype("float32")
    wanted = expected(x.sum(-1))  # type: ignore[operator]
    found = tvm.runtime.tensor(np.zeros(wanted.shape, "float32"))
    tvm.compile(schedule.mod, "llvm")["main"](tvm.runtime.tensor(x), found)
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("store", "shape", "expected"),
    [
        (lambda t, i, j: t[i, j] * 2.0, (6, 8), lambda t: t * 2),
        (lambda t, j, i: t[i, j], (8, 6), lambda t: t.T),
        (lambda t, i, j: t[(i * 4 + j) // 8, (i * 4 + j) % 8], (12, 4), lambda t: t.reshape(12, 4)),
        (lambda t, i: t[i // 8, i % 8], (48,), lambda t: t.reshape(48)),
        (lambda t, a, i, b, j: t[i, j * 2 + b], (1, 6, 2, 4), lambda t: t.reshape(1, 6, 4, 2).transpose(0, 1, 3, 2)),
    ],
)
def test_joined(store: object, shape: tuple[int, ...], expected: object) -> None:
    schedule = reduced(store, shape)
    joined = join_store(schedule, top_blocks(schedule)[0])
    assert joined is not None
    assert loop_extents(schedule, joined) == [6, 8]
    check(schedule, expected)


@pytest.mark.parametrize(
    ("store", "shape"),
    [
        (lambda t, i, j: t[i, j // 2], (6, 16)),
        (lambda t, i: t[i, 0], (6,)),
        (lambda t, i, j: t[i, j] + t[5 - i, j], (6, 8)),
    ],
)
def test_not_joined(store: object, shape: tuple[int, ...]) -> None:
    schedule = reduced(store, shape)
    before = schedule.mod.script()
    assert join_store(schedule, top_blocks(schedule)[0]) is None
    assert schedule.mod.script() == before


def test_rows_are_spread() -> None:
    schedule = reduced(lambda t, a, i, j: t[i, j], (3, 6, 8))
    reduction = top_blocks(schedule)[0]
    found = spread_rows(schedule, reduction)
    assert found is not None
    store, row, depth = found
    assert (loop_extents(schedule, store), depth) == ([6, 3, 8], 1)
    schedule.compute_at(reduction, row, preserve_unit_loops=True)
    check(schedule, lambda t: np.broadcast_to(t, (3, 6, 8)))


@pytest.mark.parametrize(
    "store",
    [
        lambda t, a, i, j: t[i, (i + j) % 8],
        lambda t, a, i, j: t[(i * 5) % 6, j],
        lambda t, a, i, j: t[i, j] + t[5 - i, j],
    ],
)
def test_rows_that_others_need_are_not_spread(store: object) -> None:
    schedule = reduced(store, (3, 6, 8))
    assert spread_rows(schedule, top_blocks(schedule)[0]) is None


def test_gathers_from_the_kernels_own_buffers() -> None:
    """Sums kept by the kernel and read at addresses without a pattern: such a loop runs as it stands."""
    data = te.placeholder((64, 128, 9), "float32", name="data")
    k = te.reduce_axis((0, 9), "k")
    total = te.compute((64, 128), lambda i, j: te.sum(data[i, j, k], k), name="total")
    result = te.compute((64, 200), lambda i, j: total[(i * 5) % 64, (j * j) % 128], name="result")
    target = native_target()
    kernel = apply_rules(te.create_prim_func([data, result]), target, [Fallback()])
    assert RULE_ATTRIBUTE in kernel.attrs
    with target:
        built = tvm.compile(vector_code()(tvm.IRModule({"main": kernel})), target)
    x = GENERATOR.normal(size=(64, 128, 9)).astype("float32")
    found = tvm.runtime.tensor(np.zeros((64, 200), "float32"))
    built["main"](tvm.runtime.tensor(x), found)
    rows, columns = np.arange(64)[:, None] * 5 % 64, np.arange(200) ** 2 % 128
    np.testing.assert_allclose(found.numpy(), x.sum(-1)[rows, columns], rtol=1e-5, atol=1e-5)


def test_a_result_without_axes() -> None:
    """The softmax of one number: there is no loop around what is stored."""
    data = te.placeholder((1,), "float32", name="data")
    k = te.reduce_axis((0, 1), "k")
    total = te.compute((), lambda: te.sum(te.exp(data[k]), k), name="total")
    result = te.compute((), lambda: te.exp(data[0]) / total[()], name="result")
    func = te.create_prim_func([data, result])
    target = native_target()
    schedule = Fallback().apply(func, target)
    assert schedule is not None
    found = tvm.runtime.tensor(np.zeros((), "float32"))
    tvm.compile(schedule.mod, target)["main"](tvm.runtime.tensor(np.ones(1, "float32")), found)
    assert found.numpy() == 1
