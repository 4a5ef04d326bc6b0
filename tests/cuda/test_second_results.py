"""Kernels that store their result in a second type, in place of a kernel that only converts it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import tirx
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

import tvm_ext
from scripts.cuda.emulate import compare
from scripts.cuda.kernels import kernels_of, target_of
from tests.cuda.whole_model import EmulatedModel
from tests.frontend.onnx.text import graph
from tvm_ext.backends.cuda.second_results import FIRST_RESULT, is_conversion, second_results, with_second_result
from tvm_ext.frontend import import_model

TARGET = target_of("sm_90")
RNG = np.random.default_rng(0)


def weight(*shape: int) -> np.ndarray:
    return (RNG.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype("float32")


MODELS: dict[str, tuple[tuple[int, ...], str, dict[str, np.ndarray]]] = {
    "residual": (
        (1, 16, 7, 5),
        "a = Conv<pads = [1, 1, 1, 1]>(x, v) b = Relu(a) c = Conv<pads = [1, 1, 1, 1]>(b, w) d = Add(c, a) e = Relu(d) "
        "f = Conv<pads = [1, 1, 1, 1]>(e, w) y = Add(f, e)",
        {"v": weight(33, 16, 3, 3), "w": weight(33, 33, 3, 3)},
    ),
    "normalised": (
        (2, 17, 32),
        "a = MatMul(x, v) b = Add(a, x) c = LayerNormalization(b, s, t) d = MatMul(c, v) e = Erf(d) f = MatMul(e, v) "
        "g = Add(f, c) y = LayerNormalization(g, s, t)",
        {"v": weight(32, 32), "s": np.ones(32, "float32"), "t": np.zeros(32, "float32")},
    ),
    "elementwise": (
        (3, 31, 24),
        "t = Transpose<perm = [0, 2, 1]>(x) a = Sigmoid(t) b = MatMul(a, v) c = Softmax(b) d = MatMul(c, w) "
        "y = Add(d, a)",
        {"v": weight(31, 33), "w": weight(33, 31)},
    ),
    "pooled": (
        (1, 24, 9, 11),
        "a = MaxPool<kernel_shape = [3, 3], strides = [2, 2]>(x) b = Conv(a, v) c = Sigmoid(b) y = Mul(c, a)",
        {"v": weight(24, 24, 1, 1)},
    ),
}


@pytest.mark.parametrize(("dynamic", "precision"), [(False, "float16"), (True, "bfloat16")])
@pytest.mark.parametrize("name", MODELS)
def test_values(name: str, dynamic: bool, precision: str) -> None:
    shape, body, constants = MODELS[name]
    sides = ",".join(["n" if dynamic else str(shape[0]), *map(str, shape[1:])])
    results = ",".join("hijk"[: len(shape)])
    model = graph(f"g (float[{sides}] x) => (float[{results}] y) {{ {body} }}", **constants)
    imported = import_model(model, dynamic={"n": (1, 8)}) if dynamic else import_model(model)
    emulated = EmulatedModel(imported.mod, TARGET, precision=precision)
    assert any("_and_" in kernel for kernel in emulated.rules), emulated.rules
    for count in (1, 3) if dynamic else (shape[0],):
        x = np.random.default_rng(count).standard_normal((count, *shape[1:])).astype("float32")
        (found,) = emulated(x)
        expected = tvm_ext.compile(model, input_shapes={"x": x.shape}).run({"x": x})["y"]
        tolerance = 1e-2 if precision == "float16" else 6e-2
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance * np.abs(expected).max())
    assert not emulated.faults


def test_each_kernel_is_that_of_one_result_and_its_conversion() -> None:
    shape, body, constants = MODELS["residual"]
    sides = ",".join(map(str, shape))
    model = graph(f"g (float[{sides}] x) => (float[h,i,j,k] y) {{ {body} }}", **constants)
    kernels = kernels_of("second", import_model(model).mod, TARGET, precision="float16")
    second = [kernel for kernel in kernels if FIRST_RESULT in kernel.scheduled.attrs]
    assert second
    assert {compare(kernel, TARGET)[0] for kernel in second} == {""}


def launch(value: Any) -> tirx.PrimFunc:
    """Make a kernel of 64 threads."""

    @T.prim_func(s_tir=True, private=True)
    def kernel(x: T.Buffer((64,), "float32"), y: T.Buffer((64,), "float32")):
        for i in T.thread_binding(64, thread="threadIdx.x"):
            with T.sblock("made"):
                v = T.axis.spatial(64, i)
                y[v] = value(x, y, v)

    return kernel


def test_only_what_stores_its_result_once_gets_a_second() -> None:
    plain = launch(lambda x, y, v: x[v] * T.float32(2))
    made = with_second_result(plain, 1, "float16")
    assert made is not None
    assert [str(param.dtype) for param in made.params] == ["float32", "float32", "float16"]
    assert with_second_result(plain, 2, "float16") is None
    assert with_second_result(launch(lambda x, y, v: y[v] + x[v]), 1, "float16") is None

    @T.prim_func(s_tir=True, private=True)
    def handed(x: T.Buffer((64,), "float32"), y: T.Buffer((64,), "float32")):
        for i in T.thread_binding(64, thread="threadIdx.x"):
            y[i] = T.float32(0)
            T.evaluate(T.call_extern("int32", "atomicAdd", T.address_of(y[0]), x[i]))

    assert with_second_result(handed, 1, "float16") is None


def test_conversions() -> None:
    def kernel(dtype: str, place: Any = lambda v: v, value: Any = lambda x: x) -> tirx.PrimFunc:
        @T.prim_func(s_tir=True, private=True)
        def made(x: T.Buffer((64,), "float32"), y: T.Buffer((64,), dtype)):
            for i in T.thread_binding(64, thread="threadIdx.x"):
                with T.sblock("made"):
                    v = T.axis.spatial(64, i)
                    y[v] = T.Cast(dtype, value(x[place(v)]))

        return made

    assert is_conversion(kernel("float16"))
    assert is_conversion(kernel("int8"))
    assert not is_conversion(kernel("float16", place=lambda v: 63 - v))
    assert not is_conversion(kernel("float16", value=lambda x: x + T.float32(1)))
    assert not is_conversion(launch(lambda x, y, v: x[v]))


def test_a_kernel_of_several_calls_stays_where_nothing_is_converted() -> None:
    @I.ir_module
    class Before:
        @T.prim_func(s_tir=True, private=True)
        def double(x: T.Buffer((64,), "float32"), y: T.Buffer((64,), "float32")):
            for i in T.thread_binding(64, thread="threadIdx.x"):
                with T.sblock("made"):
                    v = T.axis.spatial(64, i)
                    y[v] = x[v] * T.float32(2)

        @T.prim_func(s_tir=True, private=True)
        def cast(x: T.Buffer((64,), "float32"), y: T.Buffer((64,), "float16")):
            for i in T.thread_binding(64, thread="threadIdx.x"):
                with T.sblock("made"):
                    v = T.axis.spatial(64, i)
                    y[v] = T.Cast("float16", x[v])

        @R.function
        def main(x: R.Tensor((64,), "float32")):
            cls = Before
            with R.dataflow():
                a = R.call_tir(cls.double, (x,), out_ty=R.Tensor((64,), "float32"))
                b = R.call_tir(cls.double, (a,), out_ty=R.Tensor((64,), "float32"))
                c = R.call_tir(cls.cast, (a,), out_ty=R.Tensor((64,), "float16"))
                d = R.call_tir(cls.cast, (x,), out_ty=R.Tensor((64,), "float16"))
                R.output(a, b, c, d)
            return a, b, c, d

    after = second_results()(Before)
    assert {variable.name_hint for variable in after.get_global_vars()} == {
        "main",
        "double",
        "double_and_float16",
        "cast",
    }
    assert relax_text(after).count("double_and_float16") == 1
    tvm.relax.analysis.well_formed(after)


def relax_text(mod: tvm.IRModule) -> str:
    return mod["main"].script()
