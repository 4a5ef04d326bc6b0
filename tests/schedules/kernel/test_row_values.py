"""Elements divided into what is taken of rows and what joins the rows."""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx

from tvm_ext.schedules.kernel.row_values import row_values, with_rows_joined_first

DOWN, ALONG = (tirx.Var(name, "int64") for name in "ij")
X, Y = (tirx.decl_buffer(shape, "float32", name) for shape, name in (((10, 12), "x"), ((9, 12), "y")))
QUARTER = tirx.const(0.25)


def pair(source: Any, place: Any, weight: Any = QUARTER) -> Any:
    return source[place, ALONG // 2] * (tirx.const(1.0) - weight) + source[place, ALONG // 2 + 1] * weight


def test_rows_are_found_and_joined_again() -> None:
    value = pair(X, DOWN // 3) * tirx.Cast("float32", DOWN) + pair(X, DOWN // 3 + 1) * Y[DOWN, ALONG]
    found = row_values(value, DOWN)
    assert found is not None
    assert found.rows == 10
    assert [str(place) for place in found.places] == [str(DOWN // 3), str(DOWN // 3 + 1)]
    assert tvm_ffi.structural_equal(found.value, pair(X, found.row), map_free_vars=False)
    rows = tirx.decl_buffer((10, 12), "float32", "rows")
    joined = found.join(lambda place: rows[place, ALONG])
    expected = rows[DOWN // 3, ALONG] * tirx.Cast("float32", DOWN) + rows[DOWN // 3 + 1, ALONG] * Y[DOWN, ALONG]
    assert tvm_ffi.structural_equal(joined, expected, map_free_vars=False)


def test_rows_of_several_kinds_are_none() -> None:
    larger = tirx.max(pair(X, DOWN // 3 + 1), tirx.const(0.0))
    assert row_values(pair(X, DOWN // 3) * tirx.Cast("float32", DOWN) + larger, DOWN) is None
    assert (
        row_values(pair(X, DOWN // 3) + pair(X, DOWN // 3 + 1, tirx.const(0.5)) * tirx.Cast("float32", DOWN), DOWN)
        is None
    )
    assert row_values(pair(X, DOWN // 3) * tirx.Cast("float32", DOWN) + pair(Y, DOWN // 3 + 1), DOWN) is None
    assert row_values(X[DOWN, ALONG] + Y[DOWN, ALONG], DOWN) is None
    assert row_values(X[ALONG, ALONG], DOWN) is None


def test_rows_are_joined_first_where_sums_allow_it() -> None:
    down, along = tirx.Cast("float32", DOWN), tirx.Cast("float32", ALONG)
    value = tirx.max(pair(X, DOWN // 3, along) * down + pair(X, DOWN // 3 + 1, along), tirx.const(0.0))
    found = row_values(value, DOWN)
    assert found is not None
    turned = with_rows_joined_first(found)
    columns = row_values(turned, ALONG)
    assert columns is not None
    expected = X[DOWN // 3, columns.row] * down + X[DOWN // 3 + 1, columns.row]
    assert tvm_ffi.structural_equal(columns.value, expected, map_free_vars=False)
    assert [str(place) for place in columns.places] == [str(ALONG // 2), str(ALONG // 2 + 1)]
    row = tirx.decl_buffer((12,), "float32", "row")
    joined = columns.join(lambda place: row[place])
    expected = tirx.max(row[ALONG // 2] * (tirx.const(1.0) - along) + row[ALONG // 2 + 1] * along, tirx.const(0.0))
    assert tvm_ffi.structural_equal(joined, expected, map_free_vars=False)


def test_rows_that_are_not_summed_are_not_joined_first() -> None:
    for value in (
        tirx.max(pair(X, DOWN // 3), pair(X, DOWN // 3 + 1)),
        pair(X, DOWN // 3) * pair(X, DOWN // 3 + 1),
        pair(X, DOWN // 3) * tirx.Cast("float32", DOWN) + tirx.exp(pair(X, DOWN // 3 + 1)),
    ):
        found = row_values(value, DOWN)
        assert found is None or with_rows_joined_first(found) is None
