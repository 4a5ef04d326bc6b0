"""Kernels that work in place leave inputs, constants and what others read as they are."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, tirx
from tvm.script import tirx as T

import tvm_ext
from tests.modules import run
from tvm_ext.backends.cpu.target import native_target
from tvm_ext.inputs import aligned
from tvm_ext.passes.inputs_kept import inputs_kept

OPTIONS: tuple[dict[str, Any], ...] = ({}, {"fuse": "mapping-type"}, {"memory": "optimal"}, {"disable": "canonicalize"})


@T.prim_func(private=True, s_tir=True)
def increase(a: T.Buffer((T.int64(17), T.int64(3)), "float32")):
    for i, j in T.grid(T.int64(17), T.int64(3)):
        with T.sblock("b"):
            v, w = T.axis.remap("SS", [i, j])
            a[v, w] = a[v, w] + T.float32(1)


@T.prim_func(private=True, s_tir=True)
def change_first_row(a: T.Buffer((17, 3), "float32"), b: T.Buffer((3,), "float32"), c: T.Buffer((3,), "float32")):
    """Writes a part of its operand, and a result of its own."""
    for j in range(3):
        with T.sblock("b"):
            w = T.axis.spatial(3, j)
            c[w] = a[0, w] * T.float32(2)
    for j in range(3):
        with T.sblock("c"):
            w = T.axis.spatial(3, j)
            a[0, w] = b[w]


@T.prim_func(private=True, s_tir=True)
def negate(x: T.handle):
    n = T.int64()
    a = T.match_buffer(x, (n, T.int64(3)), "float32")
    for i, j in T.grid(n, T.int64(3)):
        with T.sblock("b"):
            v, w = T.axis.remap("SS", [i, j])
            a[v, w] = -a[v, w]


@T.prim_func(private=True)
def without_blocks(a: T.Buffer((T.int64(17), T.int64(3)), "float32")):
    for i in range(T.int64(17)):
        a[i, T.int64(2)] = T.float32(7)


@T.prim_func(private=True, s_tir=True)
def scalar(a: T.Buffer((), "float32")):
    with T.sblock("b"):
        a[()] = a[()] * T.float32(2)


def in_place(kernel: tirx.PrimFunc, operand: str, shape: tuple[int | str, ...] = (17, 3)) -> tvm.IRModule:
    """Apply a kernel in place to an input, a constant, a result that is read elsewhere, or one that is not."""
    n = tirx.Var("n", "int64")
    extents = [n if extent == "n" else extent for extent in shape]
    builder = relax.BlockBuilder()
    x, w = (relax.Var(name, relax.TensorType(extents, "float32")) for name in "xw")
    with builder.function("main", [x, w]):
        with builder.dataflow():
            function = builder.add_func(kernel, "kernel")
            sums = builder.emit(relax.op.add(x, relax.const(0.5, "float32")))
            read = builder.emit(relax.op.multiply(sums if operand == "shared" else x, relax.const(3.0, "float32")))
            given = {"input": x, "constant": w, "shared": sums, "single": sums}[operand]
            one = builder.emit(relax.op.call_tir_inplace(function, [given], [0], relax.TensorType(extents, "float32")))
            two = builder.emit(relax.op.add(one, read))
            results = builder.emit_output(relax.Tuple([two, builder.emit(relax.op.add(given, read))]))
            if operand == "single":
                results = builder.emit_output(relax.Tuple([two, read]))
        builder.emit_func_output(results)
    return builder.finalize()


COMPUTED = {
    "increase": lambda a: a + 1,
    "negate": lambda a: -a,
    "scalar": lambda a: a * 2,
    "without_blocks": lambda a: np.concatenate([a[:, :2], np.full((len(a), 1), 7, "float32")], 1),
}
KERNELS = {"increase": increase, "negate": negate, "scalar": scalar, "without_blocks": without_blocks}


def expected(name: str, operand: str, x: np.ndarray, w: np.ndarray) -> list[np.ndarray]:
    sums = x + np.float32(0.5)
    read = (sums if operand == "shared" else x) * 3
    given = {"input": x, "constant": w, "shared": sums, "single": sums}[operand]
    return [COMPUTED[name](given) + read, read if operand == "single" else given + read]


def check(name: str, operand: str, shape: tuple[int, ...], model: Any, seed: int = 0) -> None:
    rng = np.random.default_rng(seed)
    x = aligned(rng.standard_normal(shape).astype("float32"))
    w = np.full(shape, 4, "float32")
    before = x.copy()
    for _ in range(3):
        for got, want in zip(model.run([x]).values(), expected(name, operand, before, w), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-6)
        np.testing.assert_array_equal(x, before)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("operand", ["input", "constant", "shared", "single"])
def test_every_run_gives_the_same(operand: str, options: dict[str, Any]) -> None:
    params = {"w": np.full((17, 3), 4, "float32")}
    check("increase", operand, (17, 3), tvm_ext.compile(in_place(increase, operand), params=params, **options))


@pytest.mark.parametrize("name", ["scalar", "without_blocks"])
@pytest.mark.parametrize("operand", ["input", "constant"])
def test_kernels_of_other_forms(name: str, operand: str) -> None:
    shape = () if name == "scalar" else (17, 3)
    params = {"w": np.full(shape, 4, "float32")}
    check(name, operand, shape, tvm_ext.compile(in_place(KERNELS[name], operand, shape), params=params))


def test_open_extents() -> None:
    mod = in_place(negate, "shared", ("n", 3))
    model = tvm_ext.compile(mod)
    for number in (0, 1, 7, 33):
        x = aligned(np.random.default_rng(number).standard_normal((number, 3)).astype("float32"))
        before = x.copy()
        want = expected("negate", "shared", before, before)
        for got, one in zip(model.run([x, np.zeros_like(x)]).values(), want, strict=True):
            np.testing.assert_allclose(got, one, rtol=1e-6)
        np.testing.assert_array_equal(x, before)


def test_threads_that_share_an_input_do_not_race() -> None:
    params = {"w": np.full((17, 3), 4, "float32")}
    models = [tvm_ext.compile(in_place(increase, operand), params=params) for operand in ("input", "constant")]
    with ThreadPoolExecutor(4) as pool:
        for operand, model in zip(("input", "constant"), models, strict=True):
            list(pool.map(lambda seed: check("increase", operand, (17, 3), model, seed), range(12)))  # noqa: B023


def partly() -> tvm.IRModule:
    builder = relax.BlockBuilder()
    types = [relax.TensorType((17, 3), "float32"), relax.TensorType((3,), "float32")]
    x, y = (relax.Var(name, kind) for name, kind in zip("xy", types, strict=True))
    with builder.function("main", [x, y]):
        with builder.dataflow():
            function = builder.add_func(change_first_row, "change_first_row")
            both = builder.emit(relax.op.call_tir_inplace(function, [x, y], [0, -1], types))
            changed, row = (builder.emit(relax.TupleGetItem(both, index)) for index in (0, 1))
            total = builder.emit(relax.op.add(changed, row))
            results = builder.emit_output(relax.Tuple([total, changed, row]))
        builder.emit_func_output(results)
    return builder.finalize()


def test_a_part_is_changed_beside_another_result() -> None:
    x = aligned(np.random.default_rng(1).standard_normal((17, 3)).astype("float32"))
    y, before = np.arange(3, dtype="float32"), x.copy()
    model = tvm_ext.compile(partly())
    changed = before.copy()
    changed[0] = y
    for _ in range(2):
        got = list(model.run([x, y]).values())
        for one, want in zip(got, [changed + 2 * before[0], changed, 2 * before[0]], strict=True):
            np.testing.assert_allclose(one, want, rtol=1e-6)
    np.testing.assert_array_equal(x, before)


def test_what_stock_tvm_computes_on_fresh_memory() -> None:
    """Where nobody reads the operand again, stock TVM is right too."""
    mod = in_place(increase, "single")
    x, w = (np.random.default_rng(seed).standard_normal((17, 3)).astype("float32") for seed in (0, 1))
    stock = run(tvm.compile(mod, native_target()), [x, w])
    for got, want in zip(tvm_ext.compile(mod).run([x, w]).values(), stock, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)


def test_memory_that_a_finished_kernel_made_for_it_is_written_in_place() -> None:
    @T.prim_func(private=True, s_tir=True)
    def start(x: T.Buffer((4,), "float32"), a: T.Buffer((4,), "float32"), b: T.Buffer((4,), "float32")):
        T.func_attr({"tirx.is_scheduled": True})
        for i in range(4):
            with T.sblock("b"):
                v = T.axis.spatial(4, i)
                a[v] = x[v] + T.float32(1)
                b[v] = x[v] * T.float32(2)

    @T.prim_func(private=True, s_tir=True)
    def double(a: T.Buffer((4,), "float32")):
        for i in range(4):
            with T.sblock("b"):
                v = T.axis.spatial(4, i)
                a[v] = a[v] * T.float32(2)

    def module(twice: bool) -> tvm.IRModule:
        builder = relax.BlockBuilder()
        vector = relax.TensorType((4,), "float32")
        x = relax.Var("x", vector)
        with builder.function("main", [x]):
            first, second = builder.add_func(start, "start"), builder.add_func(double, "double")
            both = builder.emit(relax.call_tir(first, [x], [vector, vector]))
            parts = [builder.emit(relax.TupleGetItem(both, index)) for index in (0, 1)]
            one = builder.emit(relax.op.call_tir_inplace(second, [parts[0]], [0], vector))
            other = builder.emit(relax.TupleGetItem(both, 0)) if twice else parts[1]
            builder.emit_func_output(builder.emit(relax.op.add(one, other)))
        return builder.finalize()

    for twice in (False, True):
        mod = module(twice)
        assert ("call_tir_inplace" in inputs_kept()(mod).script()) is not twice
        x = np.arange(4, dtype="float32")
        (got,) = tvm_ext.compile(mod).run([x]).values()
        np.testing.assert_array_equal(got, 2 * (x + 1) + (x + 1 if twice else 2 * x))
