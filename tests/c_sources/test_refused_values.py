"""C sources refuse the values that libraries refuse."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import tvm_ext
from tests.frontend.onnx.text import graph
from tvm_ext.backends.c.compiled import CModel, build
from tvm_ext.errors import InputError, OptionError

TABLE = np.arange(12, dtype="float32").reshape(4, 3)


def sources(model: onnx.ModelProto) -> CModel:
    compiled = tvm_ext.compile(model, emit="c")
    assert isinstance(compiled, CModel)
    return compiled


@pytest.mark.parametrize("kind", ["int64", "int32", "uint8"])
def test_inputs_that_are_indices(kind: str, tmp_path: Path) -> None:
    text = f"g ({kind}[70] i) => (float[70,3] y) {{ a = Cast<to = 7>(i) y = Gather(table, a) }}"
    model = sources(graph(text, table=TABLE))
    model.write_to(tmp_path)
    build(
        tmp_path,
        options=["CFLAGS=-std=c11 -O1 -Wall -Wextra -Werror -fsanitize=undefined,address -fno-sanitize-recover"],
    )
    good = np.arange(70).astype(kind) % 4
    (found,) = model.run_program(tmp_path, [good]).values()
    np.testing.assert_array_equal(found, TABLE[good.astype(int)])
    for wrong in (4, 200) if kind == "uint8" else (4, -5, 2**31 - 1):
        given = good.copy()
        given[69] = wrong
        with pytest.raises(InputError, match=f"input i: .*{'-4' if kind != 'uint8' else '.*'} to 3 only"):
            model.run_program(tmp_path, [given])


def test_computed_indices(tmp_path: Path) -> None:
    text = (
        "g (int64[5,20] i, float[6,20] x) => (float[5,20] y) "
        "{ j = Neg(i) z = Relu(x) y = GatherElements<axis = 0>(z, j) }"
    )
    model = sources(graph(text))
    model.write_to(tmp_path)
    build(
        tmp_path,
        options=["CFLAGS=-std=c11 -O1 -Wall -Wextra -Werror -fsanitize=undefined,address -fno-sanitize-recover"],
    )
    x = np.random.default_rng(0).random((6, 20)).astype("float32")
    good = -(np.arange(100).reshape(5, 20) % 6)
    (found,) = model.run_program(tmp_path, [good, x]).values()
    np.testing.assert_array_equal(found, np.take_along_axis(x, -good, 0))
    for place, wrong in ((0, -6), (37, 7), (99, -6)):
        given = good.copy()
        given.flat[place] = wrong
        with pytest.raises(InputError, match="its input 'j' must hold indices into dimension 0 of 'z'"):
            model.run_program(tmp_path, [given, x])


def test_the_hint_about_open_extents_names_the_largest() -> None:
    """C sources have one arena: the message says what to give, from the ranges that are known."""
    made = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[n,s,3] x) => (float[n,s,3] y) { y = Exp(x) }'
    )
    with pytest.raises(OptionError, match="--input-shape x:4,9,3"):
        tvm_ext.compile(made, emit="c", dynamic={"n": (1, 4), "s": (1, 9)})
