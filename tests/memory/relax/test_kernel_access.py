"""What is read off a kernel's body: results, places, parts."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm.script import tirx as T

from tvm_ext.memory.relax.kernel_access import Joined, KernelAccess, in_place_variant, kernel_access


@T.prim_func(s_tir=True)
def add(a: T.Buffer((4, 8), "float32"), b: T.Buffer((8,), "float32"), c: T.Buffer((4, 8), "float32")):
    for i, j in T.grid(4, 8):
        with T.sblock("add"):
            vi, vj = T.axis.remap("SS", [i, j])
            c[vi, vj] = a[vi, vj] * a[vi, vj] + b[vj]


@T.prim_func(s_tir=True)
def shifted(a: T.Buffer((8,), "float32"), c: T.Buffer((8,), "float32")):
    for i in T.serial(8):
        with T.sblock("shifted"):
            vi = T.axis.spatial(8, i)
            c[vi] = a[(vi + 1) % 8]


@T.prim_func(s_tir=True)
def summed(a: T.Buffer((8,), "float32"), c: T.Buffer((8,), "float32")):
    for i, k in T.grid(8, 8):
        with T.sblock("summed"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                c[vi] = T.float32(0)
            c[vi] = c[vi] + a[vk]


@T.prim_func(s_tir=True)
def two_stages(a: T.Buffer((8,), "float32"), c: T.Buffer((8,), "float32")):
    t = T.sblock_alloc_buffer((8,), "float32")
    for i in T.serial(8):
        with T.sblock("first"):
            vi = T.axis.spatial(8, i)
            t[vi] = a[vi] + T.float32(1)
    for i in T.serial(8):
        with T.sblock("second"):
            vi = T.axis.spatial(8, i)
            c[vi] = t[7 - vi] + a[vi]


@T.prim_func(s_tir=True)
def overlapping(a: T.Buffer((8,), "float32"), c: T.Buffer((8,), "float32")):
    for i, j in T.grid(4, 3):
        with T.sblock("overlapping"):
            vi, vj = T.axis.remap("SS", [i, j])
            c[vi + vj] = a[vi + vj] * T.float32(2)


@T.prim_func(s_tir=True)
def again_and_again(a: T.Buffer((8,), "float32"), c: T.Buffer((8,), "float32")):
    for i, _repeat in T.grid(8, 2):
        with T.sblock("again"):
            vi = T.axis.spatial(8, i)
            c[vi] = a[vi] * T.float32(2)


@T.prim_func(s_tir=True)
def vectors_with_remainder(a: T.Buffer((10,), "float32"), c: T.Buffer((10,), "float32")):
    for i, j in T.grid(3, 4):
        with T.sblock("vectors"):
            vi = T.axis.spatial(10, i * 4 + j)
            T.where(i * 4 + j < 10)
            c[vi] = a[vi] * T.float32(2)


@T.prim_func(s_tir=True)
def overlapping_vectors(a: T.Buffer((10,), "float32"), c: T.Buffer((10,), "float32")):
    for i, j in T.grid(5, 4):
        with T.sblock("vectors"):
            vi = T.axis.spatial(10, i * 2 + j)
            T.where(i * 2 + j < 10)
            c[vi] = a[vi] * T.float32(2)


@T.prim_func(s_tir=True)
def converted(a: T.Buffer((8,), "int32"), c: T.Buffer((8,), "float32")):
    for i in T.serial(8):
        with T.sblock("converted"):
            vi = T.axis.spatial(8, i)
            c[vi] = T.cast(a[vi], "float32")


@T.prim_func(s_tir=True)
def two_results(a: T.Buffer((8,), "float32"), c: T.Buffer((8,), "float32"), d: T.Buffer((8,), "float32")):
    for i in T.serial(8):
        with T.sblock("c"):
            vi = T.axis.spatial(8, i)
            c[vi] = a[vi] + T.float32(1)
    for i in T.serial(8):
        with T.sblock("d"):
            vi = T.axis.spatial(8, i)
            d[vi] = a[vi] + T.float32(2)


@T.prim_func(s_tir=True)
def concatenate(
    a: T.Buffer((1, 2, 4), "float32"), b: T.Buffer((1, 3, 4), "float32"), c: T.Buffer((1, 5, 4), "float32")
):
    for i, j, k in T.grid(1, 5, 4):
        with T.sblock("concatenate"):
            vi, vj, vk = T.axis.remap("SSS", [i, j, k])
            c[vi, vj, vk] = T.if_then_else(2 <= vj, b[vi, vj - 2, vk], a[vi, vj, vk])


@T.prim_func(s_tir=True)
def concatenate_inside(a: T.Buffer((2, 2), "float32"), b: T.Buffer((2, 3), "float32"), c: T.Buffer((2, 5), "float32")):
    for i, j in T.grid(2, 5):
        with T.sblock("concatenate"):
            vi, vj = T.axis.remap("SS", [i, j])
            c[vi, vj] = T.if_then_else(2 <= vj, b[vi, vj - 2], a[vi, vj])


@T.prim_func(s_tir=True)
def split(a: T.Buffer((1, 5, 4), "float32"), b: T.Buffer((1, 2, 4), "float32"), c: T.Buffer((1, 3, 4), "float32")):
    for i, j, k in T.grid(1, 2, 4):
        with T.sblock("first"):
            vi, vj, vk = T.axis.remap("SSS", [i, j, k])
            b[vi, vj, vk] = a[vi, vj, vk]
    for i, j, k in T.grid(1, 3, 4):
        with T.sblock("second"):
            vi, vj, vk = T.axis.remap("SSS", [i, j, k])
            c[vi, vj, vk] = a[vi, vj + 2, vk]


@T.prim_func(s_tir=True)
def every_other(a: T.Buffer((8, 4), "float32"), b: T.Buffer((4, 4), "float32")):
    for i, j in T.grid(4, 4):
        with T.sblock("slice"):
            vi, vj = T.axis.remap("SS", [i, j])
            b[vi, vj] = a[vi * 2, vj]


@T.prim_func(s_tir=True)
def slice_inside(a: T.Buffer((2, 8), "float32"), b: T.Buffer((2, 4), "float32")):
    for i, j in T.grid(2, 4):
        with T.sblock("slice"):
            vi, vj = T.axis.remap("SS", [i, j])
            b[vi, vj] = a[vi, vj + 4]


@T.prim_func(s_tir=True)
def slice_and_scale(a: T.Buffer((8, 4), "float32"), b: T.Buffer((4, 4), "float32")):
    for i, j in T.grid(4, 4):
        with T.sblock("slice"):
            vi, vj = T.axis.remap("SS", [i, j])
            b[vi, vj] = a[vi + 4, vj] * T.float32(2)


@T.prim_func(s_tir=True)
def opaque(a: T.Buffer((8,), "float32"), c: T.Buffer((8,), "float32")):
    for i in T.serial(8):
        with T.sblock("opaque"):
            vi = T.axis.spatial(8, i)
            T.reads(a[vi])
            T.writes(c[vi])
            T.evaluate(T.call_extern("int32", "touch", c.access_ptr("w")))
            c[vi] = a[vi]


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        (add, KernelAccess((2,), ((0, 2),))),
        (shifted, KernelAccess((1,))),
        (summed, KernelAccess((1,))),
        (two_stages, KernelAccess((1,))),
        (overlapping, KernelAccess((1,))),
        (again_and_again, KernelAccess((1,))),
        (vectors_with_remainder, KernelAccess((1,), ((0, 1),))),
        (overlapping_vectors, KernelAccess((1,))),
        (converted, KernelAccess((1,))),
        (two_results, KernelAccess((1, 2))),
        (concatenate, KernelAccess((2,), (), (0, 32), (), Joined(1, (0, 2)))),
        (concatenate_inside, KernelAccess((2,), joined=Joined(1, (0, 2)))),
        (split, KernelAccess((1, 2), (), (), (0, 32))),
        (every_other, KernelAccess((1,))),
        (slice_inside, KernelAccess((1,))),
        (slice_and_scale, KernelAccess((1,))),
        (opaque, KernelAccess((1,))),
    ],
    ids=lambda value: "" if isinstance(value, KernelAccess) else str(value.attrs["global_symbol"]),
)
def test_what_is_read_off(kernel: tvm.tirx.PrimFunc, expected: KernelAccess) -> None:
    assert kernel_access(kernel) == expected


def test_variant_computes_the_same_over_its_operand() -> None:
    variant = in_place_variant(add, 0, 2)
    assert len(variant.params) == 2
    a = np.random.default_rng(0).standard_normal((4, 8)).astype("float32")
    b = np.arange(8, dtype="float32")
    place = tvm.runtime.tensor(a)
    tvm.compile(variant.with_attr("global_symbol", "variant"), "llvm")["variant"](place, tvm.runtime.tensor(b))
    np.testing.assert_allclose(place.numpy(), a * a + b, rtol=1e-6)
