"""Parts of a split that are read element by element are slices of it, fused to what reads them."""

from __future__ import annotations

import re

import numpy as np
import onnx
import pytest
from onnx import parser
from tvm import relax

import tvm_ext
from tvm_ext.passes.split_parts import split_parts

onnxruntime = pytest.importorskip("onnxruntime")

TARGET = {"kind": "llvm", "mcpu": "haswell", "opt-level": 1}

# Name of a case: its nodes, and how many kernels only copy parts.
CASES = {
    "each part by its own": ("a, b = Split<axis = 1>(x) c = Exp(a) y = MatMul(c, w) d = Tanh(b) z = MatMul(d, w)", 0),
    "halves of a shuffle": (
        "a, b = Split<axis = 0>(x) c = MatMul(a, v) d = Relu(c) e = Concat<axis = 1>(b, d) y = Neg(e) z = Exp(e)", 1
    ),
    "products of parts": ("a, b = Split<axis = 1>(x) y = MatMul(a, w) z = MatMul(b, w)", 1),
    "one kernel": ("a, b = Split<axis = 1>(x) s = Sigmoid(a) y = Mul(s, b) z = Neg(y)", 0),
    "a part that nobody reads": ("a, b = Split<axis = 1>(x) c = Exp(a) y = MatMul(c, w) z = Neg(y)", 0),
    "parts that are returned": ("y, z = Split<axis = 1>(x)", 1),
    "uneven parts": (
        "l = Constant<value_ints = [1, 2, 5]>() a, b, c = Split<axis = 1>(x, l) d = Mul(a, b) y = Exp(d) z = Neg(c)", 0
    ),
    "normalised parts": ("a, b = Split<axis = 1>(x) y = Softmax<axis = 1>(a) c = Exp(b) z = MatMul(c, w)", 1),
    "an axis from behind": ("a, b = Split<axis = -1>(x) c = Exp(a) y = MatMul(c, w) d = Exp(b) z = MatMul(d, w)", 0),
}  # fmt: skip


def weights(name: str, *shape: int) -> onnx.TensorProto:
    values = np.random.default_rng(1).standard_normal(shape).astype("float32")
    return onnx.numpy_helper.from_array(values, name)


@pytest.mark.parametrize("rows", ["6", "n"])
@pytest.mark.parametrize("case", CASES)
def test_split(case: str, rows: str) -> None:
    nodes, copies = CASES[case]
    if rows == "n" and "axis = 0" in nodes:
        rows = "6"
    text = (
        f'<ir_version: 8, opset_import: ["": 17]> g (float[{rows},8] x) => (float[u,s] y, float[p,q] z) {{ {nodes} }}'
    )
    proto = parser.parse_model(text)
    proto.graph.initializer.extend([weights("w", 4, 3), weights("v", 8, 5)])
    run = tvm_ext.compile(proto, TARGET, dynamic="*" if rows == "n" else None)
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    for count in (6,) if rows == "6" else (6, 1, 17):
        x = np.random.default_rng(count).standard_normal((count, 8)).astype("float32")
        for found, wanted in zip(run.run([x]).values(), session.run(None, {"x": x}), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    kernels = re.findall(r"call +(\w+) +in:", run.executable.as_text())
    if rows == "6":
        assert sum(re.fullmatch(r"(split|strided_slice)\d*", name) is not None for name in kernels) == copies, kernels


def test_parts_are_taken_where_the_whole_is_not_seen() -> None:
    """A split that is read in another dataflow block stays: the tensor is an inner one of its own block."""
    builder, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType([4, 8], "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            whole = builder.emit_output(relax.op.split(builder.emit(relax.op.tanh(x)), 2, 1))
        between = builder.emit(relax.op.exp(builder.emit(whole[0])))
        builder.emit_func_output(between)
    assert relax.analysis.check_well_formed(split_parts()(builder.get()))
