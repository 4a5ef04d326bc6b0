"""A slice of ONNX's own node tests through the whole compiler; ``scripts/check_trust.py node_tests`` runs them all."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from scripts.trust import node_tests
from scripts.trust.node_tests import run_case
from tests.frontend.onnx.text import graph, run
from tvm_ext.bench.sections import update_result
from tvm_ext.errors import ModelError
from tvm_ext.frontend import import_model

# Each of these was wrong or refused once; the form in which parameters are constants unless fed.
PASSES = {
    "test_adam_multiple": "fed",
    "test_adagrad": "fed",
    "test_nesterov_momentum": "fed",
    "test_attention_4d_causal_bf16": "fed",
    "test_batchnorm_epsilon_training_mode": "fed",
    "test_batchnorm_example_training_mode": "constant",
    "test_cast_FLOAT8E4M3FNUZ_to_FLOAT16": "fed",
    "test_clip_min_greater_than_max": "constant",
    "test_col2im_5d": "constant",
    "test_cumprod_1d_reverse_exclusive": "constant",
    "test_deform_conv_with_mask_bias": "fed",
    "test_det_nd": "fed",
    "test_dynamicquantizelinear": "fed",
    "test_einsum_transpose_bfloat16": "fed",
    "test_expand_dim_changed": "fed",
    "test_mod_float_edge_cases_fmod_0_float32": "fed",
    "test_nonmaxsuppression_center_point_box_format": "constant",
    "test_nonmaxsuppression_iou_threshold_boundary": "constant",
    "test_reduce_max_bool_inputs": "constant",
    "test_reduce_sum_empty_set": "constant",
    "test_slice_start_out_of_bounds": "constant",
    "test_tensorscatter_circular": "fed",
    "test_unique_bfloat16_sorted_without_axis": "fed",
}


MODULES = """
    adagrad adam attention batch_normalization cast clip col2im cumprod deformconv det dynamicquantizelinear einsum
    expand mod momentum
    nonmaxsuppression reducemax reducesum slice tensorscatter unique
""".split()
"""Modules of onnx that make these tests; to make all of its tests takes ten seconds."""


@pytest.fixture(scope="module", autouse=True)
def cases() -> Iterator[None]:
    """Make the tests of :data:`MODULES` only."""
    package = importlib.import_module("onnx.backend.test.case.node")
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for module in MODULES:
            importlib.import_module(f"{package.__name__}.{module}")
    known = {case.name: case for case in package._NodeTestCases}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node_tests, "cases", lambda: known)
        yield


@pytest.mark.parametrize("name", sorted(PASSES))
def test_passes(name: str) -> None:
    assert run_case((name, PASSES[name])) == ("passed", "")


def test_computed_limits_of_suppression_are_refused() -> None:
    state, reason = run_case(("test_nonmaxsuppression_suppress_by_IOU", "fed"))
    assert state == "refused"
    assert "input max_output_boxes_per_class is computed in the graph" in reason


def test_tensors_that_no_machine_holds() -> None:
    model = graph("g (float[100000,100000,9] x) => (float[100000,100000,9] y) { y = Relu (x) }")
    with pytest.raises(ModelError, match=r"tensor 'x' of shape .* would take 360 GB"):
        import_model(model)


@pytest.mark.parametrize("operator", ["Div", "Mod"])
def test_integers_divided_by_zero(operator: str) -> None:
    model = graph(f"g (int32[2] x) => (int32[2] y) {{ y = {operator} (x, z) }}", z=np.asarray([3, 0], "int32"))
    with pytest.raises(ModelError, match="it divides integers by zero"):
        import_model(model)
    model = graph(f"g (int32[2] x, int32[2] z) => (int32[2] y) {{ y = {operator} (x, z) }}")
    found = run(import_model(model), {"x": np.asarray([-7, 5], "int32"), "z": np.asarray([2, 0], "int32")})[0]
    assert found[0] == {"Div": -3, "Mod": 1}[operator]


def test_a_tensor_is_no_sequence() -> None:
    model = graph("g (float[2] x) => (float[2] y) { y = ConcatFromSequence <axis=0> (x) }")
    with pytest.raises(ModelError, match=r"(?i)sequence"):
        import_model(model)


def test_rows_of_tests_that_were_not_run_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("test_adagrad", "test_det_nd")
    chosen = {name: case for name, case in node_tests.cases().items() if name in names}
    monkeypatch.setattr(node_tests, "cases", lambda: chosen)
    path = tmp_path / "trust.json"
    with pytest.raises(SystemExit, match="lacks 2 tests, test_adagrad among them"):
        node_tests._with_earlier([], path)
    earlier = [{"test": name, "operator": "?", "held": True, "state": "refused"} for name in names]
    update_result(path, name="trust", part="node_tests", rows=earlier, summary={})
    (first, second) = node_tests._with_earlier([{**earlier[1], "state": "passed", "detail": "new"}], path)
    assert (first["test"], first["state"], first["detail"], first["unheld"]) == ("test_adagrad", "refused", "", [])
    assert (second["test"], second["state"], second["detail"]) == ("test_det_nd", "passed", "new")
