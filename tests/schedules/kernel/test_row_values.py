"""Elements divided into what is taken of rows and what joins the rows."""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx

from tvm_ext.schedules.kernel.row_values import row_values

DOWN, ALONG = (tirx.Var(name, "int64") for name in "ij")
X, Y = (tirx.decl_buffer(shape, "float32", name) for shape, name in (((10, 12), "x"), ((9, 12), "y")))


def pair(source: Any, place: Any, weight: Any = 0.25) -> Any:
    return source[place, ALONG // 2] * tirx.const(0.75) + source[place, ALONG // 2 + 1] * tirx.const(weight)


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
    assert row_values(pair(X, DOWN // 3) + pair(X, DOWN // 3 + 1, 0.5) * tirx.Cast("float32", DOWN), DOWN) is None
    assert row_values(pair(X, DOWN // 3) * tirx.Cast("float32", DOWN) + pair(Y, DOWN // 3 + 1), DOWN) is None
    assert row_values(X[DOWN, ALONG] + Y[DOWN, ALONG], DOWN) is None
    assert row_values(X[ALONG, ALONG], DOWN) is None
