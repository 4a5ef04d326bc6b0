"""Transpositions in registers, against numpy."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
import tvm_ffi
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import te, tirx

from tests.schedules.kernels import AWKWARD, TARGETS
from tests.schedules.simd.test_loops import run
from tvm_ext.passes.vector_code import vector_code
from tvm_ext.schedules.rule import new_schedule
from tvm_ext.schedules.simd.loops import mark_simd
from tvm_ext.schedules.simd.stream import mark_stream
from tvm_ext.schedules.simd.tile_marks import mark_tile
from tvm_ext.schedules.simd.tile_shapes import LINE, block_sides, strip_length


def transposition(
    rows: int, columns: int, dtype: str, side: int, limit: int | None = None, piece: int = 0, parallel: bool = False,
    strip: int = 0,
) -> tirx.PrimFunc:  # fmt: skip
    """Transpose (rows, columns); rows from ``limit`` on count as zero.

    With ``piece`` the columns are cut into pieces of so many, with ``strip`` strips are no longer than that.
    """
    source = te.placeholder((rows if limit is None else limit, columns), dtype, "source")

    def element(i: tirx.Var, j: tirx.Var) -> tirx.Expr:
        value = source[j, i]
        return value if limit is None else tirx.if_then_else(j < limit, value, tirx.const(0, dtype))

    schedule = new_schedule(te.create_prim_func([source, te.compute((columns, rows), element, name="turned")]))
    outer, inner = schedule.get_loops(schedule.get_sblock("turned"))
    if piece:
        task, outer = schedule.split(outer, [None, piece])
        if parallel:
            schedule.parallel(task)
    mark_tile(schedule, outer, side, strip=strip)
    mark_simd(schedule, inner, side)
    return schedule.mod


def turned(module: tvm.IRModule, x: np.ndarray, shape: tuple[int, int], target: str = "native") -> np.ndarray:
    with TARGETS[target]:
        func = vector_code()(module)["main"]
    assert "Shuffle" in str(func)
    return run(func, [x], shape, str(x.dtype), target)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("rows", [extent for extent in AWKWARD if 1 < extent < 100])
def test_awkward_shapes(rows: int, target: str) -> None:
    for columns in (9, 17):
        x = np.random.default_rng(rows).standard_normal((rows, columns)).astype(np.float32)
        np.testing.assert_array_equal(
            turned(transposition(rows, columns, "float32", 16), x, (columns, rows), target), x.T
        )


@given(
    rows=st.integers(2, 70),
    columns=st.integers(2, 70),
    side=st.sampled_from([4, 8, 16]),
    dtype=st.sampled_from(["float32", "int8", "float64", "int64"]),
)
@settings(max_examples=8, deadline=None)
def test_any_shape_and_type(rows: int, columns: int, side: int, dtype: str) -> None:
    x = np.random.default_rng(rows).integers(-99, 99, (rows, columns)).astype(dtype)
    np.testing.assert_array_equal(turned(transposition(rows, columns, dtype, side), x, (columns, rows)), x.T)


@given(rows=st.integers(2, 40), limit=st.integers(2, 40), columns=st.integers(2, 40))
@settings(max_examples=6, deadline=None)
def test_rows_that_do_not_exist_are_not_loaded(rows: int, limit: int, columns: int) -> None:
    limit = min(rows, limit)
    x = np.random.default_rng(rows).standard_normal((limit, columns)).astype(np.float32)
    expected = np.pad(x, [(0, rows - limit), (0, 0)]).T
    result = turned(transposition(rows, columns, "float32", 16, limit), x, (columns, rows))
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize(("rows", "columns"), [(300, 500), (1030, 40), (70, 65536 // 4)])
def test_a_large_matrix_goes_in_strips(rows: int, columns: int) -> None:
    x = np.random.default_rng(0).standard_normal((rows, columns)).astype(np.float32)
    np.testing.assert_array_equal(turned(transposition(rows, columns, "float32", 16), x, (columns, rows)), x.T)


@pytest.mark.parametrize("strip", [16, 32, 48, 1024])
@pytest.mark.parametrize(("rows", "columns"), [(5, 100), (33, 31), (127, 65), (300, 500)])
def test_strips_of_a_given_length(rows: int, columns: int, strip: int) -> None:
    x = np.random.default_rng(0).standard_normal((rows, columns)).astype(np.float32)
    limited = transposition(rows, columns, "float32", 16, strip=strip)
    np.testing.assert_array_equal(turned(limited, x, (columns, rows)), x.T)
    if rows >= 2 * strip:
        loops: list[int] = []
        tvm_ffi.structural_walk(
            vector_code()(limited)["main"].body, [(tirx.For, lambda loop: loops.append(int(loop.extent)))]
        )
        assert rows // strip in loops


@pytest.mark.parametrize(
    ("stride", "expected"),
    [(256, 512), (4096, 512), (12288, 512), (16384, 512), (20000, 512), (32768, 256), (65536, 128), (131072, 64),
     (262144, 16), (1 << 23, 16)],
)  # fmt: skip
def test_a_strip_stays_within_the_pages_that_can_be_translated(stride: int, expected: int) -> None:
    assert strip_length(stride, 16) == expected


@pytest.mark.parametrize(("stride", "expected"), [(256, 32), (8192, 32), (131072, 32), (262144, 16), (1 << 23, 16)])
def test_half_lines_that_are_streamed_are_soon_made_whole(stride: int, expected: int) -> None:
    assert strip_length(stride, 8, 2) == expected


@given(rows=st.integers(5, 90), pieces=st.integers(2, 7), parallel=st.booleans())
@settings(max_examples=8, deadline=None)
def test_pieces_of_which_the_last_is_shorter(rows: int, pieces: int, parallel: bool) -> None:
    schedule = transposition(37, rows, "float32", 16, piece=-(-rows // pieces), parallel=parallel)
    x = np.random.default_rng(rows).standard_normal((37, rows)).astype(np.float32)
    np.testing.assert_array_equal(turned(schedule, x, (rows, 37)), x.T)


def test_a_condition_that_is_no_limit_is_kept() -> None:
    source = te.placeholder((32, 32), "float32", "source")
    schedule = new_schedule(
        te.create_prim_func([source, te.compute((32, 32), lambda i, j: source[j, i], name="turned")])
    )
    outer, inner = schedule.get_loops(schedule.get_sblock("turned"))
    first, second = schedule.split(inner, [3, 11])
    schedule.reorder(first, outer, second)
    mark_tile(schedule, outer, 16)
    mark_simd(schedule, second, 16)
    with TARGETS["native"]:
        func = vector_code()(schedule.mod)["main"]
    x = np.random.default_rng(0).standard_normal((32, 32)).astype(np.float32)
    np.testing.assert_array_equal(run(func, [x], (32, 32), "float32", "native"), x.T)


@given(
    rows=st.integers(2, 150),
    columns=st.integers(2, 150),
    side=st.sampled_from([4, 8, 16]),
    dtype=st.sampled_from(["float32", "int8", "uint8", "float64", "float16"]),
    staging=st.sampled_from([1 << 10, 1 << 12, 1 << 17]),
    target=st.sampled_from(["native", "avx2", "sse4"]),
)
@settings(max_examples=12, deadline=None)
def test_blocks_by_way_of_a_buffer(rows: int, columns: int, side: int, dtype: str, staging: int, target: str) -> None:
    """Blocks of few tiles and of all, whose edges no tile divides; what is computed on the way goes into the buffer."""
    source, bias = te.placeholder((rows, columns), dtype, "source"), te.placeholder((rows,), dtype, "bias")
    result = te.compute((columns, rows), lambda i, j: source[j, i] + bias[j], name="turned")
    schedule = new_schedule(te.create_prim_func([source, bias, result]))
    outer, inner = schedule.get_loops(schedule.get_sblock("turned"))
    mark_tile(schedule, outer, side, staging)
    mark_simd(schedule, inner, side)
    mark_stream(schedule, inner)
    with TARGETS[target]:
        func = vector_code()(schedule.mod)["main"]
    assert "staging" in str(func)
    assert "tvm_ext.unproved_access" not in func.attrs
    x = np.random.default_rng(rows).integers(0, 60, (rows, columns)).astype(dtype)
    y = np.random.default_rng(columns).integers(0, 60, rows).astype(dtype)
    np.testing.assert_array_equal(run(func, [x, y], (columns, rows), dtype, target), x.T + y)


@given(
    rows=st.integers(1, 1 << 16),
    columns=st.integers(1, 1 << 16),
    side=st.sampled_from([4, 8, 16]),
    size=st.sampled_from([1, 2, 4, 8]),
    staging=st.sampled_from([1 << 14, 1 << 16, 1 << 18]),
)
@settings(max_examples=200, deadline=None)
def test_sides_of_blocks(rows: int, columns: int, side: int, size: int, staging: int) -> None:
    along, across = block_sides(rows, columns, side, size, staging)
    line = max(side, LINE // size)
    assert (along % line, across % line) == (0, 0)
    assert min(along, across) > 0
    assert along * across * size <= max(staging, line * line * size)
    assert across - line < columns  # no wider than the result
    if min(rows, columns) * min(rows, columns) * size >= 4 * staging:
        assert across * size >= LINE


def test_blocks_read_twice_as_far_as_they_write() -> None:
    assert block_sides(4096, 4096, 8, 4, 128 << 10) == (256, 128)
    assert block_sides(65536, 64, 8, 4, 128 << 10) == (512, 64)
    assert block_sides(64, 65536, 8, 4, 128 << 10) == (64, 512)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("rows", [2, 3, 4])
@pytest.mark.parametrize("dtype", ["int8", "float32"])
def test_few_rows_are_interleaved(rows: int, dtype: str, target: str) -> None:
    for columns in (3, 16, 33, 127):
        x = np.random.default_rng(columns).integers(-99, 99, (rows, columns)).astype(dtype)
        found = turned(transposition(rows, columns, dtype, 2 if rows == 2 else 4), x, (columns, rows), target)
        np.testing.assert_array_equal(found, x.T)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("rows", "columns", "inside"), [(4, 33, 31), (16, 40, 17), (7, 9, 2), (31, 33, 32)])
def test_some_lanes_of_what_is_loaded_are_zero(rows: int, columns: int, inside: int, target: str) -> None:
    source = te.placeholder((rows, inside), "float32", "source")  # what is beyond does not exist
    result = te.compute(
        (columns, rows),
        lambda i, j: tirx.if_then_else(i < inside, source[j, i], tirx.const(0, "float32")), name="turned",
    )  # fmt: skip
    schedule = new_schedule(te.create_prim_func([source, result]))
    outer, inner = schedule.get_loops(schedule.get_sblock("turned"))
    mark_tile(schedule, outer, 16)
    mark_simd(schedule, inner, 16)
    x = np.random.default_rng(rows).standard_normal((rows, inside)).astype(np.float32)
    expected = np.zeros((columns, rows), np.float32)
    expected[:inside] = x.T
    np.testing.assert_array_equal(turned(schedule.mod, x, (columns, rows), target), expected)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("rows", "piece"), [(55, 14), (34, 16), (7, 4), (48, 16)])
def test_pieces_of_what_is_written_of_which_the_last_is_shorter(rows: int, piece: int, target: str) -> None:
    schedule = tvm.s_tir.Schedule(transposition(rows, 16, "float32", 16))
    outer, inner = schedule.get_loops(schedule.get_sblock("turned"))
    schedule.unannotate(inner, "tvm_ext.simd")
    task, part = schedule.split(inner, [None, piece])
    schedule.reorder(task, outer, part)
    mark_simd(schedule, part, 16)
    x = np.random.default_rng(rows).standard_normal((rows, 16)).astype(np.float32)
    np.testing.assert_array_equal(turned(schedule.mod, x, (16, rows), target), x.T)


@pytest.mark.parametrize("target", TARGETS)
def test_what_is_loaded_is_converted_and_compared(target: str) -> None:
    source, slopes = te.placeholder((7, 9), "float32", "source"), te.placeholder((7,), "float16", "slopes")

    def element(i: tirx.Var, j: tirx.Var) -> tirx.Expr:
        value = source[j, i].astype("float16")
        chosen = tirx.Select(value > tirx.const(0, "float16"), value, value * slopes[j])
        return tirx.if_then_else(j < 7, chosen.astype("float32"), tirx.const(0, "float32"))

    schedule = new_schedule(te.create_prim_func([source, slopes, te.compute((9, 8), element, name="turned")]))
    outer, inner = schedule.get_loops(schedule.get_sblock("turned"))
    mark_tile(schedule, outer, 8)
    mark_simd(schedule, inner, 8)
    with TARGETS[target]:
        func = vector_code()(schedule.mod)["main"]
    rng = np.random.default_rng(0)
    x, factors = rng.standard_normal((7, 9)).astype(np.float32), np.linspace(-0.5, 0.5, 7, dtype=np.float16)
    half = x.astype(np.float16)
    expected = np.zeros((9, 8), np.float32)
    expected[:, :7] = np.where(half > 0, half, half * factors[:, None]).T
    np.testing.assert_allclose(run(func, [x, factors], (9, 8), "float32", target), expected, rtol=1e-3)
