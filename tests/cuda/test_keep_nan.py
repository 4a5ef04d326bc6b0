"""NaN goes through maxima and minima of kernels for CUDA, as it does in NumPy."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script import relax as R
from tvm.script import tirx as T

import tvm_ext
from scripts.cuda.kernels import kernels_of, target_of
from tests.cuda.whole_model import EmulatedModel
from tests.frontend.onnx.text import graph as onnx_graph
from tests.schedules.kernels import graph
from tvm_ext.backends.cuda.bounds_apart import bounds_apart
from tvm_ext.backends.cuda.emulator.emulate import Emulator
from tvm_ext.backends.cuda.keep_nan import keep_nan

TARGET = target_of("sm_90")
OPERATORS: dict[str, tuple[int, Callable[..., relax.Expr], Callable[..., np.ndarray]]] = {
    "relu": (1, R.nn.relu, lambda x: np.maximum(x, 0)),
    "clip": (1, lambda x: R.clip(x, -1, 2), lambda x: np.clip(x, -1, 2)),
    "maximum": (2, R.maximum, np.maximum),
    "minimum": (2, R.minimum, np.minimum),
    "largest of rows": (1, lambda x: R.max(x, [-1]), lambda x: x.max(-1)),
    "smallest of columns": (1, lambda x: R.min(x, [0]), lambda x: x.min(0)),
    "largest": (1, R.max, np.max),
}


def kernel_of(name: str, shape: tuple[int, ...], dtype: str) -> tvm.tirx.PrimFunc:
    count, build, _ = OPERATORS[name]
    builder = relax.BlockBuilder()
    variables = [relax.Var(f"x{i}", R.Tensor(shape, dtype)) for i in range(count)]
    with builder.function("main", variables):
        with builder.dataflow():
            result = builder.emit_output(builder.normalize(build(*variables)))
        builder.emit_func_output(result)
    (kernel,) = kernels_of(name, builder.get(), TARGET)
    return kernel.scheduled.with_attr("global_symbol", "main")


def drawn(shape: tuple[int, ...], dtype: str, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(shape) * 3
    for special in (np.nan, np.inf, -np.inf, 0.0):
        values[rng.random(shape) < 0.1] = special
    return values.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)


@pytest.mark.parametrize("shape", [(1,), (3, 7), (33, 128)])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", OPERATORS)
def test_values(name: str, dtype: str, shape: tuple[int, ...]) -> None:
    count, _, expected = OPERATORS[name]
    inputs = [drawn(shape, dtype, seed) for seed in range(count)]
    for array in inputs if len(shape) == 2 else []:
        array[1], array[2] = -np.inf, 1.5  # all infinite, and nothing special
    wanted = np.asarray(expected(*(array.astype("float32") for array in inputs)))
    run = Emulator(kernel_of(name, shape, dtype), TARGET)([*inputs, np.zeros(wanted.shape, inputs[0].dtype)])
    assert not run.report.faults, str(run.report)
    np.testing.assert_array_equal(run.arrays[-1].astype("float32"), wanted)


@pytest.mark.parametrize("name", ["largest of rows", "smallest of columns"])
def test_values_of_open_extents(name: str) -> None:
    """The beginning of such a reduction is a block of its own."""
    _, build, expected = OPERATORS[name]
    n, m = (tvm.tirx.Var(extent, "int64") for extent in "nm")
    model = EmulatedModel(graph(lambda _, x: build(x), [((n, m), "float32")]), TARGET)
    for shape in ((3, 7), (33, 128)):
        x = drawn(shape, "float32", 0)
        x[1], x[:, 2] = -np.inf, np.inf
        np.testing.assert_array_equal(model(x)[0], expected(x))


def nested(value: Any) -> Any:
    """Bound a value eight times."""
    for step in range(4):
        value = tvm.tirx.max(tvm.tirx.min(value * tvm.tirx.const(2.0, "float32"), float(9 - step)), float(step - 9))
    return value


def test_bounds_within_bounds() -> None:
    """Each doubled the text of what is in it, which TVM simplifies many times: RoiAlign took half a minute."""

    def build(builder: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        for bound in range(12, 0, -1):
            x = builder.emit(R.clip(builder.emit(R.multiply(x, R.const(1.5))), -bound, bound + 1))
        return R.nn.pad(x, (0, 0, 1, 2))

    mod = graph(build, [((3, 7), "float32")])
    (kernel,) = kernels_of("bounds", mod, TARGET)
    assert len(kernel.scheduled.script()) < 20_000
    model = EmulatedModel(mod, TARGET)
    x = drawn((3, 7), "float32", 0)
    expected = x
    for bound in range(12, 0, -1):
        expected = np.clip(expected * np.float32(1.5), -bound, bound + 1)
    np.testing.assert_array_equal(model(x)[0], np.pad(expected, [(0, 0), (1, 2)]))
    assert not model.faults


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_nvcc_takes_it(dtype: str, tmp_path: Path) -> None:
    """Vectors too: four or eight elements an access."""
    if (nvcc := shutil.which("nvcc")) is None:
        pytest.skip("there is no nvcc")
    for name in OPERATORS:
        built = tvm.compile(tvm.IRModule({"main": kernel_of(name, (33, 128), dtype)}), TARGET).mod
        source = tmp_path / f"{name}.cu"
        source.write_text(str(built.imports[0].inspect_source()))
        done = subprocess.run(
            [nvcc, "-w", "-cubin", "-arch=sm_90", "-o", str(tmp_path / "out"), str(source)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{name}: {done.stderr[:500]}"


def test_bounds_within_bounds_have_names_beside_a_loop_of_vectors() -> None:
    """Of eight bounds within each other TVM would simplify a text of 256 times the length."""

    @T.prim_func(s_tir=True, check_well_formed=False)
    def func(A: T.Buffer((64,), "float32"), B: T.Buffer((64,), "float32"), C: T.Buffer((64,), "float32")):
        for i in T.serial(64):
            with T.sblock("bounds"):
                v = T.axis.spatial(64, i)
                B[v] = nested(A[v])
        for i in T.serial(16):
            for j in T.vectorized(4):
                with T.sblock("vector"):
                    v = T.axis.spatial(64, i * 4 + j)
                    C[v] = T.max(A[v], T.float32(0))

    rewritten = keep_nan()(tvm.IRModule({"main": func}))["main"]
    assert str(rewritten).count("A[") < 16
    assert "T.Let" in str(rewritten)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_bounds_within_bounds_of_vectors(dtype: str) -> None:
    """Twelve of them were a text of 4096 times the length, which was never simplified to an end."""

    def build(builder: relax.BlockBuilder, x: relax.Expr) -> relax.Expr:
        x = builder.emit(R.astype(x, "float32"))
        for bound in range(12, 0, -2):
            x = builder.emit(R.clip(builder.emit(R.multiply(x, R.const(1.5))), -bound, bound + 1))
        return R.astype(x, dtype)

    model = EmulatedModel(graph(build, [((16, 256), dtype)]), TARGET)
    x = drawn((16, 256), dtype, 0) if dtype != "int8" else np.arange(16 * 256).reshape(16, 256).astype("int8")
    expected = x.astype("float32")
    for bound in range(12, 0, -2):
        expected = np.clip(expected * np.float32(1.5), -bound, bound + 1)
    np.testing.assert_array_equal(model(x)[0], expected.astype(dtype))
    assert not model.faults
    assert list(model.rules.values()) == ["cuda.elementwise"]


def test_bounds_of_vectors_apart() -> None:
    @T.prim_func(s_tir=True, check_well_formed=False)
    def func(A: T.Buffer((64,), "float32"), C: T.Buffer((64,), "float32")):
        for i in T.serial(8):
            for j in T.vectorized(8):
                with T.sblock("vector"):
                    v = T.axis.spatial(64, i * 8 + j)
                    C[v] = nested(A[v])

    rewritten = str(keep_nan()(bounds_apart()(tvm.IRModule({"main": func})))["main"])
    assert rewritten.count("C[v] =") == 1
    assert rewritten.count("T.Select(") == 4 * 3
    assert "T.vectorized(4)" in rewritten


@pytest.mark.parametrize("kind", ["clipped", "quantised"])
def test_bounds_within_bounds_of_what_a_product_reads(kind: str) -> None:
    """Vectors on the way to shared memory, with zeros beside the edge: a text of thousands of times the length."""
    rng = np.random.default_rng(0)
    steps = {
        "clipped": "a{i} = Clip(x{i}, low, high) x{j} = Mul(a{i}, factor)",
        "quantised": "q{i} = QuantizeLinear(x{i}, step, zero) a{i} = DequantizeLinear(q{i}, step, zero) "
        "x{j} = Mul(a{i}, factor)",
    }[kind]
    body = " ".join(steps.format(i=i, j=i + 1) for i in range(6))
    model = onnx_graph(
        f"g (float[54,6] x0) => (float[54,5] y) {{ {body} y = MatMul(x6, w) }}",
        low=np.float32(-3), high=np.float32(2), factor=np.float32(1.25), step=np.float32(0.02), zero=np.uint8(120),
        w=rng.standard_normal((6, 5)).astype("float32"),
    )  # fmt: skip
    x = drawn((54, 6), "float32", 0) if kind == "clipped" else rng.standard_normal((54, 6)).astype("float32")
    emulated = EmulatedModel(model, TARGET, fuse="mapping-type", rewrite="fast")
    np.testing.assert_allclose(emulated(x)[0], tvm_ext.compile(model).run({"x0": x})["y"], rtol=1e-5, atol=1e-5)
    assert not emulated.faults
