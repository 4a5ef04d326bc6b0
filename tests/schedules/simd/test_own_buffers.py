"""Strided loads from a kernel's own buffer, the last vector of which not all lanes take part in."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

import tvm_ext
from tvm_ext.verify import onnxruntime_outputs

MODEL = """<ir_version: 8, opset_import: ["" : 13]>
g (float[1,4,23,2] x) => (float[1,4,23,2] y) { y = LRN <alpha = 0.01, beta = 0.75, size = 5> (x) }"""


@pytest.mark.parametrize("level", ["x86-64-v2", "haswell", "skylake-avx512"])
def test_normalisation_of_narrow_images(level: str) -> None:
    model = onnx.parser.parse_model(MODEL)
    compiled = tvm_ext.compile(model, {"kind": "llvm", "mcpu": level})
    if level == "skylake-avx512" and "avx512f" not in Path("/proc/cpuinfo").read_text():
        pytest.skip("this CPU cannot run AVX-512 code")
    inputs = {"x": np.random.default_rng(0).standard_normal((1, 4, 23, 2)).astype("float32")}
    expected = onnxruntime_outputs(model, inputs)
    for result, reference in zip(compiled.run(inputs).values(), expected, strict=True):
        np.testing.assert_allclose(result, reference, rtol=1e-5, atol=1e-6)
