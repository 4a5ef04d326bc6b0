"""Indices that run backwards, divided: what is computed stays the same, and is what NumPy computes."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import pytest
import tvm
from onnx import TensorProto, helper, numpy_helper
from tvm import tirx
from tvm.script import tirx as T

import tvm_ext
from tvm_ext.passes.forward_indices import forward_indices


def gathered(first: int, step: int, divisor: int, extent: int, takes_remainder: bool) -> tirx.PrimFunc:
    """Make ``b[i] = a[(first + step * i) // divisor + offset]``, or of the remainder."""
    index = tirx.floormod if takes_remainder else tirx.floordiv
    offset = 0 if takes_remainder else -min(0, (first + step * (extent - 1)) // divisor)

    @T.prim_func(s_tir=True)
    def func(a: T.Buffer((64,), "int64"), b: T.Buffer((extent,), "int64")) -> None:
        for i in range(extent):
            with T.sblock("b"):
                v = T.axis.spatial(extent, i)
                b[v] = a[index(first + T.cast(v, "int64") * step, divisor) + offset]

    return func


@pytest.mark.parametrize(
    ("first", "step", "divisor", "extent"),
    [
        *itertools.product((0, 3, 7, 14), (-1, -2), (2, 3, 4), (2, 4, 7)),
        (31, -8, 4, 3),
        (5, 3, 2, 4),
        (6, -1, 1, 7),
    ],
)
@pytest.mark.parametrize("takes_remainder", [False, True])
def test_places_are_those_of_numpy(first: int, step: int, divisor: int, extent: int, takes_remainder: bool) -> None:
    func = gathered(first, step, divisor, extent, takes_remainder)
    mod = forward_indices()(tvm.IRModule({"main": func.with_attr("global_symbol", "main")}))
    table, result = np.arange(64) * 7, np.zeros(extent, "int64")
    found = tvm.runtime.tensor(result)
    tvm.compile(mod, target="llvm")["main"](tvm.runtime.tensor(table), found)
    places = first + step * np.arange(extent)
    wanted = places % divisor if takes_remainder else places // divisor - min(0, int(places[-1]) // divisor)
    np.testing.assert_array_equal(found.numpy(), table[wanted])


def test_values_and_indices_that_run_forwards_stay() -> None:
    @T.prim_func(private=True, s_tir=True)
    def func(a: T.Buffer((8,), "int64"), b: T.Buffer((8,), "int64")) -> None:
        for i in range(8):
            with T.sblock("b"):
                v = T.axis.spatial(8, i)
                b[v] = T.floormod(3 - a[v // 2 + v % 4], T.int64(2))

    mod = tvm.IRModule({"main": func})
    tvm.ir.assert_structural_equal(forward_indices()(mod), mod)


def test_sizes_of_a_run_may_divide() -> None:
    @T.prim_func(private=True, s_tir=True)
    def func(x: T.handle, y: T.handle) -> None:
        n, k = T.int64(), T.int64()
        a = T.match_buffer(x, (k,), "float32")
        b = T.match_buffer(y, (n,), "float32")
        for i in range(n):
            with T.sblock("b"):
                v = T.axis.spatial(n, i)
                b[v] = a[T.floormod(n - v, k)]

    mod = forward_indices()(tvm.IRModule({"main": func.with_attr("global_symbol", "main")}))
    assert "n - v" not in mod.script()
    run = tvm.compile(mod, target="llvm")["main"]
    for n, k in ((1, 1), (7, 3), (4, 9), (33, 2)):
        a, found = np.arange(k, dtype="float32"), tvm.runtime.tensor(np.zeros(n, "float32"))
        run(tvm.runtime.tensor(a), found)
        np.testing.assert_array_equal(found.numpy(), a[(n - np.arange(n)) % k])


@pytest.mark.parametrize("shape", [(1, 5, 2, 2), (1, 1, 3, 2), (1, 1, 1, 3), (2, 3, 4, 4), (1, 2, 1, 17)])
def test_a_repeated_image_that_is_turned_round(shape: tuple[int, ...]) -> None:
    constants = {"times": [1, 1, 1, 2], "start": [2**31 - 1], "end": [1 - 2**31], "axis": [3], "step": [-1]}
    graph = helper.make_graph(
        [
            helper.make_node("Tile", ["x", "times"], ["twice"]),
            helper.make_node("Slice", ["twice", "start", "end", "axis", "step"], ["y"]),
        ],
        "turned",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.array(value, "int64"), name) for name, value in constants.items()],
    )
    model = onnx.helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    x = np.random.default_rng(0).standard_normal(shape).astype("float32")
    found = tvm_ext.compile(model).run({"x": x})["y"]
    np.testing.assert_array_equal(found, np.tile(x, (1, 1, 1, 2))[..., ::-1])
