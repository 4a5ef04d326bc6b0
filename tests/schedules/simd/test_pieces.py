"""Rows that are read in a few pieces, each in order: against numpy's padding, and by the vectors that come out."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
import tvm_ffi
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import te, tirx

from tests.schedules.simd.test_loops import lowered, marked, run
from tvm_ext.schedules.simd.pieces import MOST_PIECES, is_piecewise, pieces_of

MODES = ("reflect", "edge", "wrap")


def place(mode: str, column: tirx.Var, width: int, before: int) -> tvm.ir.Expr:
    """Column of the source that stands at a column of the padded row."""
    source = column - before
    if mode == "edge":
        return tirx.max(0, tirx.min(width - 1, source))
    if mode == "wrap":
        return tirx.floormod(column + (width - before % width), width)
    behind = tirx.if_then_else(column < before, before - column, source)
    return tirx.if_then_else(column >= before + width, before + 2 * (width - 1) - column, behind)


def padded(mode: str, width: int, before: int, after: int) -> tirx.PrimFunc:
    source = te.placeholder((3, width), "float32", "source")
    shape = (3, before + width + after)
    return te.create_prim_func(
        [source, te.compute(shape, lambda row, column: source[row, place(mode, column, width, before)], name="padded")]
    )


@given(
    mode=st.sampled_from(MODES),
    width=st.integers(1, 70),
    pads=st.tuples(st.integers(0, 9), st.integers(0, 9)),
    lanes=st.sampled_from([4, 8, 16]),
)
@settings(max_examples=40, deadline=None)
def test_padded_rows_agree_with_numpy(mode: str, width: int, pads: tuple[int, int], lanes: int) -> None:
    if mode == "reflect":
        pads = min(pads[0], width - 1), min(pads[1], width - 1)
    x = np.random.default_rng(width).standard_normal((3, width)).astype(np.float32)
    expected = np.pad(x, ((0, 0), pads), mode=mode)
    func = lowered(marked(padded(mode, width, *pads), "padded", lanes))
    np.testing.assert_array_equal(run(func, [x], expected.shape, "float32", "native"), expected)


@pytest.mark.parametrize("mode", MODES)
def test_the_middle_of_a_padded_row_is_copied_in_whole_vectors(mode: str) -> None:
    func = lowered(marked(padded(mode, 100, 3, 2), "padded", 8))
    ramps: list[int] = []

    def note(load: tvm.ir.TensorLoad) -> None:
        index = load.indices[0]
        if isinstance(index, tirx.Ramp) and int(index.stride) == 1:
            ramps.append(int(index.lanes))

    tvm_ffi.structural_walk(func.body, [(tvm.ir.TensorLoad, note)])
    assert 8 in ramps


def loop_over(extent: int, index: object) -> tirx.For:
    i = tvm.ir.Var("i", tvm.ir.PrimType("int64"))
    source, result = (tirx.decl_buffer((1000,), "float32", name) for name in ("source", "result"))
    store = tirx.BufferStore(result, tirx.BufferLoad(source, [index(i)]), [i])
    return tirx.For(i, tirx.const(0, "int64"), tirx.const(extent, "int64"), tirx.ForKind.SERIAL, store)


@pytest.mark.parametrize(
    ("index", "extents"),
    [
        (lambda i: i + 7, [20]),
        (lambda i: tirx.max(i - 3, tirx.const(0, "int64")), [3, 17]),
        (lambda i: tirx.if_then_else(i > 4, i, 9 - i), [5, 15]),
        (lambda i: tirx.if_then_else(i >= 4, i, 9 - i), [4, 16]),
        (lambda i: tirx.if_then_else(12 - i < 4, i, 9 - i), [9, 11]),
        (lambda i: tirx.if_then_else(12 - i <= 4, i, 9 - i), [8, 12]),
        (lambda i: (i + 3) % 10, [7, 10, 3]),
        (lambda i: (i + 3) % 2, [20]),  # too many pieces
        (lambda i: tirx.max(2 * i - 3, tirx.const(0, "int64")), [20]),  # no steps of one
    ],
)
def test_loops_are_divided_where_conditions_change(index: object, extents: list[int]) -> None:
    pieces = pieces_of(loop_over(20, index), tvm.sym.Analyzer())
    assert [int(piece.extent) for piece in pieces] == extents
    assert len(pieces) <= MOST_PIECES


def test_only_steps_of_one_are_piecewise() -> None:
    i, j = (tvm.ir.Var(name, tvm.ir.PrimType("int64")) for name in "ij")
    assert is_piecewise(tirx.max(i - 3, tirx.const(0, "int64")) + j, i)
    assert is_piecewise(j * 7, i)
    assert not is_piecewise(i * 2, i)
    assert not is_piecewise(i // 2, i)
    assert not is_piecewise(i + i, i)
