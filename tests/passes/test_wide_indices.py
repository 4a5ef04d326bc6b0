"""Kernels written by hand with extents of int32, as TVMScript writes them, compute what stock TVM computes."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

import tvm_ext
from tests.modules import run
from tvm_ext.backends.cpu.target import native_target
from tvm_ext.passes.wide_indices import fusible, widen
from tvm_ext.relax_utils import OPAQUE

OPTIONS: tuple[dict[str, Any], ...] = ({}, {"fuse": "mapping-type"}, {"memory": "optimal", "rewrite": "strict"})


@T.prim_func(private=True, s_tir=True)
def add_one(a: T.Buffer((33,), "float32"), b: T.Buffer((33,), "float32")):
    for i in range(33):
        with T.sblock("b"):
            v = T.axis.spatial(33, i)
            b[v] = a[v] + T.float32(1)


@T.prim_func(private=True, s_tir=True)
def row_sums(a: T.Buffer((33, 7), "float32"), b: T.Buffer((33,), "float32")):
    for i, j in T.grid(33, 7):
        with T.sblock("b"):
            v, w = T.axis.remap("SR", [i, j])
            with T.init():
                b[v] = T.float32(0)
            b[v] = b[v] + a[v, w] * a[v, w]


@T.prim_func(private=True, s_tir=True)
def numbers(a: T.Buffer((33,), "float32"), b: T.Buffer((33,), "float32")):
    """The index as a value, in conditions, divided, negative; a loop that does not begin at zero."""
    for i in range(3, 36):
        with T.sblock("b"):
            v = T.axis.spatial(33, i - 3)
            b[v] = T.if_then_else(
                v % 5 < 2 and v >= 3,
                a[32 - v] * T.Cast("float32", (v - 16) // 3),
                T.Select(v == 7, T.float32(0.5), T.Cast("float32", T.truncmod(v - 20, 6) * T.max(v, 9))),
            )


@T.prim_func(private=True, s_tir=True)
def gathered(a: T.Buffer((33,), "float32"), table: T.Buffer((33,), "int32"), b: T.Buffer((33,), "float32")):
    for i in range(33):
        with T.sblock("b"):
            v = T.axis.spatial(33, i)
            b[v] = a[table[v]] + a[T.min(table[v] * 2 + v, 32)]


@T.prim_func(private=True, s_tir=True)
def in_two_steps(a: T.Buffer((33,), "float32"), b: T.Buffer((33,), "float32")):
    c = T.sblock_alloc_buffer((33, 2), "float32")
    for i, j in T.grid(33, 2):
        with T.sblock("c"):
            v, w = T.axis.remap("SS", [i, j])
            c[v, w] = a[v] * T.Cast("float32", w + 1)
    for i in range(33):
        with T.sblock("b"):
            v = T.axis.spatial(33, i)
            T.where(i < 32)
            b[v] = c[v, 0] - c[v, 1]
    for i in range(1):
        with T.sblock("last"):
            v = T.axis.spatial(33, i + 32)
            b[v] = c[v, 1]


@T.prim_func(private=True, s_tir=True)
def part_by_part(a: T.Buffer((33,), "float32"), b: T.Buffer((33,), "float32")):
    for i in range(3):
        with T.sblock("b"):
            v = T.axis.spatial(3, i)
            T.reads(a[v * 11 : v * 11 + 11])
            T.writes(b[v * 11 : v * 11 + 11])
            part = T.match_buffer(a[v * 11 : v * 11 + 11], (11,), "float32", offset_factor=1)
            for j in range(11):
                b[v * 11 + j] = part[10 - j]


@T.prim_func(private=True, s_tir=True)
def external(a: T.Buffer((33,), "float32"), b: T.Buffer((33,), "float32")):
    for i in range(33):
        with T.sblock("b"):
            v = T.axis.spatial(33, i)
            b[v] = T.call_extern("float32", "fabsf", a[v])


@T.prim_func(private=True, s_tir=True)
def scheduled(a: T.Buffer((33,), "float32"), b: T.Buffer((33,), "float32")):
    T.func_attr({"tirx.is_scheduled": True})
    for i in T.parallel(3):
        for j in T.vectorized(11):
            with T.sblock("b"):
                v = T.axis.spatial(33, i * 11 + j)
                b[v] = a[v] * T.float32(3)


@T.prim_func(private=True, s_tir=True)
def with_offsets(x: T.handle, y: T.handle):
    a = T.match_buffer(x, (33,), "float32", offset_factor=16)
    b = T.match_buffer(y, (33,), "float32", offset_factor=16)
    for i in range(33):
        with T.sblock("b"):
            v = T.axis.spatial(33, i)
            b[v] = a[v] - T.float32(3)


@T.prim_func(private=True, s_tir=True)
def symbolic(x: T.handle, y: T.handle):
    n = T.int32()
    a = T.match_buffer(x, (n,), "float32")
    b = T.match_buffer(y, (n,), "float32")
    for i in range(n):
        with T.sblock("b"):
            v = T.axis.spatial(n, i)
            b[v] = a[n - 1 - v] + T.Cast("float32", n)


KERNELS = {
    name: globals()[name]
    for name in (
        *("add_one", "row_sums", "numbers", "gathered", "in_two_steps", "part_by_part"),
        *("external", "scheduled", "with_offsets", "symbolic"),
    )
}
ALONE = {"scheduled", "with_offsets"}


@cache
def module(name: str, extent: int | None = 33) -> tvm.IRModule:
    """Put a kernel between two operators; the first one's result is used by both others."""
    builder = relax.BlockBuilder()
    n = tirx.Var("n", "int64") if extent is None else extent
    x = relax.Var("x", relax.TensorType((n,) if name != "row_sums" else (n, 7), "float32"))
    table = relax.const((np.arange(33, dtype="int32") * 5) % 33)
    with builder.function("main", [x]):
        with builder.dataflow():
            kernel = builder.add_func(KERNELS[name], name)
            doubled = builder.emit(relax.op.multiply(x, relax.const(2.0, "float32")))
            arguments = [doubled, table] if name == "gathered" else [doubled]
            y = builder.emit(relax.call_tir(kernel, arguments, relax.TensorType((n,), "float32")))
            z = builder.emit(relax.op.nn.relu(y))
            first = y if name == "row_sums" else doubled
            result = builder.emit_output(relax.op.add(z, first))
        builder.emit_func_output(result)
    return builder.finalize()


