"""Rows whose elements are repeated: by a load and a shuffle, with the values of numpy."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
import tvm_ffi
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import te, tirx
from tvm.ir.prim import expr as prim

from tests.schedules.simd.test_loops import lowered, marked, run
from tvm_ext.schedules.simd.quotients import repeats_elements, with_floored_quotients


def enlarged(width: int, scale: int, columns: int) -> tirx.PrimFunc:
    """Rows of which each element is repeated, as an image operator of TVM writes it."""
    source = te.placeholder((3, width), "float32", "source")

    def element(row: tirx.Var, column: tirx.Var) -> tvm.ir.Expr:
        return source[row, tirx.max(tirx.min(tirx.div(column, scale), width - 1), 0)]

    return te.create_prim_func([source, te.compute((3, columns), element, name="enlarged")])


@given(width=st.integers(1, 40), scale=st.integers(1, 9), more=st.integers(-9, 9), lanes=st.sampled_from([4, 8, 16]))
@settings(max_examples=40, deadline=None)
def test_repeated_elements_agree_with_numpy(width: int, scale: int, more: int, lanes: int) -> None:
    columns = max(1, width * scale + more)
    x = np.random.default_rng(width).standard_normal((3, width)).astype(np.float32)
    expected = x[:, np.minimum(np.arange(columns) // scale, width - 1)]
    func = lowered(marked(enlarged(width, scale, columns), "enlarged", lanes))
    np.testing.assert_array_equal(run(func, [x], expected.shape, "float32", "native"), expected)


def test_repeated_elements_are_not_gathered() -> None:
    func = lowered(marked(enlarged(40, 2, 80), "enlarged", 8))
    shuffles: list[object] = []
    tvm_ffi.structural_walk(func.body, [(prim.Shuffle, shuffles.append)])
    assert shuffles


def loop_over(first: int, index: object) -> tirx.For:
    i = tvm.ir.Var("i", tvm.ir.PrimType("int32"))
    source, result = (tirx.decl_buffer((1000,), "float32", name) for name in ("source", "result"))
    store = tirx.BufferStore(result, tirx.BufferLoad(source, [index(i)]), [i - first])
    return tirx.For(i, tirx.const(first, "int32"), tirx.const(20, "int32"), tirx.ForKind.SERIAL, store)


@pytest.mark.parametrize(("first", "floored"), [(0, True), (3, True), (-3, False)])
def test_only_what_is_never_negative_rounds_down(first: int, floored: bool) -> None:
    loop = with_floored_quotients(loop_over(first, lambda i: tirx.div(i, 3)), tvm.sym.Analyzer())
    (index,) = loop.body.value.indices
    assert isinstance(index, prim.FloorDiv) == floored


def test_quotients_of_data_are_told_apart() -> None:
    assert repeats_elements(loop_over(0, lambda i: tirx.div(i, 3)).body)
    assert not repeats_elements(loop_over(0, lambda i: i // 3).body)
    table = tirx.decl_buffer((1000,), "int32", "table")
    assert not repeats_elements(loop_over(0, lambda i: tirx.div(tirx.BufferLoad(table, [i]), 3)).body)
