from __future__ import annotations

import tvm
from tvm import relax, tirx
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

from tests.modules import Branch, Chain, Mlp, Several
from tvm_ext.backends.cpu.target import native_target
from tvm_ext.compiler import lower
from tvm_ext.options import PipelineOptions
from tvm_ext.statistics import ModuleStatistics, StatisticsInstrument, module_statistics


@I.ir_module(check_well_formed=False)
class Planned:
    """Two storages (512 and 100 bytes), two kernels in three calls, an output of 2 * 3 float16, a dynamic tensor."""

    @T.prim_func(private=True, s_tir=True)
    def first(x: T.Buffer((8,), "float32"), y: T.Buffer((8,), "float32")):
        for i in range(8):
            with T.sblock("b"):
                v = T.axis.spatial(8, i)
                y[v] = x[v] + T.float32(1)

    @T.prim_func(private=True, s_tir=True)
    def second(x: T.Buffer((8,), "float32"), y: T.Buffer((8,), "float32")):
        for i in range(8):
            with T.sblock("b"):
                v = T.axis.spatial(8, i)
                y[v] = x[v] * T.float32(2)

    @T.prim_func(private=True, s_tir=True)
    def never_called(x: T.Buffer((8,), "float32")):
        for i in range(8):
            with T.sblock("b"):
                v = T.axis.spatial(8, i)
                x[v] = T.float32(0)

    @R.function(pure=False)
    def main(x: R.Tensor((8,), "float32"), s: R.Shape(["n"])) -> R.Tensor((2, 3), "float16"):
        n = T.int64()
        cls = Planned
        one: R.Object = R.memory.alloc_storage(R.shape([512]), R.prim_value(0), R.str("global"), R.dtype("uint8"))
        two: R.Object = R.memory.alloc_storage(R.shape([100]), R.prim_value(0), R.str("global"), R.dtype("uint8"))
        a: R.Tensor((8,), "float32") = R.memory.alloc_tensor(one, R.prim_value(0), R.shape([8]), R.dtype("float32"))
        b: R.Tensor((8,), "float32") = R.memory.alloc_tensor(two, R.prim_value(0), R.shape([8]), R.dtype("float32"))
        cls.first(x, a)
        cls.second(a, b)
        cls.first(b, a)
        _dynamic: R.Tensor((n,), "float32") = R.builtin.alloc_tensor(
            R.shape([n]), R.dtype("float32"), R.prim_value(0), R.str("global")
        )
        out: R.Tensor((2, 3), "float16") = R.builtin.alloc_tensor(
            R.shape([2, 3]), R.dtype("float16"), R.prim_value(0), R.str("global")
        )
        return out


def test_hand_written_plan() -> None:
    assert module_statistics(Planned) == ModuleStatistics(
        kernels=2, kernel_calls=3, planned_bytes=612, output_bytes=12, dynamic_allocations=1
    )


def statistics_of(mod: tvm.IRModule) -> ModuleStatistics | None:
    return lower(mod, native_target(), PipelineOptions())[1]


def test_kernels_are_counted_once_and_calls_each_time() -> None:
    # Three softmax over 16x16 float32: the first and the last are the same kernel; two tensors of 1 KiB lie between.
    assert statistics_of(Chain) == ModuleStatistics(
        kernels=2, kernel_calls=3, planned_bytes=2048, output_bytes=1024, dynamic_allocations=0
    )


def test_outputs_of_all_types_count() -> None:
    counted = statistics_of(Several)
    assert counted is not None
    assert counted.output_bytes == 2 * 3 * 4 + 2 * 8 + 4
    assert counted.planned_bytes == 0


def test_branches_of_an_if_count() -> None:
    counted = statistics_of(Branch)
    assert counted is not None
    assert (counted.kernels, counted.output_bytes) == (2, 2 * 3 * 5 * 4)


def test_sizes_known_at_run_time_are_counted_apart() -> None:
    n = tirx.Var("n", "int64")
    x = relax.Var("x", relax.TensorType((n, 8), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit_output(relax.op.nn.softmax(x, axis=0))  # over the batch, so not image by image
        builder.emit_func_output(y)
    counted = statistics_of(builder.get())
    assert counted is not None
    assert (counted.planned_bytes, counted.output_bytes, counted.dynamic_allocations) == (0, 0, 1)


def test_module_without_allocations() -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((2,), "float32"))
    with builder.function("main", [x]):
        builder.emit_func_output(x)
    assert module_statistics(builder.get()) == ModuleStatistics(0, 0, 0, 0, 0)


def test_instrument_works_on_the_stock_pipeline() -> None:
    instrument = StatisticsInstrument()
    with tvm.transform.PassContext(instruments=[instrument]):
        tvm.compile(Mlp, "llvm")
    assert instrument.statistics is not None
    assert instrument.statistics.kernels == 4  # it fuses nothing
    assert instrument.statistics.output_bytes == 4 * 10 * 4


def test_instrument_sees_nothing_where_no_memory_is_planned() -> None:
    assert lower(Mlp, native_target(), PipelineOptions(disable=("memory",)))[1] is None
