"""Kernels that are wrong on purpose, and what the emulator says of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm.script import tirx as T

from tests.cuda_emulator import kernels
from tvm_ext.backends.cuda.emulator import findings, races
from tvm_ext.backends.cuda.emulator.emulate import Emulation, Emulator
from tvm_ext.backends.cuda.emulator.lowering import Lowered, lower
from tvm_ext.backends.cuda.emulator.memory import Access, Fragments
from tvm_ext.errors import CompileError, InputError, TargetError

TARGET, random = kernels.TARGET, kernels.random


def _without_barriers(lowered: Lowered) -> Lowered:
    """Take all barriers out of the kernels."""

    def drop(call: Any) -> Any:
        return tvm.tirx.const(0, "int32") if getattr(call.op, "name", "") == "tirx.tvm_storage_sync" else call

    changed = {}
    for name, kernel in lowered.kernels.items():
        body = tvm_ffi.structural_map(kernel.body, (tvm.ir.Call, drop))
        changed[name] = kernel.with_body(body)
    return dataclasses.replace(lowered, kernels=changed)


def _exchange(shift: int = 0, stride: int = 1, *, barriers: bool = True) -> Emulation:
    func = kernels.exchange(64, shift=shift, stride=stride)
    lowered = lower(func, TARGET)
    emulator = Emulator(lowered if barriers else _without_barriers(lowered), TARGET)
    return emulator([random(64), np.zeros(64, np.float32)])


def test_a_right_exchange() -> None:
    run = _exchange()
    np.testing.assert_array_equal(run.arrays[1], random(64)[::-1])
    assert str(run.report) == "nothing found"


def test_a_missing_barrier_is_a_race() -> None:
    run = _exchange(barriers=False)
    (race,) = run.report.of(findings.RACE)
    assert race.count == 64
    assert race.buffer == "S (shared)"
    assert "without a barrier between" in race.text
    assert "thread 63" in race.text


def test_missing_barriers_of_a_product_are_races() -> None:
    a, b, zero = random(33, 17), random(17, 33), np.zeros((33, 33), np.float32)
    lowered = lower(kernels.matmul(33, 33, 17), TARGET)
    assert not Emulator(lowered, TARGET)([a, b, zero]).report.faults
    assert Emulator(_without_barriers(lowered), TARGET)([a, b, zero]).report.of(findings.RACE)


def test_an_index_off_by_one() -> None:
    run = _exchange(shift=1)
    (fault,) = run.report.of(findings.OUT_OF_BOUNDS)
    assert fault.count == 1
    assert "thread 0 uses element 64 of 64" in fault.text


@pytest.mark.parametrize(("stride", "ways"), [(1, 1), (2, 2), (3, 1), (4, 4), (8, 8), (16, 16), (32, 32), (33, 1)])
def test_bank_conflicts(stride: int, ways: int) -> None:
    assert _exchange(stride=stride).report.ways == ways


def test_several_threads_that_store_one_element() -> None:
    @T.prim_func(s_tir=True, check_well_formed=False)
    def func(A: T.Buffer((64,), "float32"), B: T.Buffer((2,), "float32")):
        for _ in T.thread_binding(1, thread="blockIdx.x"):
            for x in T.thread_binding(64, thread="threadIdx.x"):
                with T.sblock("all"):
                    B[0] = A[x]
                    B[1] = T.float32(1)

    report = Emulator(func, TARGET)([random(64), np.zeros(2, np.float32)]).report
    (race,) = report.of(findings.RACE)
    assert race.access.startswith("B[0]")
    (redundant,) = report.of(findings.REDUNDANT)
    assert redundant.access.startswith("B[1]")
    assert report.faults == [race]


def test_blocks_that_share_an_element() -> None:
    @T.prim_func(s_tir=True, check_well_formed=False)
    def func(A: T.Buffer((64,), "float32"), B: T.Buffer((32,), "float32")):
        for b in T.thread_binding(2, thread="blockIdx.x"):
            for x in T.thread_binding(32, thread="threadIdx.x"):
                with T.sblock("all"):
                    B[x] = A[b * 32 + x]

    report = Emulator(func, TARGET)([random(64), np.zeros(32, np.float32)], lanes=32).report
    (race,) = report.of(findings.RACE)
    assert race.count == 32
    assert "block 1, thread 0 writes what block 0, thread 0 wrote" in race.text


def test_shared_memory_that_nobody_wrote() -> None:
    @T.prim_func(s_tir=True, check_well_formed=False)
    def func(A: T.Buffer((32,), "float32"), B: T.Buffer((32,), "float32")):
        for _ in T.thread_binding(1, thread="blockIdx.x"):
            for x in T.thread_binding(32, thread="threadIdx.x"):
                with T.sblock("all"):
                    S = T.sblock_alloc_buffer((64,), scope="shared")
                    S[x] = A[x]
                    B[x] = S[x + 1]

    (fault,) = Emulator(func, TARGET)([random(32), np.zeros(32, np.float32)]).report.of(findings.UNINITIALISED)
    assert fault.count == 1


def _pipeline(attributes: dict[str, Any]) -> tvm.tirx.PrimFunc:
    """Rows of four come by asynchronous copies, one iteration ahead."""
    ahead = {
        "software_pipeline_stage": [0, 1], "software_pipeline_order": [0, 1], "software_pipeline_async_stages": [0],
    }  # fmt: skip

    @T.prim_func(s_tir=True, check_well_formed=False)
    def func(A: T.Buffer((64, 64), "float32"), C: T.Buffer((64, 64), "float32")):
        for b in T.thread_binding(2, thread="blockIdx.x"):
            for x in T.thread_binding(32, thread="threadIdx.x"):
                with T.sblock("all"):
                    S = T.sblock_alloc_buffer((64, 64), scope="shared")
                    for i in T.serial(16, annotations=ahead):
                        for u in T.unroll(1):
                            with T.sblock("copy"):
                                r = T.axis.spatial(64, i * 4 + x // 8)
                                c = T.axis.spatial(64, b * 32 + x % 8 + u)
                                T.sblock_attr(attributes)
                                S[r, c] = A[r, c]
                        for u in T.unroll(1):
                            with T.sblock("use"):
                                r = T.axis.spatial(64, i * 4 + x // 8)
                                c = T.axis.spatial(64, b * 32 + (7 - x % 8) + u)
                                C[r, c] = S[r, c]

    return func


def _copied(attributes: dict[str, Any]) -> Emulation:
    rows = random(64, 64)
    run = Emulator(_pipeline(attributes), TARGET, async_copies=True)([rows, np.zeros_like(rows)])
    for start in (0, 32):
        np.testing.assert_array_equal(run.arrays[1][:, start : start + 8], rows[:, start : start + 8])
    return run


def test_asynchronous_copies() -> None:
    assert str(_copied({"double_buffer_scope": 0}).report) == "nothing found"


def test_asynchronous_copies_into_one_buffer() -> None:
    """TVM 0.27 keeps one row for this pipeline unless asked for two; the copy of the next row overtakes the reader."""
    faults = _copied({}).report.of(findings.ASYNC)
    assert any("writes where an asynchronous copy has not arrived" in fault.text for fault in faults)


@pytest.mark.parametrize(("source", "target"), [(1, 0), (0, 2)])
def test_a_copy_that_is_not_aligned(source: int, target: int) -> None:
    @T.prim_func(s_tir=True, check_well_formed=False)
    def func(A: T.Buffer((160,), "float32"), B: T.Buffer((160,), "float32")):
        for x in T.thread_binding(32, thread="threadIdx.x"):
            with T.sblock("all"):
                T.reads(A[0:160])
                T.writes(B[0:160])
                S = T.sblock_alloc_buffer((160,), scope="shared")
                T.evaluate(T.s_tir.cp_async_raw("float32", S.data, x * 4 + target, A.data, x * 4 + source, 16))
                T.evaluate(T.ptx.cp.async_.commit_group())
                T.evaluate(T.ptx.cp.async_.wait_group(0))
                for part in range(4):
                    B[x * 4 + part + target] = S[x * 4 + part + target]

    (fault,) = Emulator(func, TARGET)([random(160), np.zeros(160, np.float32)]).report.of(findings.MISALIGNED)
    assert fault.count == 32
    assert "copies 16 bytes from or to byte" in fault.text


def test_a_copy_from_beyond_its_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    """TVM's CUDA multiplies an offset by the width of elements in 32 bits; a pointer has 64."""
    monkeypatch.setattr(races, "REACH", 1 << 10)  # for memories of 2 GiB

    @T.prim_func(s_tir=True, check_well_formed=False)
    def func(A: T.Buffer((520,), "uint16"), B: T.Buffer((4,), "uint16")):
        for _x in T.thread_binding(1, thread="threadIdx.x"):
            with T.sblock("all"):
                T.reads(A[0:520])
                T.writes(B[0:4])
                S = T.sblock_alloc_buffer((4,), "uint16", scope="shared")
                T.evaluate(T.s_tir.cp_async_raw("uint16", S.data, 0, A.data, 512, 8))
                T.evaluate(T.s_tir.cp_async_raw("uint16", S.data, 0, A.data, 508, 8))
                T.evaluate(T.s_tir.cp_async_raw("uint16", S.data, 0, T.address_of(A[512]), 0, 8))
                T.evaluate(T.ptx.cp.async_.commit_group())
                T.evaluate(T.ptx.cp.async_.wait_group(0))
                for part in range(4):
                    B[part] = S[part]

    faults = Emulator(func, TARGET)([np.zeros(520, np.uint16), np.zeros(4, np.uint16)]).report.of(
        findings.OUT_OF_BOUNDS
    )
    assert [fault.count for fault in faults] == [1]
    assert "copies from an offset of 1024 bytes, kept in 32 bits" in faults[0].text


