"""Indices outside their table do not leave it when they are fed; places and constants outside are refused."""

from __future__ import annotations

import numpy as np
import pytest

from tests.frontend.onnx.text import graph, run
from tvm_ext.errors import UnsupportedOperatorError
from tvm_ext.frontend import import_model

FAR = 2**40
TABLE = np.arange(12, dtype="float32").reshape(3, 4)


@pytest.mark.parametrize(
    ("node", "indices", "expected"),
    [
        ("y = GatherElements <axis=0> (x, i)", [[FAR, -FAR, 1, -1]], TABLE[[2, 0, 1, 2], [0, 1, 2, 3]][None]),
        ("y = GatherND (x, i)", [[FAR, 1], [-FAR, -FAR], [-1, 3]], TABLE[[2, 0, 2], [1, 0, 3]]),
        ("y = Gather <axis=1> (x, i)", [FAR, 0], TABLE[:, [3, 0]]),
    ],
)
@pytest.mark.parametrize("fed", [True, False])
def test_reading(node: str, indices: list[int], expected: np.ndarray, fed: bool) -> None:
    array = np.asarray(indices)
    given = {"i": array} if fed else {}
    declared = f", int64[{','.join(map(str, array.shape))}] i" if fed else ""
    shape = ",".join(map(str, expected.shape))
    model = graph(f"g (float[3,4] x{declared}) => (float[{shape}] y) {{ {node} }}", **({} if fed else {"i": array}))
    if not fed:
        with pytest.raises(UnsupportedOperatorError, match=f"its constant index {FAR} is out of range"):
            import_model(model)
        return
    if "GatherND" in node:
        with pytest.raises(AssertionError, match="its input 'i' must hold places in 'x'"):
            run(import_model(model), {"x": TABLE} | given)
        return
    np.testing.assert_array_equal(run(import_model(model), {"x": TABLE} | given)[0], expected)


@pytest.mark.parametrize("fed", [True, False])
@pytest.mark.parametrize(
    ("node", "shape"), [("y = ScatterElements <axis=0> (x, i, u)", (1, 4)), ("y = ScatterND (x, i, u)", (1, 2))]
)
def test_writing(node: str, shape: tuple[int, ...], fed: bool) -> None:
    array = np.full(shape, FAR)
    updates = np.full(shape if "Elements" in node else shape[:1], 7, "float32")
    declared = f", int64[{','.join(map(str, shape))}] i" if fed else ""
    constants = {"u": updates} | ({} if fed else {"i": array})
    model = graph(f"g (float[3,4] x{declared}) => (float[3,4] y) {{ {node} }}", opset=18, **constants)
    if not fed:
        with pytest.raises(UnsupportedOperatorError, match=f"its constant index {FAR} is out of range"):
            import_model(model)
        return
    if "ScatterND" in node:
        with pytest.raises(AssertionError, match="its input 'i' must hold places in 'x'"):
            run(import_model(model), {"x": TABLE, "i": array})
        return
    found = run(import_model(model), {"x": TABLE, "i": array})[0]
    expected = TABLE.copy()
    expected[2] = 7
    np.testing.assert_array_equal(found, expected)
