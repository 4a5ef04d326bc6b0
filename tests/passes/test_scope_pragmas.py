"""Scattering compiles without a word from TVM's code generator about scopes it does not know."""

from __future__ import annotations

import numpy as np
import pytest

import tvm_ext
from tests.frontend.onnx.text import graph


@pytest.mark.parametrize("is_constant", [False, True], ids=["at run time", "folded"])
def test_nothing_is_said_of_scopes(capfd: pytest.CaptureFixture[str], is_constant: bool) -> None:
    data, places = np.arange(14, dtype="float32").reshape(2, 7), np.array([[6, 0, 3]])
    names = {"d": data} if is_constant else {}
    declared = "float[2,7] x" if is_constant else "float[2,7] d, float[2,7] x"
    model = graph(
        f"g ({declared}) => (float[2,7] y) {{ s = ScatterElements<axis = 1>(d, i, u) y = Add(s, x) }}",
        i=places, u=np.array([[60, 0, 30]], "float32"), **names,
    )  # fmt: skip
    compiled = tvm_ext.compile(model)
    expected = data.copy()
    np.put_along_axis(expected[:1], places, np.array([[60, 0, 30]], "float32"), 1)
    x = np.ones((2, 7), "float32")
    (found,) = compiled.run({"x": x} if is_constant else {"d": data, "x": x}).values()
    np.testing.assert_array_equal(found, expected + x)
    assert "pragma_scope" not in capfd.readouterr().err