def test_too_many_threads() -> None:
    @T.prim_func(s_tir=True, check_well_formed=False)
    def func(A: T.Buffer((2048,), "float32"), B: T.Buffer((2048,), "float32")):
        for y in T.thread_binding(2, thread="threadIdx.y"):
            for x in T.thread_binding(1024, thread="threadIdx.x"):
                with T.sblock("all"):
                    B[y * 1024 + x] = A[y * 1024 + x]

    emulator = Emulator(func, TARGET)
    with pytest.raises(CompileError, match="2048 threads in a block, of 1024"):
        emulator([random(2048), np.zeros(2048, np.float32)])


def test_too_much_shared_memory() -> None:
    func = kernels.exchange(64, stride=1024)
    with pytest.raises(CompileError, match="258052 bytes of shared memory in a block, of 232448"):
        Emulator(func, TARGET)([random(64), np.zeros(64, np.float32)])


def test_bad_arguments() -> None:
    func = kernels.exchange()
    emulator = Emulator(func, TARGET)
    with pytest.raises(InputError, match="takes 2 arrays; got 1"):
        emulator([random(64)])
    with pytest.raises(InputError, match=r"argument A .* float32 of 1 dimensions; got float64 of 1"):
        emulator([random(64, dtype="float64"), random(64)])
    with pytest.raises(InputError, match=r"shape \(64,\); got \(63,\)"):
        emulator([random(63), random(64)])
    with pytest.raises(InputError, match="'all', 'some' or 'none'; got 'most'"):
        emulator([random(64), random(64)], check="most")
    with pytest.raises(TargetError, match="kind 'llvm'"):
        Emulator(func, tvm.target.Target("llvm"))


def test_a_vector_that_cuda_has_no_type_for() -> None:
    @T.prim_func(s_tir=True, check_well_formed=False)
    def func(A: T.Buffer((64,), "float32"), B: T.Buffer((64,), "float32")):
        for x in T.thread_binding(4, thread="threadIdx.x"):
            with T.sblock("all"):
                B[T.Ramp(x * 16, 1, 16)] = A[T.Ramp(x * 16, 1, 16)]

    with pytest.raises(CompileError, match="vector float32x16, of which CUDA has no type"):
        Emulator(func, TARGET)


@pytest.mark.parametrize("call", [lambda f, *at: f.load(*at), lambda f, *at: f.store(*at[:-1], 0, at[-1])])
def test_single_elements_of_a_fragment(call: Callable[..., Any]) -> None:
    fragment = Fragments(256, np.dtype("float16"), 2, "wmma.matrix_a")
    access = Access("main_kernel", "tile", "tile[0]", 0, 2)
    lanes: Any = None  # nothing of a thread is asked
    with pytest.raises(CompileError, match="kernel main_kernel takes single elements of tile, a fragment of wmma"):
        call(fragment, lanes, np.dtype("float16"), 0, access)
