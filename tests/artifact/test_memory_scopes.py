"""A model that has run is saved as one that has not."""

from pathlib import Path

import numpy as np
import onnx.parser
import pytest
import tvm

import tvm_ext
from tvm_ext.artifact.memory_scopes import without_empty_scopes


@pytest.fixture(scope="module")
def compiled() -> tvm_ext.CompiledModel:
    return tvm_ext.compile(
        onnx.parser.parse_model(
            '<ir_version: 8, opset_import: ["" : 17]> g (float[2,3] x) => (y)'
            "<float[3,4] w = {1,2,3,4,5,6,7,8,9,10,11,12}, float[4] b = {1,2,3,4}> { t = MatMul(x, w) y = Add(t, b) }"
        )
    )


def packed(model: tvm_ext.CompiledModel) -> bytes:
    """Return what a library of the model holds beside its code."""
    return bytes(tvm.get_global_func("runtime.ModulePackImportsToTensor")(model.executable.mod).numpy())


def test_bytes_are_those_of_a_model_that_never_ran(compiled: tvm_ext.CompiledModel) -> None:
    before = packed(compiled)
    assert without_empty_scopes(memoryview(before)) == [before]
    compiled.run({"x": np.ones((2, 3), "float32")})
    after = packed(compiled)
    assert after != before
    assert b"".join(without_empty_scopes(memoryview(after))) == before


def test_bytes_of_another_layout_stay(compiled: tvm_ext.CompiledModel) -> None:
    compiled.run({"x": np.ones((2, 3), "float32")})
    after = packed(compiled)
    for end in range(0, 512, 7):
        assert b"".join(without_empty_scopes(memoryview(after[:end]))) == after[:end]
    generator = np.random.default_rng(0)
    for place in generator.integers(0, 400, 100):
        other = bytearray(after)
        other[place] ^= 0xFF
        b"".join(without_empty_scopes(memoryview(other)))


def test_nothing_warns(compiled: tvm_ext.CompiledModel, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    x = np.arange(6, dtype="float32").reshape(2, 3)
    expected = compiled.run({"x": x})["y"]
    for name in ("once", "twice"):
        folder = compiled.save(tmp_path / name)
        loaded = tvm_ext.load(folder)
        np.testing.assert_array_equal(loaded.run({"x": x})["y"], expected)
        compiled = loaded
    assert "Scope" not in capfd.readouterr().err
