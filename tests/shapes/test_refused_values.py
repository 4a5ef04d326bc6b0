"""Values that an operator cannot take, and sizes that leave it too little: refused as onnxruntime refuses them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest

import tvm_ext
from tests.frontend.onnx.text import graph
from tests.shapes.test_computed_bounds import recurrent, rows
from tvm_ext.errors import InputError
from tvm_ext.frontend import import_model
from tvm_ext.passes.value_checks import is_value_check, without_value_checks

onnxruntime = pytest.importorskip("onnxruntime")

Feed = Mapping[str, Any]


def agree(model: onnx.ModelProto, feeds: Sequence[Feed], message: str, static: bool) -> None:
    """Compare with onnxruntime, which has to refuse some of the feeds, and not all of them."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    arrays = [{name: np.asarray(value) for name, value in feed.items()} for feed in feeds]
    shapes = {name: array.shape for name, array in arrays[0].items()}
    compiled = tvm_ext.compile(model, input_shapes=shapes) if static else tvm_ext.compile(model, dynamic="*")
    refused = 0
    for feed in arrays:
        try:
            wanted = session.run(None, feed)
        except Exception:  # onnxruntime has a class of its own for each status
            refused += 1
            with pytest.raises(InputError, match=message):
                compiled.run(feed)
            continue
        for want, got in zip(wanted, compiled.run(feed).values(), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5, err_msg=str(feed))
    assert 0 < refused < len(feeds)


def feeds_of(name: str, values: Sequence[Any], **others: Any) -> list[Feed]:
    """Make feeds that differ in one input."""
    return [{**others, name: np.array(value)} for value in values]


COMPUTED = {
    "Gather": (
        "g (float[n,4] x, int64[m] i) => (float[m,4] y) { j = Neg(i) y = Gather(x, j) }",
        feeds_of("i", [[0, 4], [0, -4], [0, 5], [6, 1], [-5, 1]], x=rows(5, 4)),
        "Gather node that makes 'y': its input 'j' must hold indices into dimension 0 of 'x'",
    ),
    "GatherElements": (
        "g (float[3,n] x, int64[3,m] i) => (float[3,m] y) { j = Neg(i) y = GatherElements<axis = 1>(x, j) }",
        feeds_of("i", [[[0], [-4], [5]], [[0], [-5], [1]], [[0], [6], [1]]], x=rows(3, 5)),
        "its input 'j' must hold indices into dimension 1 of 'x'",
    ),
    "GatherND": (
        "g (float[n,4] x, int64[m,2] i) => (float[m] y) { j = Neg(i) y = GatherND(x, j) }",
        feeds_of("i", [[[-4, -3]], [[5, 4]], [[-5, -3]], [[-4, -4]], [[6, 0]]], x=rows(5, 4)),
        "its input 'j' must hold places in 'x' of shape",
    ),
    "ScatterElements": (
        "g (float[3,n] x, int64[3,m] i, float[3,m] u) => (float[3,n] y)"
        " { j = Neg(i) y = ScatterElements<axis = 1>(x, j, u) }",
        feeds_of("i", [[[0], [-4], [5]], [[0], [-5], [1]], [[0], [6], [1]]], x=rows(3, 5), u=rows(3, 1)),
        "its input 'j' must hold indices into dimension 1 of 'x'",
    ),
    "ScatterND": (
        "g (float[n,4] x, int64[m,1] i, float[m,4] u) => (float[n,4] y) { j = Neg(i) y = ScatterND(x, j, u) }",
        feeds_of("i", [[[-4]], [[5]], [[-5]], [[6]]], x=rows(5, 4), u=rows(1, 4)),
        "its input 'j' must hold places in 'x' of shape",
    ),
    "TopK": (
        "g (float[3,n] x, int64[1] k) => (float[3,m] y, int64[3,m] z) { j = Neg(k) y, z = TopK(x, j) }",
        feeds_of("k", [[-2], [0], [-5], [-6], [1]], x=rows(3, 5)),
        "its input 'j' must hold a count from 0 to dimension 1 of 'x'",
    ),
    "Slice": (
        "g (float[n,4] x, int64[1] s) => (float[m,4] y) { j = Neg(s) y = Slice(x, zero, four, zero, j) }",
        feeds_of("s", [[-2], [-1], [0]], x=rows(5, 4)),
        "its input 'j' must hold no step of 0",
    ),
    "reflection": (
        'g (float[n,4] x, int64[4] p) => (float[m,k] y) { j = Neg(p) y = Pad<mode = "reflect">(x, j) }',
        feeds_of(
            "p",
            [
                [-2, 0, -2, 0],
                [-4, -3, -4, -3],
                [-5, 0, 0, 0],
                [0, 0, -5, 0],
                [0, -4, 0, 0],
                [3, 0, 3, 0],
                [2, 0, -4, 0],
            ],
            x=rows(5, 4),
        ),
        "widths less than the extents that are reflected",
    ),
    "Split": (
        "g (float[n,4] x, int64[3] s) => (float[a,4] y, float[b,4] z, float[c,4] w)"
        " { j = Neg(s) y, z, w = Split<axis = 0>(x, j) }",
        feeds_of("s", [[-2, -1, -2], [-2, 0, -3], [-2, -1, -1], [-3, -3, 1], [-5, 0, 0], [-3, -3, -3]], x=rows(5, 4)),
        "its input 'j' must hold lengths that add up to dimension 0 of 'x'",
    ),
    "OneHot": (
        "g (int64[n] x, int64[1] d) => (float[n,m] y) { j = Neg(d) y = OneHot(x, j, offon) }",
        feeds_of("d", [[-3], [-7], [-1], [2], [0]], x=np.array([0, 2, -1, 5, -6])),
        "its input 'j' must hold a number of classes from 1",
    ),
    "cutting": (
        "g (float[n,4] x, int64[4] p) => (float[m,k] y) { j = Neg(p) y = Pad(x, j) }",
        feeds_of("p", [[-2, 0, -2, 0], [2, 1, 3, 1], [3, 0, 3, 0]], x=rows(5, 4)),
        "take away no more than there is",
    ),
}


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("name", COMPUTED)
def test_computed_values(name: str, static: bool) -> None:
    text, feeds, message = COMPUTED[name]
    known = {"zero": np.array([0]), "four": np.array([4]), "offon": np.array([-1, 2], "float32")}
    constants = {key: value for key, value in known.items() if f" {key}" in text}
    agree(graph(text, opset=18, **constants), feeds, message, static)


