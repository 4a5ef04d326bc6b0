"""What is gathered by an index that is the same for all of a row is taken row by row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

from tvm_ext.backends.cpu.target import native_target
from tvm_ext.passes.row_gathers import row_gathers

op = relax.op


def module(shape: tuple[Any, ...], index: tuple[Any, ...], extents: tuple[Any, ...], axis: int) -> tvm.IRModule:
    """Gather by an index that is broadcast, and only then counted from the start, as PyTorch's programs do."""
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    i = relax.Var("i", relax.TensorType(index, "int64"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, i]):
        with builder.dataflow():
            wide = builder.emit(op.broadcast_to(i, extents))
            moved = builder.emit(op.add(wide, relax.const(shape[axis], "int64")))
            is_negative = builder.emit(op.less(wide, relax.const(0, "int64")))
            places = builder.emit(op.where(is_negative, moved, wide))
            result = builder.emit_output(op.gather_elements(x, places, axis))
        builder.emit_func_output(result)
    return builder.get()


def gathers(mod: tvm.IRModule) -> int:
    return str(row_gathers()(mod)["main"]).count("gather_elements")


@pytest.mark.parametrize(
    ("shape", "index", "extents", "axis"),
    [
        ((7, 3, 17), (7, 3, 1), (7, 3, 17), 0),
        ((7, 3, 17), (5, 3, 1), (5, 3, 17), 0),
        ((7, 3, 17), (7, 5, 1), (7, 5, 17), 1),
        ((7, 3, 17), (5, 2, 1), (5, 2, 17), 1),
        ((31, 2, 3), (5, 1, 1), (5, 2, 3), 0),
        ((7, 33), (1, 1), (1, 33), -2),
        ((7, 33), (1,), (9, 33), 0),
        ((3, 7, 1, 127), (1, 5, 1, 1), (3, 5, 1, 127), 1),
        ((1, 3), (1, 1), (4, 3), 0),
    ],
)
def test_rows(shape: tuple[int, ...], index: tuple[int, ...], extents: tuple[int, ...], axis: int) -> None:
    mod = module(shape, index, extents, axis)
    assert not gathers(mod)
    rng = np.random.default_rng(0)
    x, i = rng.random(shape).astype("float32"), rng.integers(-shape[axis], shape[axis], index)
    executable = tvm.compile(mod, native_target(), relax_pipeline="tvm_ext")
    found = relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(x), tvm.runtime.tensor(i)).numpy()
    places = np.broadcast_to(np.where(i < 0, i + shape[axis], i), extents)
    inside = tuple(slice(None) if at == axis % len(shape) else slice(extent) for at, extent in enumerate(extents))
    np.testing.assert_array_equal(found, np.take_along_axis(x[inside], places, axis))


@pytest.mark.parametrize(
    ("shape", "index", "extents", "axis"),
    [
        ((7, 3, 17), (7, 1, 17), (7, 3, 17), 0),  # a row has indices of its own
        ((7, 3, 17), (7, 3, 1), (7, 3, 17), 2),  # along the row
        ((7, 3, 17), (7, 3, 1), (7, 3, 16), 0),  # a part of the row
        ((7, 3, 1), (7, 3, 1), (7, 3, 1), 0),  # no row
    ],
)
def test_what_stays(shape: tuple[int, ...], index: tuple[int, ...], extents: tuple[int, ...], axis: int) -> None:
    assert gathers(module(shape, index, extents, axis)) == 1


def test_open_extents_and_indices_out_of_range() -> None:
    n, m = tirx.Var("n", "int64"), tirx.Var("m", "int64")
    x = relax.Var("x", relax.TensorType((n, m, 5), "float32"))
    i = relax.Var("i", relax.TensorType((n, m, 1), "int64"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, i]):
        with builder.dataflow():
            wide = builder.emit(op.broadcast_to(i, (n, m, 5)))
            result = builder.emit_output(op.gather_elements(x, wide, 0))
        builder.emit_func_output(result)
    mod = builder.get()
    assert not gathers(mod)
    run = relax.VirtualMachine(tvm.compile(mod, native_target(), relax_pipeline="tvm_ext"), tvm.cpu())["main"]
    for rows, columns in ((1, 1), (3, 7), (17, 31), (127, 2)):
        rng = np.random.default_rng(rows)
        values = rng.random((rows, columns, 5)).astype("float32")
        places = rng.integers(-3, rows + 3, (rows, columns, 1))
        found = run(tvm.runtime.tensor(values), tvm.runtime.tensor(places)).numpy()
        clipped = np.broadcast_to(np.clip(places, 0, rows - 1), values.shape)
        np.testing.assert_array_equal(found, np.take_along_axis(values, clipped, 0))
