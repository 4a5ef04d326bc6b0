"""The check that every lane of a vector stays inside its tensor."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script import tirx as T
from tvm.tirx.transform import FlattenBuffer

import tvm_ext
from tests.schedules.kernels import TARGETS, compile_graph
from tvm_ext.schedules import cpu
from tvm_ext.schedules.simd.bounds import unproved_accesses
from tvm_ext.schedules.simd.linear import KnownInequalities


def _kernel(limit: int, masked: bool) -> Any:
    @T.prim_func(s_tir=True)
    def whole(x: T.Buffer((100,), "float32"), y: T.Buffer((16,), "float32")) -> None:
        y[T.Ramp(0, 1, 8)] = x[T.Ramp(limit, 10, 8)]

    @T.prim_func(s_tir=True)
    def part(x: T.Buffer((100,), "float32"), y: T.Buffer((16,), "float32")) -> None:
        y[T.Ramp(0, 1, 8)] = T.masked_load("float32x8", x, T.Ramp(limit, 1, 8), T.Ramp(0, 1, 8) < T.Broadcast(3, 8))

    return part if masked else whole


@pytest.mark.parametrize(
    ("limit", "masked", "proved"),
    [(29, False, True), (30, False, False), (-1, False, False), (97, True, True), (98, True, False), (-1, True, False)],
)
def test_first_and_last_lane(limit: int, masked: bool, proved: bool) -> None:
    assert (not unproved_accesses(_kernel(limit, masked))) == proved


def test_address_chosen_by_a_mask() -> None:
    @T.prim_func(s_tir=True)
    def kernel(x: T.Buffer((100,), "float32"), y: T.Buffer((8,), "float32")) -> None:
        y[T.Ramp(0, 1, 8)] = x[T.Select(T.Ramp(0, 1, 8) < T.Broadcast(3, 8), T.Ramp(70, 10, 8), T.Broadcast(0, 8))]

    @T.prim_func(s_tir=True)
    def wrong(x: T.Buffer((100,), "float32"), y: T.Buffer((8,), "float32")) -> None:
        y[T.Ramp(0, 1, 8)] = x[T.Select(T.Ramp(0, 1, 8) < T.Broadcast(4, 8), T.Ramp(70, 10, 8), T.Broadcast(0, 8))]

    assert not unproved_accesses(kernel)
    assert len(unproved_accesses(wrong)) == 1


def test_condition_around_a_vector() -> None:
    """The sum of two indices is limited by a condition on both; neither alone shows that the last vector fits."""

    @T.prim_func(s_tir=True)
    def kernel(x: T.Buffer((106624,), "float32"), y: T.Buffer((4,), "float32")) -> None:
        for a, b, c in T.grid(252, 4, 7):
            if a // 28 * 4 + b < 34:
                y[T.Ramp(0, 1, 4)] = x[T.Ramp(a // 28 * 3136 + b * 784 + a % 28 * 28 + c * 4 + 79968, 1, 4)]

    assert not unproved_accesses(kernel)


def test_index_from_a_tensor() -> None:
    @T.prim_func(s_tir=True)
    def kernel(x: T.Buffer((100,), "float32"), i: T.Buffer((4,), "int32"), y: T.Buffer((8,), "float32")) -> None:
        y[T.Ramp(0, 1, 8)] = x[T.Ramp(i[0], 1, 8)]

    (found,) = unproved_accesses(kernel)
    assert found.depends_on_data
    assert str(found).startswith("x[")


@T.prim_func(s_tir=True)
def _appends(x: T.Buffer((64,), "float32"), begin: T.Buffer((1,), "int64"), y: T.Buffer((8,), "float32")) -> None:
    T.func_attr({"tirx.noalias": True})
    for head, row in T.grid(T.int64(2), T.int64(16)):
        if T.int64(0) <= row - begin[0] and row - begin[0] < T.int64(1):
            y[T.Ramp(0, 1, 8)] = x[T.Ramp(head * T.int64(32) + row * T.int64(32) - begin[0] * T.int64(32), 1, 8)]


@T.prim_func(s_tir=True)
def _appends_elsewhere(
    x: T.Buffer((64,), "float32"), begin: T.Buffer((1,), "int64"), y: T.Buffer((8,), "float32")
) -> None:
    T.func_attr({"tirx.noalias": True})
    for head, row in T.grid(T.int64(2), T.int64(16)):
        if T.int64(0) <= row - begin[0] and row - begin[0] < T.int64(1):
            begin[0] = begin[0] - T.int64(1)
            y[T.Ramp(0, 1, 8)] = x[T.Ramp(head * T.int64(32) + row * T.int64(32) - begin[0] * T.int64(32), 1, 8)]


def test_condition_on_an_element() -> None:
    """A cache gets new rows behind as many as it has: one element is in the condition and in the address."""

    def proved(kernel: Any) -> set[bool]:
        flat = FlattenBuffer()(tvm.IRModule({"kernel": kernel}))["kernel"]
        return {not unproved_accesses(kernel), not unproved_accesses(flat)}

    assert proved(_appends) == {True}
    assert proved(_appends_elsewhere) == {False}
    assert proved(_appends.without_attr("tirx.noalias")) == {True}, "nothing is written in between"
    assert proved(_appends_elsewhere.without_attr("tirx.noalias")) == {False}


@T.prim_func(s_tir=True)
def _writes_nothing(x: T.Buffer((100,), "float32"), i: T.Buffer((2,), "int32"), j: T.Buffer((2,), "int32")) -> None:
    T.func_attr({"tirx.noalias": True})
    y = T.alloc_buffer((8,), "float32")
    if i[0] >= 0 and i[0] < 93:
        j[0] = 95
        y[T.Ramp(0, 1, 8)] = x[T.Ramp(i[0], 1, 8)]


@T.prim_func(s_tir=True)
def _writes_it(x: T.Buffer((100,), "float32"), i: T.Buffer((2,), "int32")) -> None:
    T.func_attr({"tirx.noalias": True})
    y = T.alloc_buffer((8,), "float32")
    if i[0] >= 0 and i[0] < 93:
        i[0] = 95
        y[T.Ramp(0, 1, 8)] = x[T.Ramp(i[0], 1, 8)]


@T.prim_func(s_tir=True)
def _writes_it_in_a_branch(x: T.Buffer((100,), "float32"), i: T.Buffer((2,), "int32"), n: T.int32) -> None:
    T.func_attr({"tirx.noalias": True})
    y = T.alloc_buffer((8,), "float32")
    if i[0] >= 0 and i[0] < 93:
        if n > 3:
            i[0] = 95
        y[T.Ramp(0, 1, 8)] = x[T.Ramp(i[0], 1, 8)]


@T.prim_func(s_tir=True)
def _writes_it_in_the_other_branch(x: T.Buffer((100,), "float32"), i: T.Buffer((2,), "int32"), n: T.int32) -> None:
    T.func_attr({"tirx.noalias": True})
    y = T.alloc_buffer((8,), "float32")
    if i[0] >= 0 and i[0] < 93:
        if n > 3:
            i[0] = 95
        else:
            y[T.Ramp(0, 1, 8)] = x[T.Ramp(i[0], 1, 8)]


@T.prim_func(s_tir=True)
def _writes_it_in_the_iteration_before(x: T.Buffer((100,), "float32"), i: T.Buffer((2,), "int32")) -> None:
    T.func_attr({"tirx.noalias": True})
    y = T.alloc_buffer((8,), "float32")
    if i[0] >= 0 and i[0] < 93:
        for _ in range(3):
            y[T.Ramp(0, 1, 8)] = x[T.Ramp(i[0], 1, 8)]
            i[0] = 95


@T.prim_func(s_tir=True)
def _writes_it_by_a_call(x: T.Buffer((100,), "float32"), i: T.Buffer((2,), "int32")) -> None:
    T.func_attr({"tirx.noalias": True})
    y = T.alloc_buffer((8,), "float32")
    if i[0] >= 0 and i[0] < 93:
        T.evaluate(T.call_extern("int32", "fill", T.address_of(i[0])))
        y[T.Ramp(0, 1, 8)] = x[T.Ramp(i[0], 1, 8)]


@T.prim_func(s_tir=True)
def _writes_by_a_pointer(x: T.Buffer((100,), "float32"), i: T.Buffer((2,), "int32")) -> None:
    T.func_attr({"tirx.noalias": True})
    y = T.alloc_buffer((8,), "float32")
    pointer = T.address_of(i[0])
    if i[0] >= 0 and i[0] < 93:
        T.evaluate(T.call_extern("int32", "fill", pointer))
        y[T.Ramp(0, 1, 8)] = x[T.Ramp(i[0], 1, 8)]


@T.prim_func(s_tir=True)
def _writes_after_it_is_kept(x: T.Buffer((100,), "float32"), i: T.Buffer((2,), "int32")) -> None:
    T.func_attr({"tirx.noalias": True})
    y = T.alloc_buffer((8,), "float32")
    kept: T.int32 = i[0]
    i[0] = 5
    if i[0] >= 0 and i[0] < 93:
        y[T.Ramp(0, 1, 8)] = x[T.Ramp(kept, 1, 8)]


def test_what_is_written_is_another_number() -> None:
    """An element counts for the number that a condition told only until something is written to its tensor."""
    kernels = [
        (_writes_nothing, True),
        (_writes_it, False),
        (_writes_it_in_a_branch, False),
        (_writes_it_in_the_other_branch, True),
        (_writes_it_in_the_iteration_before, False),
        (_writes_it_by_a_call, False),
        (_writes_by_a_pointer, False),
        (_writes_after_it_is_kept, False),
        (_writes_nothing.without_attr("tirx.noalias"), False),
    ]
    for kernel, proved in kernels:
        assert (not unproved_accesses(kernel)) == proved, kernel.script()


def test_what_was_stored_is_known_until_it_is_written_to() -> None:
    """A group of columns is put into memory, and the vector of the last ones begins there."""

    @T.prim_func(s_tir=True)
    def kernel(x: T.Buffer((100,), "float32"), y: T.Buffer((4,), "float32"), z: T.Buffer((2,), "int32")) -> None:
        place = T.alloc_buffer((2,), "int32")
        for v in range(10):
            place[0] = v % 2
            place[1] = 7
            y[T.Ramp(0, 1, 4)] = x[T.Ramp(place[0] * 96, 1, 4)]

    @T.prim_func(s_tir=True)
    def too_far(x: T.Buffer((100,), "float32"), y: T.Buffer((4,), "float32"), z: T.Buffer((2,), "int32")) -> None:
        place = T.alloc_buffer((2,), "int32")
        for v in range(10):
            place[0] = v % 2
            y[T.Ramp(0, 1, 4)] = x[T.Ramp(place[0] * 97, 1, 4)]

    @T.prim_func(s_tir=True)
    def replaced(x: T.Buffer((100,), "float32"), y: T.Buffer((4,), "float32"), z: T.Buffer((2,), "int32")) -> None:
        place = T.alloc_buffer((2,), "int32")
        for v in range(10):
            place[0] = v % 2
            if z[0] > 0:
                place[0] = z[1]
            y[T.Ramp(0, 1, 4)] = x[T.Ramp(place[0] * 96, 1, 4)]

    @T.prim_func(s_tir=True)
    def somewhere(x: T.Buffer((100,), "float32"), y: T.Buffer((4,), "float32"), z: T.Buffer((2,), "int32")) -> None:
        place = T.alloc_buffer((2,), "int32")
        for v in range(10):
            place[0] = v % 2
            place[z[0]] = z[1]
            y[T.Ramp(0, 1, 4)] = x[T.Ramp(place[0] * 96, 1, 4)]

    @T.prim_func(s_tir=True)
    def afterwards(x: T.Buffer((100,), "float32"), y: T.Buffer((4,), "float32"), z: T.Buffer((2,), "int32")) -> None:
        place = T.alloc_buffer((2,), "int32")
        place[0] = 0
        for _ in range(10):
            y[T.Ramp(0, 1, 4)] = x[T.Ramp(place[0] * 96, 1, 4)]
            place[0] = place[0] + 1

    assert not unproved_accesses(FlattenBuffer()(tvm.IRModule({"main": kernel}))["main"])
    for wrong in (too_far, replaced, somewhere, afterwards):
        flat = FlattenBuffer()(tvm.IRModule({"main": wrong}))["main"]
        assert len(unproved_accesses(flat)) == 1, wrong.script()


def test_masks_of_loads_reach_machine_code() -> None:
    """TVM strips the mask off a load inside a choice by the same mask."""
    compiled = compile_graph(
        lambda builder, x: builder.emit(relax.op.sum(x, [1])),
        [np.zeros((34, 102), "float32")],
        cpu.RULES,
        TARGETS["avx2"],
    )
    source = compiled.executable.mod.imports[0].inspect_source("ll")
    assert "masked.load" in source
    assert "unmaskedload" not in source


@pytest.mark.parametrize("channels", [3, 16])
def test_padded_windows_need_no_solver(channels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The solver takes seconds for a window that reaches into padding."""
    left: list[str] = []

    def prove_inside(known: KnownInequalities, index: Any, extent: Any) -> bool:
        proved = prove(known, index, extent)
        if not proved:
            left.append(f"{index} < {extent}")
        return proved

    prove = KnownInequalities.prove_inside
    monkeypatch.setattr(KnownInequalities, "prove_inside", prove_inside)
    x = relax.Var("x", relax.TensorType((1, channels, 7, 9), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            weight = relax.const(np.ones((channels, channels, 1, 1), "float32"))
            convolved = builder.emit(relax.op.nn.conv2d(x, weight))
            pooled = builder.emit_output(relax.op.nn.max_pool2d(convolved, (3, 3), (2, 2), (1, 1, 1, 1)))
        builder.emit_func_output(pooled)
    tvm_ext.compile(builder.get())
    assert not left
