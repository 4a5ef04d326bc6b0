"""Windows of rows are proven on the bodies of kernels, and nothing that tells rows apart has any."""

# mypy: ignore-errors
# (the kernels are TVMScript, whose annotations are values)
from __future__ import annotations

import pytest
import tvm
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from tvm_ext.shapes.row_windows import MixedRowsError, RowWindow, RowWindows, note_row_windows, row_windows


def kernel(value, rows=lambda h: h, taps=lambda h: T.int64(3)):
    """Make a kernel that sums a value over taps, computed of the operand, the place, the tap and the rows there are."""
    zero = T.int64(0)
    with IRBuilder() as builder:
        with T.prim_func(is_private=True, s_tir=True):
            T.func_name("kernel")
            n, h, w = T.int64(), T.int64(), T.int64()
            x = T.arg("x", T.buffer((n, 2, h, w), "float32"))
            y = T.arg("y", T.buffer((n, 2, rows(h), w), "float32"))
            with T.sblock("root"), T.grid(n, T.int64(2), rows(h), w, taps(h)) as (i, c, r, j, k):
                with T.sblock("sum"):
                    place = [T.axis.spatial(e, v) for e, v in zip((n, 2, rows(h), w), (i, c, r, j), strict=True)]
                    tap = T.axis.reduce((zero, taps(h)), k)
                    T.reads()
                    T.writes()
                    with T.init():
                        T.buffer_store(y, T.float32(0), place)
                    T.buffer_store(y, y[*place] + value(x, place, tap, h), place)
    return builder.get()


def read(x, place, row):
    image, channel, _, column = place
    return x[image, channel, row, column]


def padded(x, place, tap, h):
    """A window of three rows, two apart, with one row of zeros above and below."""
    row = place[2] * 2 + tap - 1
    return T.if_then_else(T.And(row >= 0, row < h), read(x, place, row), T.float32(0))


def half(h):
    return (h - 1) // 2 + 1


@pytest.mark.parametrize(
    ("value", "rows", "window"),
    [
        (lambda x, p, k, h: read(x, p, p[2]), lambda h: h, RowWindow(1, 0, 0)),
        (lambda x, p, k, h: read(x, p, p[2] + k), lambda h: h - 2, RowWindow(1, 0, 2)),
        (lambda x, p, k, h: read(x, p, p[2] * 3 + k * 2), lambda h: h // 3 - 1, RowWindow(3, 0, 4)),
        (padded, half, RowWindow(2, -1, 1)),
        # Whether the fifth row below is there is as much as reading it.
        (
            lambda x, p, k, h: T.Select(p[2] < h - 5, read(x, p, p[2]), T.float32(1)),
            lambda h: h,
            RowWindow(1, 0, 5),
        ),
        (lambda x, p, k, h: read(x, p, p[2]) * T.Cast("float32", p[3]), lambda h: h, RowWindow(1, 0, 0)),
    ],
)
def test_windows(value, rows, window):
    assert row_windows(kernel(value, rows)) == RowWindows(1, {0: window}, 2)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (lambda x, p, k, h: read(x, p, h - 1 - p[2]), "not read in windows"),
        (lambda x, p, k, h: read(x, p, p[2] // 2), "not read in windows"),
        (lambda x, p, k, h: read(x, p, k), "not read in windows"),
        (lambda x, p, k, h: read(x, p, p[2]) + read(x, p, T.min(p[2] * 2, h - 1)), "not read in windows"),
        (lambda x, p, k, h: read(x, p, p[2]) / T.Cast("float32", h), "number of a row"),
        (lambda x, p, k, h: read(x, p, p[2]) * T.Cast("float32", p[2]), "number of a row"),
        (lambda x, p, k, h: x[p[0], p[2] % 2, p[2], p[3]], "by the number of a row"),
        (lambda x, p, k, h: T.Select(p[2] * 2 < h, read(x, p, p[2]), T.float32(0)), "how many rows"),
        (lambda x, p, k, h: T.Select(T.EQ(p[2], T.int64(0)), read(x, p, p[2]), T.float32(0)), "number of a row"),
        (lambda x, p, k, h: T.Select(T.Or(p[2] > 0, p[3] > 0), read(x, p, p[2]), T.float32(0)), "number of a row"),
        (lambda x, p, k, h: T.float32(1), "depends on no rows"),
    ],
)
def test_what_tells_rows_apart_has_no_windows(value, why):
    with pytest.raises(MixedRowsError, match=why):
        row_windows(kernel(value))


def test_a_sum_over_all_rows_has_no_windows():
    with pytest.raises(MixedRowsError, match="made of all rows"):
        row_windows(kernel(lambda x, p, k, h: read(x, p, k), taps=lambda h: h))


def test_windows_of_windows():
    outer, inner = RowWindow(2, -1, 1), RowWindow(3, -2, 4)
    rows = {outer.stride * 7 + tap for tap in range(outer.first, outer.last + 1)}
    reached = {row * inner.stride + tap for row in rows for tap in range(inner.first, inner.last + 1)}
    both = outer.of(inner)
    assert (7 * both.stride + both.first, 7 * both.stride + both.last) == (min(reached), max(reached))
    with pytest.raises(MixedRowsError, match="2 and 3 apart"):
        outer.joined(inner)


def test_the_attribute_is_of_the_parameters_that_it_was_written_for():
    mod = tvm.IRModule({"kernel": kernel(padded, half)})
    noted = note_row_windows()(mod)["kernel"]
    assert RowWindows.of(noted) == row_windows(mod["kernel"])
    assert RowWindows.of(mod["kernel"]) is None
    fewer = tvm.tirx.PrimFunc(noted.params[:1], noted.body, noted.ret_type, noted.attrs)
    assert RowWindows.of(fewer) is None