@pytest.mark.parametrize(("cell", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
def test_lengths_of_sequences(cell: str, gates: int) -> None:
    others = {"x": rows(5, 2, 3), "h": rows(1, 2, 5)}
    feeds = feeds_of("lengths", [np.array(pair, "int32") for pair in ([5, 2], [6, 2], [1, 9])], **others)
    agree(recurrent(cell, gates, 1), feeds, "'lengths' must hold lengths from 0 to dimension 0 of 'x'", False)


def test_steps_of_ranges() -> None:
    model = graph(
        "g (int64 s) => (float[m] y) { j = Neg(s) r = Range(zero, four, j) y = Cast<to = 1>(r) }",
        zero=np.array(0),
        four=np.array(4),
    )
    agree(model, feeds_of("s", [-1, -3, 0]), "Range node that makes 'r': its input 'j' must hold no step of 0", True)


SIZES = {
    "n >= 3": "g (float[n,4] x) => (float[3,4] y, int64[3,4] z) { y, z = TopK<axis = 0>(x, three) }",
    "n >= 4": 'g (float[n,4] x) => (float[m,4] y) { y = Pad<mode = "reflect">(x, widths) }',
    "n >= 5": "g (float[n,4] x) => (float[m,4] y) { y = Pad(x, cuts) }",
    "n == 5": "g (float[n,4] x) => (float[2,4] y, float[3,4] z) { y, z = Split<axis = 0>(x, parts) }",
    "n . 2. // 3": "g (float[n,4] x) => (float[a,4] y, float[b,4] z, float[c,4] w)"
    " { y, z, w = Split<axis = 0, num_outputs = 3>(x) }",
    "n >= 6": "g (float[n,4] x) => (float[2,4] y) { y = Gather(x, places) }",
}
CONSTANTS = {
    "three": [3], "widths": [2, 0, 3, 0], "cuts": [-2, 0, -3, 0], "parts": [2, 3], "places": [2, -6],
}  # fmt: skip


@pytest.mark.parametrize("condition", SIZES)
def test_sizes_that_leave_too_little(condition: str) -> None:
    text = SIZES[condition]
    constants = {name: np.array(value) for name, value in CONSTANTS.items() if f" {name})" in text}
    feeds = [{"x": rows(n, 4)} for n in (6, 5, 4, 3, 2, 1)]
    agree(graph(text, opset=18, **constants), feeds, condition, False)


@pytest.mark.parametrize("static", [False, True])
def test_more_than_there_is_of_what_only_a_run_counts(static: bool) -> None:
    model = graph(
        "g (float[n] x) => (float[1,3] y, int64[1,3] w) { z = NonZero(x) f = Cast<to = 1>(z) y, w = TopK(f, three) }",
        three=np.array([3]),
    )
    feeds = [{"x": np.array(x, "float32")} for x in ([1, 1, 1, 1, 0], [1, 0, 0, 0, 2], [0, 0, 0, 0, 0])]
    agree(model, feeds, "do not fit together", static)


def test_targets_that_cannot_refuse_have_no_checks() -> None:
    text, _, _ = COMPUTED["Gather"]
    imported = import_model(graph(text), dynamic="*")
    assert any(map(is_value_check, imported.mod.functions.values()))
    plain = without_value_checks()(imported.mod)
    assert not any(map(is_value_check, plain.functions.values()))
    compiled = tvm_ext.compile(plain)
    x = rows(5, 4)
    np.testing.assert_array_equal(next(iter(compiled.run([x, np.array([0, -3])]).values())), x[[0, 3]])
