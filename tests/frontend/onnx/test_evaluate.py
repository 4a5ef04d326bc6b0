"""Values computed while a graph is folded, against the test cases of ONNX and against onnxruntime."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from tvm_ext.frontend.onnx.evaluate import FOLDABLE
from tvm_ext.frontend.onnx.model import OLDEST_OPSET, default_opset, load_onnx
from tvm_ext.frontend.onnx.prepare import prepare


def run_onnxruntime(model: onnx.ModelProto) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, {})


@functools.cache
def node_cases() -> dict[str, list[Any]]:
    """Test cases of ONNX for the operators that are folded, by operator."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        cases = collect_testcases(None)
    by_operator: dict[str, list[Any]] = {}
    for case in cases:
        nodes = case.model.graph.node
        if len(nodes) == 1 and nodes[0].op_type in FOLDABLE and case.data_sets:
            by_operator.setdefault(nodes[0].op_type, []).append(case)
    return by_operator


def as_array(value: Any) -> np.ndarray:
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)


@pytest.mark.slow
@pytest.mark.parametrize("operator", sorted(FOLDABLE))
def test_folded_values_are_those_of_the_standard(operator: str) -> None:
    """Every foldable operator, on the test cases of ONNX with their inputs made constants."""
    folded = []
    for case in node_cases()[operator]:
        inputs, expected = ([as_array(value) for value in values] for values in case.data_sets[0])
        if not all(array.dtype.kind in "fiub" for array in inputs):
            continue
        model = onnx.ModelProto()
        model.CopyFrom(case.model)
        if default_opset(model) < OLDEST_OPSET:  # written for an operator that has not changed since
            model.opset_import[0].version = OLDEST_OPSET
        for value, array in zip(model.graph.input, inputs, strict=True):
            model.graph.initializer.append(numpy_helper.from_array(array, value.name))
        del model.graph.input[:]
        result = prepare(load_onnx(model))
        if result.skeleton.graph.node:
            continue
        folded.append(case.name)
        for output, theirs in zip(result.skeleton.graph.output, expected, strict=True):
            ours = result.constants[output.name].array
            assert ours is not None
            assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype), case.name
            if theirs.dtype.kind in "fiub":
                np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-6, err_msg=case.name)
    assert folded


integers = st.integers(-9, 9)


@settings(max_examples=60, deadline=None)
@given(
    operator=st.sampled_from(["Div", "Mod", "Add", "Sub", "Mul", "Max", "Min", "Less", "GreaterOrEqual", "Equal"]),
    left=st.lists(integers, min_size=1, max_size=4),
    right=st.lists(integers.filter(bool), min_size=1, max_size=1),
)
def test_integer_arithmetic_is_that_of_onnxruntime(operator: str, left: list[int], right: list[int]) -> None:
    node = helper.make_node(operator, ["a", "b"], ["y"])
    element = onnx.TensorProto.BOOL if operator in ("Less", "GreaterOrEqual", "Equal") else onnx.TensorProto.INT64
    output = helper.make_tensor_value_info("y", element, [len(left)])
    constants = [
        numpy_helper.from_array(np.asarray(values, "int64"), name)
        for name, values in zip("ab", (left, right), strict=True)
    ]
    model = helper.make_model(
        helper.make_graph([node], "g", [], [output], constants),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    result = prepare(load_onnx(model))
    assert not result.skeleton.graph.node
    np.testing.assert_array_equal(result.constants["y"].array, run_onnxruntime(model)[0])
