"""Kernels as C: nothing that C leaves undefined, nothing that compilers warn of, vectors as wide as the processor's."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
import tvm
from onnx import TensorProto, helper, numpy_helper
from tvm import relax, tirx
from tvm.script import tirx as T

import tvm_ext
from tests.c_sources.test_models import LEVELS, assert_close
from tests.schedules.kernels import TARGETS, graph
from tvm_ext.backends.c.compiled import CModel, build
from tvm_ext.backends.c.sources import identifier
from tvm_ext.backends.c.statements import without_unused
from tvm_ext.backends.c.vectors import divide_vectors
from tvm_ext.schedules.cpu.machine import machine_of

STRICT = ["CFLAGS=-std=c11 -O1 -Wall -Wextra -Werror -fsanitize=address,undefined -fno-sanitize-recover=undefined"]


def run_strictly(folder: Path, written: object, given: list[np.ndarray]) -> dict[str, np.ndarray]:
    assert isinstance(written, CModel)
    written.write_to(folder)
    build(folder, "gcc", STRICT)
    return written.run_program(folder, given)


@pytest.mark.parametrize("shape", [(7, 33), (3,)])
def test_integers_wrap_around(tmp_path: Path, shape: tuple[int, ...]) -> None:
    builder = relax.BlockBuilder()
    dtypes = ("int8", "uint16", "int32", "int64")
    given = [relax.Var(f"x{number}", relax.TensorType(shape, dtype)) for number, dtype in enumerate(dtypes)]
    with builder.function("main", given):
        results = [builder.emit(result) for x in given for result in (x + x, x * x, x * x - x, x + x + x)]
        builder.emit_func_output(relax.Tuple(results))
    mod = relax.transform.Normalize()(builder.get())
    limits = [np.iinfo(dtype) for dtype in dtypes]
    values = [np.resize(np.array([limit.max, limit.min, 1, limit.max - 7], limit.dtype), shape) for limit in limits]
    found = run_strictly(tmp_path, tvm_ext.compile(mod, emit="c"), values)
    expected = [result for x in values for result in (x + x, x * x, x * x - x, x + x + x)]
    for array, wanted in zip(found.values(), expected, strict=True):
        np.testing.assert_array_equal(array, wanted)


def test_functions_are_defined_for_every_number_and_type(tmp_path: Path) -> None:
    builder = relax.BlockBuilder()
    given = [relax.Var(dtype, relax.TensorType((3, 37), dtype)) for dtype in ("float32", "float64")]
    functions = (
        relax.op.log, relax.op.sigmoid, relax.op.nn.log_softmax, relax.op.exp, relax.op.erf, relax.op.tanh,
        relax.op.sin, relax.op.cos, relax.op.tan, relax.op.atan, relax.op.sinh, relax.op.asinh,
        lambda x: relax.op.power(relax.op.abs(x), relax.op.divide(x, relax.const(30, x.ty.dtype))),
        lambda x: relax.op.mod(x, relax.const(0.7, x.ty.dtype)),
    )  # fmt: skip
    with builder.function("main", given):
        builder.emit_func_output(relax.Tuple([builder.emit(function(x)) for x in given for function in functions]))
    mod = relax.transform.Normalize()(builder.get())
    values = np.random.default_rng(0).standard_normal((3, 37)) * 50
    values[1, :6] = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e30]
    arrays = [values.astype("float32"), values]
    with np.errstate(all="ignore"):
        expected = tvm_ext.compile(mod).run(arrays)
    assert_close(run_strictly(tmp_path, tvm_ext.compile(mod, emit="c"), arrays), expected)


@pytest.mark.parametrize("instructions", [False, True])
def test_functions_with_and_without_the_instructions_of_avx512(tmp_path: Path, instructions: bool) -> None:
    if instructions and machine_of(TARGETS["native"]).isa != "avx512":
        pytest.skip("this machine has no AVX-512")
    functions = (relax.op.exp, relax.op.sigmoid, relax.op.erf)
    module = graph(
        lambda builder, x: relax.Tuple([builder.emit(function(x)) for function in functions]), [((3, 37), "float32")]
    )
    x = np.random.default_rng(0).standard_normal((3, 37)).astype("float32") * 9
    x[1, :4] = [np.nan, np.inf, -np.inf, -100]
    written = tvm_ext.compile(module, {"kind": "llvm", "mcpu": "skylake-avx512", "num-cores": 1}, emit="c")
    assert isinstance(written, CModel)
    written.write_to(tmp_path)
    build(tmp_path, "gcc", ["CFLAGS=-std=c11 -O1 -Wno-psabi", "ARCH=" + "-march=skylake-avx512" * instructions])
    found = written.run_program(tmp_path, [x]).values()
    with np.errstate(over="ignore"):
        wide = x.astype("float64")
        expected = (np.exp(wide), 1 / (1 + np.exp(-wide)), np.vectorize(math.erf)(wide))
    for result, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(result, wanted, rtol=1e-6, atol=2e-38)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("largest", [127, 60])  # pairs of products of 60 fit into 16 bits
def test_quantized_convolutions(tmp_path: Path, level: str, largest: int) -> None:
    generator = np.random.default_rng(0)
    constants = {
        "xs": np.float32(0.05), "xz": np.uint8(120), "ws": np.float32(0.02), "wz": np.int8(0), "ys": np.float32(0.1),
        "yz": np.uint8(100), "w": generator.integers(-largest, largest, (17, 7, 3, 3)).astype("int8"),
    }  # fmt: skip
    nodes = [
        helper.make_node(name, inputs.split(), [output])
        for name, inputs, output in (
            ("QuantizeLinear", "x xs xz", "xq"), ("DequantizeLinear", "xq xs xz", "xd"),
            ("DequantizeLinear", "w ws wz", "wd"), ("Conv", "xd wd", "c"), ("QuantizeLinear", "c ys yz", "cq"),
            ("DequantizeLinear", "cq ys yz", "y"),
        )
    ]  # fmt: skip
    graph = helper.make_graph(
        nodes, "quantized",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 7, 9, 11))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 17, 7, 9))],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    given = [generator.standard_normal((1, 7, 9, 11)).astype("float32")]
    written = tvm_ext.compile(model, target=LEVELS[level], emit="c")
    expected = tvm_ext.compile(model, target=LEVELS[level]).run(given)
    assert_close(run_strictly(tmp_path, written, given), expected)
    build(tmp_path, "gcc", ["-B", "CFLAGS=-std=c11 -O1 -Wno-psabi", "ARCH="])  # the instructions in plain C
    assert_close(written.run_program(tmp_path, given), expected)


def test_vectors_are_as_wide_as_the_processors(tmp_path: Path) -> None:
    """The loop of a recurrent layer is written for vectors of 16 numbers."""
    layer = torch.nn.LSTM(7, 20).eval()
    x = torch.randn(3, 1, 7)
    written = tvm_ext.compile(layer, target=LEVELS["x86-64-v3"], example_inputs=[x], emit="c")
    assert isinstance(written, CModel)
    texts = [kernel.text for kernel in written.executable.kernels]
    assert any("f32x8" in text for text in texts)
    assert not any("f32x16" in text for text in texts)
    (states, *_) = run_strictly(tmp_path, written, [x.numpy()]).values()
    np.testing.assert_allclose(states, layer(x)[0].detach().numpy(), rtol=1e-5, atol=1e-5)


def test_a_vector_loop_is_divided() -> None:
    @T.prim_func(s_tir=True)
    def before(x: T.Buffer((48,), "float32"), y: T.Buffer((48,), "int8")) -> None:
        for i in T.vectorized(48):
            x[i] = x[i] * T.float32(2)
        for i in T.vectorized(12):
            x[i] = T.float32(0)
        for i in T.vectorized(32):
            y[i] = T.int8(0)

    @T.prim_func(s_tir=True)
    def expected(x: T.Buffer((48,), "float32"), y: T.Buffer((48,), "int8")) -> None:
        for part in T.unroll(6):
            for i in T.vectorized(8):
                x[part * 8 + i] = x[part * 8 + i] * T.float32(2)
        for part in T.unroll(3):
            for i in T.vectorized(4):
                x[part * 4 + i] = T.float32(0)
        for i in T.vectorized(32):
            y[i] = T.int8(0)

    assert isinstance(before, tirx.PrimFunc)
    tvm.ir.assert_structural_equal(divide_vectors(before.body, 256), expected.body, map_free_vars=True)


def test_what_nothing_uses_is_not_declared() -> None:
    lines = [
        "  const int a = (n + 1);\n",
        "  const int b = a;\n",
        "  f32x8 c;\n",
        "  float *d = (float *)x;\n",
        "  d[0] = 1;\n",
    ]
    assert without_unused(lines, ["x", "y", "n"]) == ["  (void)y;\n", "  (void)n;\n", *lines[3:]]


@pytest.mark.parametrize(
    ("name", "expected"),
    [("main", "mmain"), ("Makefile", "mMakefile"), ("clean", "mclean"), ("2 x.y", "m2_x_y"), ("net", "net")],
)
def test_a_model_has_no_name_of_another_file(name: str, expected: str) -> None:
    assert identifier(name) == expected
