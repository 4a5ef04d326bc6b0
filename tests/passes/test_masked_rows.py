"""Attention of queries that a mask hides all keys of: one kernel with zeros for them, as onnxruntime has it."""

from __future__ import annotations

import re

import numpy as np
import onnx
import pytest
from onnx import helper, parser

import tvm_ext

onnxruntime = pytest.importorskip("onnxruntime")

TARGETS = {
    "avx2": {"kind": "llvm", "mcpu": "haswell", "opt-level": 1},
    "avx512": {"kind": "llvm", "mcpu": "skylake-avx512", "opt-level": 1},
}
ATTENTION = """
s = MatMul(q, k)
a = Add(s, mask)
p = Softmax<axis = -1>(a)
n = IsNaN(p)
zero = Constant<value_float = 0.0>()
w = Where(n, zero, p)
y = MatMul(w, v)
"""


def model(rows: str, columns: str) -> onnx.ModelProto:
    inputs = f"float[2,3,{rows},5] q, float[2,3,5,{columns}] k, float[2,3,{columns},7] v, float[{rows},{columns}] mask"
    text = f'<ir_version: 8, opset_import: ["": 17]> g ({inputs}) => (float[2,3,{rows},7] y) {{ {ATTENTION} }}'
    return parser.parse_model(text)


def values(rows: int, columns: int, nan: bool) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(rows)
    shapes = {"q": (2, 3, rows, 5), "k": (2, 3, 5, columns), "v": (2, 3, columns, 7)}
    made = {name: generator.standard_normal(shape).astype("float32") for name, shape in shapes.items()}
    mask = np.where(generator.random((rows, columns)) < 0.6, -np.inf, 0.5).astype("float32")
    mask[[1, -1]] = -np.inf
    if nan:
        made["q"][0, 1, 2, 3] = np.nan
        mask[3, 0] = np.inf
    return made | {"mask": mask}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("is_open", [False, True])
def test_rows_without_keys_are_zero(is_open: bool, target: str) -> None:
    proto = model("r", "c") if is_open else model("17", "33")
    run = tvm_ext.compile(proto, TARGETS[target], dynamic="*" if is_open else None)
    kernels = re.findall(r"call +(\w+) +in:", run.executable.as_text())
    assert not any("softmax" in name or "matmul" in name or "isnan" in name for name in kernels)
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    for rows, columns in ((17, 33), *([(5, 7), (31, 8)] if is_open else [])):
        for nan in (False, True):
            given = values(rows, columns, nan)
            (found,), (wanted,) = run.run(given).values(), session.run(None, given)
            assert not wanted[:, :, 1].any()
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_weights_that_others_read_are_kept() -> None:
    proto = model("17", "33")
    proto.graph.output.append(helper.make_tensor_value_info("p", onnx.TensorProto.FLOAT, (2, 3, 17, 33)))
    given = values(17, 33, nan=False)
    wanted = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, given)
    for ours, theirs in zip(tvm_ext.compile(proto, TARGETS["avx2"]).run(given).values(), wanted, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
