"""Attributes that tests of operators leave at their defaults, in combinations, against onnxruntime.

Where onnxruntime and the evaluator of ONNX differ (lengths of ``align_corners`` with a scale that leaves a fraction),
there is no case.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime")

import tvm_ext
from tests.frontend.onnx.ops.attribute_cases import arithmetic, layers, places, windows
from tests.frontend.onnx.ops.attribute_cases.case import Case, Draw
from tests.frontend.onnx.ops.harness import assert_close, inputs_of, node_model, run_onnxruntime

QUICK = ("ReduceL1", "ReduceSumSquare", "ReduceLogSum", "Trilu", "Slice")


def _marked() -> list[Any]:
    draw = Draw()
    for family in (arithmetic, layers, places, windows):
        family.collect(draw)
    return [
        pytest.param(case, id=f"{case.op}-{number}", marks=[] if case.op in QUICK else [pytest.mark.slow])
        for number, case in enumerate(draw.cases)
    ]


@pytest.mark.filterwarnings("ignore::tvm_ext.errors.PerformanceWarning")
@pytest.mark.parametrize("case", _marked())
def test_attributes(case: Case) -> None:
    types = [np.dtype(kind) for kind in case.types]
    model = node_model(
        case.op, case.values, case.outs, case.attributes, case.constants, opset=case.opset, output_types=types
    )
    feeds = inputs_of(model, case.values)
    found = list(tvm_ext.compile(model).run(feeds).values())
    assert_close(found, run_onnxruntime(model, feeds), rtol=1e-3, atol=1e-4)
