"""The registry itself, and what every model of it must satisfy."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import onnx
import pytest

from tests.zoo import ZOO, Entry, get, need

FAMILIES = {"cnn", "transformer", "irregular", "recurrent", "audio"}
KINDS = {"tiny", "light", "trained", "torch"}


def _marked(entries: list[Entry]) -> list[object]:
    return [pytest.param(e.name, marks=pytest.mark.slow if e.slow else (), id=e.name) for e in entries]


def _run(entry: Entry, seed: int) -> dict[str, np.ndarray]:
    onnxruntime = pytest.importorskip("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(entry.onnx_path()), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, entry.inputs(seed)), strict=True))


def _graph_inputs(model: onnx.ModelProto) -> dict[str, onnx.TypeProto.Tensor]:
    weights = {tensor.name for tensor in model.graph.initializer}
    return {value.name: value.type.tensor_type for value in model.graph.input if value.name not in weights}


def test_import_is_cheap() -> None:
    code = (
        "import sys, tests.zoo; print([m for m in ('torch', 'tvm', 'onnxruntime', 'onnxscript') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_entries_are_well_formed() -> None:
    for name, entry in ZOO.items():
        assert entry.name == name
        assert entry.family in FAMILIES
        assert entry.kind in KINDS


def test_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(KeyError, match=r"no model 'resnet51'.*resnet50"):
        get("resnet51")


def test_need_skips_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = Entry("absent", "cnn", "tiny", build=onnx.ModelProto, draw=lambda rng: {}, needs=("no_such_package",))
    monkeypatch.setitem(ZOO, "absent", absent)
    with pytest.raises(pytest.skip.Exception, match="'no_such_package' is not installed"):
        need("absent")


@pytest.mark.parametrize("name", ZOO)
def test_inputs_depend_on_the_seed_alone(name: str) -> None:
    first, again, other = ZOO[name].inputs(3), ZOO[name].inputs(3), ZOO[name].inputs(4)
    assert [key for key in first] == [key for key in again]
    for key, value in first.items():
        np.testing.assert_array_equal(value, again[key])
    assert any(not np.array_equal(value, other[key]) for key, value in first.items())


@pytest.mark.parametrize("name", _marked(list(ZOO.values())))
def test_inputs_are_what_the_model_takes(name: str) -> None:
    entry = need(name)
    declared = _graph_inputs(entry.onnx_model())
    drawn = entry.inputs()
    assert set(drawn) <= set(declared)
    for key, value in drawn.items():
        assert onnx.helper.np_dtype_to_tensor_dtype(value.dtype) == declared[key].elem_type
        dims = declared[key].shape.dim
        assert len(dims) == value.ndim
        assert all(dim.dim_value in (0, -1, size) for dim, size in zip(dims, value.shape, strict=True))


@pytest.mark.parametrize("name", _marked(list(ZOO.values())))
def test_outputs_are_finite_and_depend_on_the_input(name: str) -> None:
    """A net whose signal dies or saturates gives one answer to all inputs, and so hides a compiler's errors."""
    entry = need(name)
    one, other = _run(entry, 0), _run(entry, 1)
    for key, value in one.items():
        assert np.isfinite(value).all(), key
    spreads = {key: value.std() for key, value in one.items()}
    assert max(spreads.values()) > 0
    changes = [np.abs(value - other[key]).max() / spreads[key] for key, value in one.items() if spreads[key] > 0]
    assert max(changes) > 0.01


@pytest.mark.parametrize("name", _marked([entry for entry in ZOO.values() if entry.kind == "light"]))
def test_made_up_classifiers_do_not_saturate(name: str) -> None:
    (scores,) = _run(need(name), 0).values()
    if abs(scores.sum() - 1) < 1e-3:  # softmax
        assert 3 / scores.size < scores.max() < 0.5
    else:
        assert 0.3 < scores.std() < 3.0
