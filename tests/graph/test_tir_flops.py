from __future__ import annotations

import pytest
import tvm
from tvm import te as expressions  # codespell:ignore te
from tvm import tirx
from tvm.s_tir import Schedule
from tvm.s_tir.analysis import estimate_tir_flops
from tvm.script import tirx as T
from tvm.topi import nn

from tvm_ext.graph import Flops, prim_func_flops, symbol
from tvm_ext.graph.tir_flops import SizeReader, parameter_shapes


def matmul(m=8, n=16, k=32, dtype="float32"):
    a, b = expressions.placeholder((m, k), dtype, "a"), expressions.placeholder((k, n), dtype, "b")
    axis = expressions.reduce_axis((0, k), "k")
    c = expressions.compute((m, n), lambda i, j: expressions.sum(a[i, axis] * b[axis, j], axis), "c")
    return expressions.create_prim_func([a, b, c])


def test_multiplications_and_additions_are_apart():
    assert prim_func_flops(matmul()) == Flops(8 * 16 * 32, 8 * 16 * 32)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "int32"])
def test_integers_count_like_floats(dtype):
    flops = prim_func_flops(matmul(dtype=dtype))
    assert flops is not None
    assert flops.total == 2 * 8 * 16 * 32


def test_symbolic_loops_give_symbolic_counts():
    n = tirx.Var("n", "int64")
    func = matmul(m=n)
    assert prim_func_flops(func) == Flops(512 * symbol("n"), 512 * symbol("n"))
    assert parameter_shapes(func, SizeReader())[0] == (symbol("n"), 32)


def test_agrees_with_tvm_where_tvm_counts_everything():
    data, kernel = (
        expressions.placeholder((1, 8, 14, 14), name="data"),
        expressions.placeholder((16, 8, 3, 3), name="kernel"),
    )
    func = expressions.create_prim_func([data, kernel, nn.conv2d_nchw(data, kernel, 1, 1, 1)])
    flops = prim_func_flops(func)
    assert flops is not None
    assert flops.total == estimate_tir_flops(tvm.IRModule({"main": func})) == 2 * 16 * 14 * 14 * 8 * 9


def test_exp_is_one_operation_where_tvm_counts_none():
    x = expressions.placeholder((10,), name="x")
    func = expressions.create_prim_func([x, expressions.compute((10,), lambda i: expressions.exp(x[i]))])
    assert prim_func_flops(func) == Flops(other=10)
    assert estimate_tir_flops(tvm.IRModule({"main": func})) == 0


def test_scheduling_does_not_change_the_count():
    sch = Schedule(matmul(m=30, n=50, k=70))
    block = sch.get_sblock("c")
    before = prim_func_flops(sch.mod["main"])
    i, j, k = sch.get_loops(block)
    # None of the factors divides its loop, so the blocks get predicates.
    i0, i1 = sch.split(i, [None, 8])
    j0, j1 = sch.split(j, [None, 16])
    k0, k1 = sch.split(k, [None, 9])
    sch.reorder(i0, j0, k0, i1, k1, j1)
    sch.parallel(i0)
    sch.vectorize(j1)
    sch.decompose_reduction(block, k0)
    assert prim_func_flops(sch.mod["main"]) == before == Flops(105_000, 105_000)


@T.prim_func(private=True, s_tir=True)
def padded_sum(x: T.Buffer((10,), "float32"), y: T.Buffer((12,), "float32")):
    for i in range(12):
        with T.sblock("pad"):
            v = T.axis.spatial(12, i)
            y[v] = T.if_then_else(1 <= v and v < 11, x[v - 1], T.float32(0)) * T.float32(3)


@T.prim_func(private=True, s_tir=True)
def gathered(x: T.Buffer((10,), "float32"), index: T.Buffer((4,), "int32"), y: T.Buffer((4,), "float32")):
    for i in range(4):
        y[i] = x[index[i] * 2 + 1]


