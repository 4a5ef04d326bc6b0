"""Streaming stores, against numpy, and the instructions that come of them."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tvm
import tvm_ffi
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import te, tirx

from tests.schedules.kernels import AARCH64, TARGETS, assembly
from tests.schedules.simd.test_loops import run
from tvm_ext.passes.vector_code import vector_code
from tvm_ext.schedules.cpu.elementwise import Elementwise
from tvm_ext.schedules.cpu.machine import Machine
from tvm_ext.schedules.cpu.streaming import stream_large_result
from tvm_ext.schedules.rule import new_schedule
from tvm_ext.schedules.simd.loops import mark_simd
from tvm_ext.schedules.simd.stream import mark_stream
from tvm_ext.schedules.simd.tile_marks import mark_tile

VECTOR_TARGETS = ["native", "avx2", "sse4"]


def doubling(rows: int, columns: int, dtype: str, lanes: int, parallel: bool = False) -> tvm.s_tir.Schedule:
    """Double a tensor, its rows of ``lanes`` elements at a time and past the caches."""
    source = te.placeholder((rows, columns), dtype, "source")
    result = te.compute((rows, columns), lambda i, j: source[i, j] + source[i, j], name="doubled")
    schedule = new_schedule(te.create_prim_func([source, result]))
    row, column = schedule.get_loops(schedule.get_sblock("doubled"))
    mark_simd(schedule, column, lanes)
    mark_stream(schedule, column)
    if parallel:
        schedule.parallel(row)
    return schedule


def lowered(schedule: tvm.s_tir.Schedule, target: str = "native") -> tirx.PrimFunc:
    with TARGETS[target]:
        return vector_code()(schedule.mod)["main"]


def numbers(rows: int, columns: int, dtype: str) -> np.ndarray:
    return np.random.default_rng(columns).integers(0, 60, (rows, columns)).astype(dtype)


@given(
    rows=st.integers(1, 9),
    columns=st.integers(1, 140),
    lanes=st.sampled_from([4, 8, 16, 64]),
    dtype=st.sampled_from(["float32", "float64", "int8", "uint8", "int16", "int32", "int64", "float16"]),
    target=st.sampled_from(VECTOR_TARGETS),
    parallel=st.booleans(),
)
@settings(max_examples=15, deadline=None)
def test_any_shape_and_type(rows: int, columns: int, lanes: int, dtype: str, target: str, parallel: bool) -> None:
    """Rows of a length no vector divides begin where nothing can be streamed."""
    x = numbers(rows, columns, dtype)
    func = lowered(doubling(rows, columns, dtype, lanes, parallel), target)
    np.testing.assert_array_equal(run(func, [x], x.shape, dtype, target), x + x)


@pytest.mark.parametrize(("target", "lanes"), [("native", 16), ("avx2", 8), ("sse4", 4)])
@pytest.mark.parametrize("parallel", [False, True])
def test_instructions(target: str, lanes: int, parallel: bool) -> None:
    schedule = doubling(64, 256, "float32", lanes, parallel)
    text = assembly(schedule.mod["main"], TARGETS[target])
    assert all(part in text for part in ("movntps", "sfence"))
    assert "tvm_ext_stream" not in text  # inlined
    func = lowered(schedule, target)
    x = numbers(64, 256, "float32")
    np.testing.assert_array_equal(run(func, [x], x.shape, "float32", target), x + x)


def test_each_thread_fences_once() -> None:
    func = lowered(doubling(64, 256, "float32", 16, parallel=True))
    launches: list[tirx.AttrStmt] = []

    def note(statement: tirx.AttrStmt) -> None:
        if statement.attr_key == "pragma_parallel_launch_point":
            launches.append(statement)

    tvm_ffi.structural_walk(func.body, (tirx.AttrStmt, note))
    (launch,) = launches
    loop, fence = launch.body.seq
    assert loop.kind == tirx.ForKind.PARALLEL
    assert ("sfence" in str(loop), "sfence" in str(fence)) == (False, True)


def test_two_kernels_of_one_module_may_stream_the_same_vectors() -> None:
    kernels = {name: doubling(3, 64, "float32", 16).mod["main"].with_attr("global_symbol", name) for name in "ab"}
    with TARGETS["native"]:
        module = vector_code()(tvm.IRModule(kernels))
    library = tvm.compile(module, TARGETS["native"])
    x = numbers(3, 64, "float32")
    for name in "ab":
        result = tvm.runtime.tensor(np.zeros_like(x))
        library[name](tvm.runtime.tensor(x), result)
        np.testing.assert_array_equal(result.numpy(), x + x)


@pytest.mark.parametrize(
    ("columns", "narrowest"), [(64, "z"), (1000, "y"), (24, "y"), (12, "x"), (20, "x"), (1004, "x"), (1001, "z")]
)
def test_vectors_are_stored_in_parts_that_are_aligned_in_all_rows(columns: int, narrowest: str) -> None:
    """What rows begin at is a multiple of the part; where it is of none, vectors are stored whole where they can be."""
    target = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v4"})
    text = assembly(doubling(64, columns, "float32", 16).mod["main"], target)
    assert min(re.findall(r"movntps\s+%([xyz])mm", text)) == narrowest


@pytest.mark.parametrize(
    ("columns", "shortest", "streams"),
    [(64, 0, True), (12, 0, True), (13, 0, False), (12, 64, False), (20, 64, False), (24, 64, True), (1004, 64, True)],
)
def test_rows_that_would_share_lines_with_stores_through_the_caches_are_not_streamed(
    columns: int, shortest: int, streams: bool
) -> None:
    machine = Machine("avx512", 512, 32, l3=64 << 10)
    source = te.placeholder((4096, columns), "float32", "source")
    weights = te.placeholder((columns,), "float32", "weights")
    schedule = new_schedule(
        te.create_prim_func(
            [source, weights, te.compute(source.shape, lambda i, j: source[i, j] * weights[j], name="n")]
        )
    )
    block = schedule.get_sblock("n")
    loop = schedule.get_loops(block)[-1]
    mark_simd(schedule, loop, 16)
    assert stream_large_result(schedule, block, loop, machine, shortest=shortest) == streams


@pytest.mark.parametrize(("rows", "columns"), [(64, 48), (40, 270)])
def test_tiles(rows: int, columns: int) -> None:
    source = te.placeholder((columns, rows), "float32", "source")
    schedule = new_schedule(
        te.create_prim_func([source, te.compute((rows, columns), lambda i, j: source[j, i], name="turned")])
    )
    outer, inner = schedule.get_loops(schedule.get_sblock("turned"))
    mark_tile(schedule, outer, 16)
    mark_simd(schedule, inner, 16)
    mark_stream(schedule, inner)
    assert "movntps" in assembly(schedule.mod["main"])
    x = numbers(columns, rows, "float32")
    np.testing.assert_array_equal(run(lowered(schedule), [x], (rows, columns), "float32", "native"), x.T)


@pytest.mark.parametrize(
    ("l3", "cores", "shares", "is_far", "streams"),
    [
        (64, 1, False, False, True),
        (150, 1, False, False, True),
        (180, 1, False, False, False),
        (96, 2, False, False, True),
        (110, 2, False, False, False),
        (150, 2, False, True, True),
        (180, 2, False, True, False),
        (200, 2, True, False, True),
        (260, 2, True, False, False),
    ],
)
def test_what_the_caches_do_not_keep_is_streamed(
    l3: int, cores: int, shares: bool, is_far: bool, streams: bool
) -> None:
    """Operand and result, 64 KiB each, against parts of the last cache."""
    machine = Machine("avx512", 512, 32, l3=l3 << 10, shares_l3=shares, cores=cores)
    assert _streams(machine, 64, is_far) == streams


def test_streaming_takes_instructions_for_it_and_a_result_of_some_size() -> None:
    assert not _streams(Machine("neon", 128, 32, l3=64 << 10), 64)
    assert not _streams(Machine("avx512", 512, 32, l3=64 << 10), 8, read_rows=1 << 10)


def _streams(machine: Machine, rows: int, is_far: bool = False, read_rows: int = 0) -> bool:
    source = te.placeholder((read_rows or rows, 256), "float32", "source")
    schedule = new_schedule(
        te.create_prim_func([source, te.compute((rows, 256), lambda i, j: -source[i, j], name="n")])
    )
    block = schedule.get_sblock("n")
    loop = schedule.get_loops(block)[-1]
    mark_simd(schedule, loop, 16)
    said = stream_large_result(schedule, block, loop, machine, is_far)
    with TARGETS["native"]:
        assert ("sfence" in str(vector_code()(schedule.mod)["main"])) == said
    return said


@pytest.mark.parametrize(("target", "parts"), [("avx2", 2), ("sse4", 4)])
def test_parts_of_a_line_are_stored_without_a_load_between_them(target: str, parts: int) -> None:
    """Else the line may leave the core before it is whole."""
    source = te.placeholder((4096, 8192), "float32", "source")
    func = te.create_prim_func([source, te.compute((4096, 8192), lambda i, j: -source[i, j], name="n")])
    schedule = Elementwise().apply(func, TARGETS[target])
    assert schedule is not None
    code = [line.strip() for line in assembly(schedule.mod["main"], TARGETS[target]).splitlines()]
    kinds = "".join("s" if "movntps" in line else "i" for line in code if line and not line.startswith((".", "#")))
    assert {len(run) for run in re.findall("s+", kinds)} == {parts}


def test_a_machine_without_streaming_stores_compiles_large_results() -> None:
    source = te.placeholder((4096, 8192), "float32", "source")
    func = te.create_prim_func([source, te.compute((4096, 8192), lambda i, j: -source[i, j], name="n")])
    schedule = Elementwise().apply(func, AARCH64)
    assert schedule is not None
    assert "sfence" not in assembly(schedule.mod["main"], AARCH64)
