from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as stn

from tests.frontend.onnx.text import graph
from tests.processes import output_of
from tests.zoo import get
from tvm_ext.errors import CheckError, InputError, MissingPackageError, ModelError
from tvm_ext.verify import OutputDifference, compare_outputs, onnxruntime_outputs, output_error, require_agreement

FLOATS = stn.arrays("float32", stn.array_shapes(min_dims=0, max_dims=3), elements=st.floats(width=32))


@given(FLOATS)
def test_equal_arrays_do_not_differ(array: np.ndarray) -> None:
    assert output_error("y", array, array.copy()) == OutputDifference("y", 0.0, 0.0)


@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=20), st.floats(-10, 10), st.integers(0, 19))
def test_error_is_the_largest_difference_over_the_deviation(values: list[float], shift: float, where: int) -> None:
    reference = np.array(values)
    result = reference.copy()
    result[where % len(values)] += shift
    error = output_error("y", result, reference)
    absolute = abs(result - reference).max()
    assert error.absolute == pytest.approx(absolute)
    if reference.std() > 0:
        assert error.relative == pytest.approx(absolute / reference.std())


def test_scale_where_the_reference_is_constant() -> None:
    assert output_error("y", np.array([4.0, 6.0]), np.array([4.0, 4.0])).relative == 0.5
    assert output_error("y", np.array([0.0, 3.0]), np.array([0.0, 0.0])).relative == 3.0


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_have_to_be_in_the_same_places(special: float) -> None:
    reference = np.array([1.0, 2.0, special])
    assert output_error("y", reference.copy(), reference).absolute == 0
    for wrong in ([1.0, 2.0, 3.0], [special, 2.0, special], [1.0, special, 3.0]):
        assert output_error("y", np.array(wrong), reference).absolute == np.inf
        assert output_error("y", reference, np.array(wrong)).relative == np.inf


def test_only_specials_and_nothing_at_all() -> None:
    assert output_error("y", np.array([np.nan]), np.array([np.nan])).relative == 0
    assert output_error("y", np.zeros((0, 3)), np.zeros((0, 3))).relative == 0


def test_shapes_and_integer_types() -> None:
    assert output_error("y", np.zeros((1, 2)), np.zeros((2, 1))).absolute == np.inf
    assert output_error("y", np.array([1, 2]), np.array([1, 4])).absolute == 2
    assert output_error("y", np.array([True]), np.array([False])).absolute == 1
    assert output_error("y", np.array([0], "uint8"), np.array([255], "uint8")).absolute == 255


def test_outputs_are_matched_by_position() -> None:
    errors = compare_outputs({"a": np.zeros(2), "b": np.ones(2)}, [np.zeros(2), np.zeros(2)])
    assert [(error.name, error.absolute) for error in errors] == [("a", 0.0), ("b", 1.0)]
    with pytest.raises(CheckError, match="1 outputs where the reference has 2; is it the same model"):
        compare_outputs({"a": np.zeros(2)}, [np.zeros(2), np.zeros(2)])


def test_agreement_names_the_worst_output() -> None:
    errors = [OutputDifference("a", 0.1, 1e-5), OutputDifference("b", 0.2, 3e-3), OutputDifference("c", 9.0, 1e-6)]
    require_agreement(errors, 3e-3)
    require_agreement([], 0)
    with pytest.raises(CheckError, match=r"output 'b' differs .* by 0.003 .* difference 0.2\); the tolerance is 0.001"):
        require_agreement(errors, 1e-3)
    for worst in (float("inf"), float("nan")):
        with pytest.raises(CheckError, match="output 'n'"):
            require_agreement([OutputDifference("n", worst, worst), errors[0]], 1e6)


class TestOnnxruntime:
    @pytest.fixture(autouse=True)
    def _installed(self) -> None:
        pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")

    def test_paths_bytes_and_protos_give_the_same(self) -> None:
        entry = get("tiny_mlp")
        inputs = entry.inputs()
        path = entry.onnx_path()
        first, *others = (onnxruntime_outputs(model, inputs) for model in (path, path.read_bytes(), entry.onnx_model()))
        assert first[0].shape == (4, 8)
        for other in others:
            np.testing.assert_array_equal(other[0], first[0])

    def test_a_file_that_is_no_model(self, tmp_path: Path) -> None:
        (tmp_path / "x.onnx").write_text("hello")
        with pytest.raises(ModelError, match=r"onnxruntime cannot load .*x\.onnx: "):
            onnxruntime_outputs(tmp_path / "x.onnx", {})
        with pytest.raises(ModelError, match=r"gone\.onnx: no such file to compare with"):
            onnxruntime_outputs(tmp_path / "gone.onnx", {})

    def test_inputs_that_do_not_fit(self) -> None:
        entry = get("tiny_mlp")
        with pytest.raises(InputError, match="onnxruntime cannot run the model on these inputs: "):
            onnxruntime_outputs(entry.onnx_model(), {"x": np.zeros((1, 1), "float32")})


def test_without_onnxruntime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingPackageError, match=r"comparing needs onnxruntime: pip install 'tvm-ext\[bench\]'"):
        onnxruntime_outputs("x.onnx", {})


def test_onnxruntime_writes_nothing_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ORT_DISABLE_TELEMETRY", raising=False)
    source = """
        import os
        import onnx.helper as helper
        from tvm_ext.verify import onnxruntime_outputs
        value = lambda name: helper.make_tensor_value_info(name, 1, [1])
        graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [value("x")], [value("y")])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        import numpy
        print(onnxruntime_outputs(model, {"x": numpy.ones(1, "float32")}), "ORT_DISABLE_TELEMETRY" in os.environ)
    """
    environment = {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    assert output_of(source, **environment) == "[array([1.], dtype=float32)] False"
    assert list(tmp_path.iterdir()) == []


def test_integer_products_do_not_saturate() -> None:
    """On x86 without VNNI onnxruntime adds two products in 16 bits, unless it is told not to."""
    weight = np.full((34, 17), 127, "int8")
    model = graph(
        "g (uint8[3,34] x) => (int32[3,17] y) { y = MatMulInteger (x, weight) }", weight=weight
    )  # fmt: skip
    (found,) = onnxruntime_outputs(model, {"x": np.full((3, 34), 255, "uint8")})
    np.testing.assert_array_equal(found, np.full((3, 17), 34 * 255 * 127))