@T.prim_func(private=True, s_tir=True)
def interpolated(x: T.Buffer((10,), "float32"), y: T.Buffer((20,), "float32")):
    for i in range(20):
        y[i] = x[i // 2] * (T.Cast("float32", i) * T.float32(0.5) + T.float32(1)) + T.float32(2)


@T.prim_func(private=True, s_tir=True)
def with_bind(x: T.Buffer((4,), "float32"), y: T.Buffer((4,), "float32")):
    for i in T.serial(0, 8, step=2):
        z: T.let[T.float32] = x[i // 2] + T.float32(1)
        y[i // 2] = z * z


@T.prim_func(private=True, s_tir=True)
def branches(x: T.Buffer((4,), "float32"), y: T.Buffer((4,), "float32")):
    for i in range(4):
        if i < 2:
            y[i] = T.exp(x[i]) * x[i]
        else:
            y[i] = x[i] + T.float32(1)


@T.prim_func(private=True, s_tir=True)
def initialised(x: T.Buffer((4, 8), "float32"), bias: T.Buffer((4,), "float32"), y: T.Buffer((4,), "float32")):
    for i, k in T.grid(4, 8):
        with T.sblock("sum"):
            v, r = T.axis.remap("SR", [i, k])
            with T.init():
                y[v] = bias[v] * T.float32(2)
            y[v] = y[v] + x[v, r]


@T.prim_func(private=True, s_tir=True)
def triangle(x: T.Buffer((8, 8), "float32"), y: T.Buffer((8,), "float32")):
    for i in range(8):
        for j in range(i):
            y[i] = y[i] + x[i, j]


@T.prim_func(private=True, s_tir=True)
def searching(x: T.Buffer((8,), "float32"), y: T.Buffer((1,), "float32")):
    while y[0] < T.float32(1):
        y[0] = y[0] + x[0]


@T.prim_func(private=True, s_tir=True)
def calling(x: T.Buffer((8,), "float32"), y: T.Buffer((8,), "float32")):
    T.evaluate(T.call_packed("library.function", x.data, y.data))


@pytest.mark.parametrize(
    ("func", "flops"),
    [
        (padded_sum, Flops(multiply=12)),  # the padding test is free
        (gathered, Flops()),  # indices are addresses
        (interpolated, Flops(multiply=20, add=20)),  # the weight comes from the loop index alone
        (with_bind, Flops(multiply=4, add=4)),
        (branches, Flops(multiply=4, other=4)),  # the dearer branch
        (initialised, Flops(multiply=4, add=32)),  # the initialisation runs once for each sum
        (triangle, None),
        (searching, None),
        (calling, None),
    ],
)
def test_what_counts(func, flops):
    assert prim_func_flops(func) == flops


def test_vector_lanes_count():
    x, y = tirx.decl_buffer((4,), "float32x8", "x"), tirx.decl_buffer((4,), "float32x8", "y")
    i = tirx.Var("i", "int32")
    body = tirx.For(
        i, 0, 4, tirx.ForKind.SERIAL, tirx.BufferStore(y, tirx.BufferLoad(x, [i]) + tirx.BufferLoad(x, [i]), [i])
    )
    assert prim_func_flops(tirx.PrimFunc([x, y], body)) == Flops(add=32)


def test_rounding_by_an_instruction_counts_as_one_operation():
    """Kernels of quantised models end with it: without it, nothing of them would be counted."""
    x, y = tirx.decl_buffer((4,), "float32", "x"), tirx.decl_buffer((4,), "int32", "y")
    i = tirx.Var("i", "int32")

    def kernel(intrinsic):
        value = tirx.call_llvm_pure_intrin("int32", intrinsic, tirx.BufferLoad(x, [i]) * tirx.const(2, "float32"))
        return tirx.PrimFunc([x, y], tirx.For(i, 0, 4, tirx.ForKind.SERIAL, tirx.BufferStore(y, value, [i])))

    assert prim_func_flops(kernel("llvm.lrint")) == Flops(multiply=4, other=4)
    assert prim_func_flops(kernel("llvm.fptosi.sat")) is None
