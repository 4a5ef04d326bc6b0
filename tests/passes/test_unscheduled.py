"""Warnings of kernels that no schedule rule takes: which, named how, and none for what the rules take."""

from __future__ import annotations

import warnings

import numpy as np
import onnx
import pytest
import tvm
from onnx import TensorProto, helper
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

import tvm_ext
from tests.graph.test_origins import named
from tests.zoo import ZOO
from tvm_ext.backends.cpu.target import native_target
from tvm_ext.errors import PerformanceWarning, TvmExtWarning
from tvm_ext.graph.origins import bindings_of, words_of
from tvm_ext.passes.unscheduled import OPEN_EXTENT, SMALLEST_WORK, serial_work, warn_of_unscheduled

OPAQUE = 8
"""The pattern of kernels that are not fused."""


def recurrence(length: int, parallel: bool = False) -> tvm.tirx.PrimFunc:
    """A kernel of two statements that store in turns: no block computes single elements, so no rule takes it."""
    if parallel:

        @T.prim_func(private=True, s_tir=True)
        def shared(x: T.Buffer((T.int64(length),), "float32"), y: T.Buffer((T.int64(length),), "float32")):
            with T.sblock("root"):
                for i in T.parallel(T.int64(length)):
                    y[i] = x[i] + T.float32(1)

        return shared

    @T.prim_func(private=True, s_tir=True)
    def serial(x: T.Buffer((T.int64(length),), "float32"), y: T.Buffer((T.int64(length),), "float32")):
        with T.sblock("root"):
            for i in range(T.int64(length)):
                y[i] = T.if_then_else(i > 0, y[T.max(i - 1, T.int64(0))], T.float32(0)) + x[i]

    return serial


def module(length: int, parallel: bool = False) -> tvm.IRModule:
    builder = relax.BlockBuilder()
    x = relax.Var("x", R.Tensor((length,), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            kernel = builder.add_func(recurrence(length, parallel).with_attr("op_pattern", OPAQUE), "running_sum")
            total = builder.emit(relax.call_tir(kernel, [x], R.Tensor((length,), "float32")), name_hint="total")
            result = builder.emit_output(relax.op.multiply(total, relax.const(2.0)))
        builder.emit_func_output(result)
    return builder.finalize()


def test_a_large_serial_kernel_is_named_and_the_model_is_right() -> None:
    length = SMALLEST_WORK
    with pytest.warns(PerformanceWarning, match=r"no schedule rule takes this kernel, .*: running_sum;") as caught:
        compiled = tvm_ext.compile(module(length))
    assert [warning.filename for warning in caught] == [__file__]  # not a line inside the package
    x = np.ones(length, "float32")
    np.testing.assert_allclose(next(iter(compiled.run([x]).values())), np.cumsum(x) * 2)


def test_also_through_the_registered_pipeline() -> None:
    with pytest.warns(PerformanceWarning, match="running_sum"):
        tvm.compile(module(SMALLEST_WORK), native_target(), relax_pipeline="tvm_ext")


@pytest.mark.parametrize(("length", "parallel"), [(SMALLEST_WORK - 1, False), (4 * SMALLEST_WORK, True), (0, False)])
def test_nothing_for_small_kernels_and_for_those_that_have_their_threads(length: int, parallel: bool) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_unscheduled(module(length, parallel))


def open_rows(columns: int) -> tvm.IRModule:
    """A softmax over an open number of rows, which no rule takes."""
    rows = tvm.tirx.Var("rows", "int64")
    x = relax.Var("x", relax.TensorType((rows, columns), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(relax.op.nn.softmax(x, axis=0), name_hint="normal")
        builder.emit_func_output(result)
    return builder.finalize()


def test_extents_that_stay_open_are_named() -> None:
    match = r"one thread computes this kernel, .* only known at run time: softmax with rows open; compile the model for"
    with pytest.warns(PerformanceWarning, match=match):
        compiled = tvm_ext.compile(open_rows(SMALLEST_WORK // OPEN_EXTENT))
    x = np.random.default_rng(0).standard_normal((3, SMALLEST_WORK // OPEN_EXTENT)).astype("float32")
    expected = np.exp(x) / np.exp(x).sum(0)
    np.testing.assert_allclose(next(iter(compiled.run([x]).values())), expected, rtol=1e-5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tvm_ext.compile(open_rows(8))


def test_the_nodes_of_the_model_are_named() -> None:
    mod = module(SMALLEST_WORK)
    with pytest.warns(PerformanceWarning, match=r"running_sum \(node 'sum_of_all' \(CumSum\)\)"):
        warn_of_unscheduled(named(mod, {"total": "node 'sum_of_all' (CumSum)"}))


def test_outputs_of_a_kernel_with_several_results_are_found() -> None:
    @I.ir_module(s_tir=True)
    class Two:
        @T.prim_func(private=True, s_tir=True)
        def two(
            x: T.Buffer((400, 400), "float32"), y: T.Buffer((400, 400), "float32"), z: T.Buffer((400, 400), "float32")
        ):
            for i, j in T.grid(400, 400):
                if i > j:
                    y[i, j] = x[j, i]
                else:
                    z[i, j] = x[j, i]

        @R.function
        def main(x: R.Tensor((400, 400), "float32")):
            cls = Two
            with R.dataflow():
                both = R.call_tir(
                    cls.two, (x,), out_ty=[R.Tensor((400, 400), "float32"), R.Tensor((400, 400), "float32")]
                )
                second = both[1]
                R.output(second)
            return second

    assert serial_work(Two["two"]) == 160_000  # of the two branches one runs
    with pytest.warns(PerformanceWarning, match=r"two \(a node\)"):
        warn_of_unscheduled(named(Two, {"second": "a node"}))


def test_a_rule_that_failed_is_reported() -> None:
    mod = module(8)
    mod.update_func(
        mod.get_global_var("running_sum"),
        mod["running_sum"].with_attr("tvm_ext.schedule_fault", "cpu.matmul: ValueError: no tile"),
    )
    with pytest.warns(PerformanceWarning, match=r"running_sum \(cpu.matmul: ValueError: no tile\)"):
        warn_of_unscheduled(mod)


def test_an_imported_model_knows_its_nodes() -> None:
    node = helper.make_node("Relu", ["x"], ["y:0"], name="act")
    graph = helper.make_graph(
        [node, helper.make_node("Exp", ["y:0"], ["z"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3])],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, [3])],
    )
    imported = tvm_ext.frontend.import_model(helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)]))
    found = {binding.var.name: words_of(binding.var) for binding in bindings_of(imported.mod["main"].body)}
    assert found["y_0"] == ("Relu node 'act'",)
    assert found["z"] == ("Exp node that makes 'z'",)


@pytest.mark.parametrize("name", [name for name in ZOO if name.startswith("tiny_") and "int8" not in name])
def test_ordinary_models_make_no_noise(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", TvmExtWarning)
        tvm_ext.compile(ZOO[name].onnx_model())


def test_compiling_for_a_target_without_a_processor_is_warned_of() -> None:
    with pytest.warns(PerformanceWarning, match="target llvm names no processor") as caught:
        tvm_ext.compile(module(8), "llvm")
    assert [warning.filename for warning in caught] == [__file__]
