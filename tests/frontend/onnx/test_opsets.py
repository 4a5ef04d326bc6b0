"""Constants are computed by the meaning that each operator has in the model's operator set version."""

from __future__ import annotations

import functools

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from tests.frontend.onnx.cases import Case, cases
from tvm_ext.frontend.onnx.evaluate import FOLDABLE
from tvm_ext.frontend.onnx.reference import run_node

IR_VERSION = 8

LOWEST = np.finfo("float32").min
"""What onnxruntime clips to where no minimum is given; the standard knows none."""


@functools.cache
def by_operator() -> dict[str, list[Case]]:
    found: dict[str, list[Case]] = {}
    for case in cases():
        if case.operator in FOLDABLE:
            found.setdefault(case.operator, []).append(case)
    return found


def one_node(case: Case) -> onnx.NodeProto:
    names = [f"i{index}" if array is not None else "" for index, array in enumerate(case.inputs)]
    outputs = [f"o{index}" for index in range(case.outputs)]
    return helper.make_node(case.operator, names, outputs, **case.attributes)


def onnxruntime_results(case: Case, opset: int) -> list[np.ndarray] | None:
    """Compute the node in onnxruntime; None where it has no kernel for these types."""
    node = one_node(case)
    feeds = {name: array for name, array in zip(node.input, case.inputs, strict=True) if name}
    graph = helper.make_graph(
        [node],
        "g",
        [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
            for name, array in feeds.items()
        ],
        [helper.make_empty_tensor_value_info(name) for name in node.output],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=IR_VERSION)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        return list(onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, feeds))
    except Exception as error:
        if "NOT_IMPLEMENTED" in str(error) or "Type Error" in str(error):
            return None
        raise


def versions(case: Case) -> list[int]:
    """One operator set version for each form that the operator has while the case is valid."""
    found: dict[int, int] = {}
    for opset in range(case.first, case.last + 1):
        found.setdefault(onnx.defs.get_schema(case.operator, opset, "").since_version, opset)
    return list(found.values())


@pytest.mark.parametrize("operator", sorted(by_operator()))
def test_constants_mean_what_they_mean_in_onnxruntime(operator: str) -> None:
    compared = 0
    for case in by_operator()[operator]:
        for opset in versions(case):
            expected = onnxruntime_results(case, opset)
            if expected is None:
                continue
            found = run_node(one_node(case), case.inputs, {"": opset}, IR_VERSION)
            for ours, theirs in zip(found, expected, strict=True):
                assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape), (case.name, opset)
                if operator == "Clip" and any(array is None for array in case.inputs):
                    theirs = np.where(theirs == LOWEST, np.asarray(-np.inf, theirs.dtype), theirs)
                if operator == "ReduceProd" and ours.dtype.kind == "i" and np.any(theirs == np.iinfo("int64").max):
                    continue
                np.testing.assert_allclose(ours, theirs, 1e-5, 1e-6, err_msg=f"{case.name} at {opset}")
            compared += 1
    assert compared


def test_every_folded_operator_has_a_case() -> None:
    assert set(FOLDABLE) - set(by_operator()) == set()
