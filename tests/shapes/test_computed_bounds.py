"""Slices, paddings, one-hot codes and recurrent layers whose bounds or lengths only a run tells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import tvm_ext
from tests.frontend.onnx.text import graph
from tvm_ext.errors import InputError

onnxruntime = pytest.importorskip("onnxruntime")


def check(model: onnx.ModelProto, feeds: Sequence[Mapping[str, Any]], dynamic: str = "*") -> tvm_ext.CompiledModel:
    """Compare with onnxruntime."""
    compiled = tvm_ext.compile(model, dynamic=dynamic)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for given in feeds:
        arrays = {name: np.asarray(value) for name, value in given.items()}
        note = str({name: array if array.size < 9 else array.shape for name, array in arrays.items()})
        for want, got in zip(session.run(None, arrays), compiled.run(arrays).values(), strict=True):
            assert (want.shape, want.dtype) == (got.shape, got.dtype), note
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5, err_msg=note)
    return compiled


def rows(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype("float32")


@pytest.mark.parametrize("step", [1, 2, 7, -1, -3])
def test_slices_with_steps_that_are_computed(step: int) -> None:
    model = graph(
        "g (float[n,3] x, int64[1] a, int64[1] b, int64[1] s) => (float[k,3] y) { y = Slice(x, a, b, axis, s) }",
        axis=np.array([0]),
    )
    bounds = ((0, 3), (2, 0), (0, 0), (-2, 1000), (-1, -1000), (1000, -1000), (5, 2), (-1000, 1000))
    feeds = [{"x": rows(n, 3), "a": [a], "b": [b], "s": [step]} for n in (1, 7, 33) for a, b in bounds]
    check(model, feeds)


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
def test_padding_by_widths_that_are_computed(mode: str) -> None:
    model = graph(f'g (float[n,5] x, int64[4] p) => (float[a,b] y) {{ y = Pad<mode = "{mode}">(x, p) }}', opset=19)
    widths = ((0, 0, 0, 0), (1, 0, 2, 0), (0, 4, 0, 1), (2, 3, 1, 4))
    check(model, [{"x": rows(n, 5), "p": p} for n in (3, 7, 31) for p in widths])


def test_padding_with_a_value_along_some_axes() -> None:
    model = graph(
        "g (float[n,5,m] x, int64[2] p, float v) => (float[n,5,b] y) { y = Pad(x, p, v, axes) }",
        opset=18,
        axes=np.array([-1]),
    )
    pairs = ((0, 0), (1, 3), (-1, 0), (-2, 4))
    sizes = ((1, 3), (7, 17))
    check(
        model,
        [{"x": rows(n, 5, m), "p": p, "v": np.float32(v)} for n, m in sizes for p in pairs for v in (-2.5, np.inf)],
    )


def test_padding_of_nothing() -> None:
    model = graph("g (float[n,5] x, int64[4] p) => (float[a,b] y) { y = Pad(x, p) }", opset=18)
    check(model, [{"x": rows(n, 5), "p": (2, 0, 1, 1)} for n in (0, 1)], dynamic="n=0..9")


@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_one_hot_codes_of_open_indices(axis: int) -> None:
    model = graph(
        f"g (int64[n,m] i) => (float[a,b,c] y) {{ y = OneHot<axis = {axis}>(i, depth, values) }}",
        depth=np.array(9),
        values=np.array([-1, 2], "float32"),
    )
    rng = np.random.default_rng(0)
    check(model, [{"i": rng.integers(-9, 9, (n, m))} for n, m in ((1, 1), (3, 7), (17, 33), (127, 2))])


def recurrent(cell: str, gates: int, directions: int) -> onnx.ModelProto:
    """Make a layer of 5 units on vectors of 3, with lengths of its own for each sequence."""
    rng = np.random.default_rng(gates)
    shapes = {"w": (directions, gates * 5, 3), "r": (directions, gates * 5, 5), "b": (directions, gates * 10)}
    weights = [
        numpy_helper.from_array(rng.standard_normal(shape).astype("float32") / 2, name)
        for name, shape in shapes.items()
    ]
    kinds = {"x": ("t", "n", 3), "h": (directions, "n", 5)}
    inputs = [helper.make_tensor_value_info(name, 1, shape) for name, shape in kinds.items()]
    inputs.append(helper.make_tensor_value_info("lengths", onnx.TensorProto.INT32, ["n"]))
    node = helper.make_node(
        cell,
        ["x", "w", "r", "b", "lengths", "h"],
        ["y", "last"],
        hidden_size=5,
        direction="bidirectional" if directions == 2 else "reverse",
    )
    outputs = [
        helper.make_tensor_value_info("y", 1, ["t", directions, "n", 5]),
        helper.make_tensor_value_info("last", 1, [directions, "n", 5]),
    ]
    return helper.make_model(
        helper.make_graph([node], "g", inputs, outputs, weights),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=9,
    )


@pytest.mark.parametrize(("cell", "gates", "directions"), [("LSTM", 4, 2), ("GRU", 3, 1), ("RNN", 1, 2)])
def test_sequences_of_their_own_lengths_in_open_steps(cell: str, gates: int, directions: int) -> None:
    rng = np.random.default_rng(1)
    feeds = [
        {
            "x": rows(t, n, 3),
            "h": rows(directions, n, 5),
            "lengths": np.maximum(rng.integers(0, t + 1, n), t * (np.arange(n) == 0)).astype("int32"),
        }
        for t, n in ((1, 1), (1, 7), (3, 2), (17, 3), (33, 1), (127, 4))
    ]
    compiled = check(recurrent(cell, gates, directions), feeds)
    with pytest.raises(InputError, match="lengths"):
        compiled.run({**feeds[2], "lengths": np.array([3, -1], "int32")})