def data(name: str, extent: int = 33) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((extent, 7) if name == "row_sums" else extent).astype("float32")


def stock(mod: tvm.IRModule, x: np.ndarray) -> np.ndarray:
    return run(tvm.compile(mod, native_target()), [x])[0]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("name", sorted(set(KERNELS) - {"symbolic"}))
def test_kernels_among_operators_are_those_of_stock_tvm(name: str, options: dict[str, Any]) -> None:
    x = data(name)
    (got,) = tvm_ext.compile(module(name), **options).run([x]).values()
    np.testing.assert_allclose(got, expected(name, x), rtol=1e-5, atol=1e-5)


def expected(name: str, x: np.ndarray) -> np.ndarray:
    """Compute the module by NumPy, from the definition of the kernel."""
    a = x * 2
    v = np.arange(len(a))
    table = v * 5 % 33
    with np.errstate(all="ignore"):
        kernels = {
            "add_one": lambda: a + 1,
            "row_sums": lambda: (a * a).sum(1),
            "numbers": lambda: np.where(
                (v % 5 < 2) & (v >= 3),
                a[::-1] * ((v - 16) // 3),
                np.where(v == 7, 0.5, np.fmod(v - 20, 6) * np.maximum(v, 9)),
            ),
            "gathered": lambda: a[table] + a[np.minimum(table * 2 + v, 32)],
            "in_two_steps": lambda: np.where(v < 32, -a, 2 * a),
            "part_by_part": lambda: a.reshape(3, 11)[:, ::-1].reshape(33),
            "external": lambda: np.abs(a),
            "scheduled": lambda: a * 3,
            "with_offsets": lambda: a - 3,
            "symbolic": lambda: a[::-1] + len(a),
        }
        y = kernels[name]()
    return np.maximum(y, 0) + (y if name == "row_sums" else a)


@pytest.mark.parametrize("name", ["add_one", "row_sums", "numbers", "gathered", "symbolic"])
def test_stock_tvm_agrees_with_numpy(name: str) -> None:
    """The oracle itself, on kernels alone: stock TVM, without a neighbour that it could not merge."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((33, 7) if name == "row_sums" else (33,), "float32"))
    with builder.function("main", [x]):
        kernel = builder.add_func(KERNELS[name], name)
        table = relax.const((np.arange(33, dtype="int32") * 5) % 33)
        arguments = [x, table] if name == "gathered" else [x]
        builder.emit_func_output(builder.emit(relax.call_tir(kernel, arguments, relax.TensorType((33,), "float32"))))
    values = data(name)
    got = stock(builder.finalize(), values * 2)
    first = got if name == "row_sums" else values * 2
    np.testing.assert_allclose(np.maximum(got, 0) + first, expected(name, values), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("number", [0, 1, 3, 17, 33])
def test_open_extents_of_int32(number: int) -> None:
    x = data("symbolic", number)
    (got,) = compiled_open().run([x]).values()
    np.testing.assert_allclose(got, expected("symbolic", x), rtol=1e-6)


@cache
def compiled_open() -> Any:
    return tvm_ext.compile(module("symbolic", None))


@pytest.mark.parametrize("disable", [(), ("canonicalize",), ("fuse",), ("schedule",)], ids=str)
def test_phases_can_be_left_out(disable: tuple[str, ...]) -> None:
    x = data("numbers")
    (got,) = tvm_ext.compile(module("numbers"), disable=disable).run([x]).values()
    np.testing.assert_allclose(got, expected("numbers", x), rtol=1e-5, atol=1e-5)


def test_the_pipeline_of_tvm_compile_takes_them() -> None:
    x = data("add_one")
    (got,) = run(tvm.compile(module("add_one"), native_target(), relax_pipeline="tvm_ext"), [x])
    np.testing.assert_allclose(got, expected("add_one", x), rtol=1e-6)


@pytest.mark.parametrize("name", sorted(set(KERNELS) - {"scheduled"}))
def test_nothing_narrow_is_left(name: str) -> None:
    wide = widen(KERNELS[name])
    assert wide is not None
    assert tvm.s_tir.analysis.verify_well_formed(wide)
    narrow = []

    def look(item: Any) -> None:
        if isinstance(item, tirx.IterVar | tirx.For):
            narrow.append(str((item.var if isinstance(item, tirx.IterVar) else item.loop_var).ty))
        elif tirx.is_buffer_var(item):
            narrow.extend(str(extent.ty) for extent in item.ty.shape)

    tvm_ffi.structural_walk(wide, ((tirx.IterVar, tirx.For, tvm.ir.Var), look))
    assert narrow
    assert set(narrow) == {"int64"}
    assert widen(wide) is wide


@pytest.mark.parametrize("name", sorted(KERNELS))
def test_which_kernels_stay_alone(name: str) -> None:
    mod = relax.transform.AnnotateTIROpPattern()(tvm.IRModule({"kernel": fusible(KERNELS[name])}))
    assert (int(mod["kernel"].attrs["op_pattern"]) == OPAQUE) >= (name in ALONE)
    assert int(mod["kernel"].attrs["op_pattern"]) != OPAQUE or name not in ("add_one", "row_sums", "external")


def test_kernels_are_merged_with_their_neighbours() -> None:
    @tvm.ir.instrument.pass_instrument
    class Count:
        def run_after_pass(self, mod: tvm.IRModule, info: Any) -> None:
            if info.name == "tvm_ext.fuse":
                kernels.append(sum(isinstance(func, tirx.PrimFunc) for func in mod.functions.values()))

    kernels: list[int] = []
    with tvm.transform.PassContext(instruments=[Count()]):
        tvm.compile(module("add_one"), native_target(), relax_pipeline="tvm_ext")
    assert kernels == [1]


def test_a_kernel_whose_extent_is_an_argument_too() -> None:
    @I.ir_module
    class Sized:
        @T.prim_func(private=True, s_tir=True)
        def filled(n: T.int64, y: T.handle):
            b = T.match_buffer(y, (n,), "float32")
            for i in T.serial(0, T.Cast("int32", n)):
                with T.sblock("b"):
                    v = T.axis.spatial(T.Cast("int32", n), i)
                    b[v] = T.Cast("float32", n)

        @R.function
        def main(x: R.Tensor(("n",), "float32")):
            n = T.int64()
            with R.dataflow():
                y = R.call_tir(Sized.filled, (n,), out_ty=R.Tensor((n,), "float32"))
                z = R.add(y, x)
                R.output(z)
            return z

    x = np.arange(5, dtype="float32")
    np.testing.assert_array_equal(stock(Sized, x), x + 5)
    (got,) = tvm_ext.compile(Sized).run([x]).values()
    np.testing.assert_array_equal(got, x + 5)
