"""A user's own instructions on bfloat16 and float16, with sums in float32, tuned from end to end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import te
from tvm.s_tir import TensorIntrin
from tvm.s_tir import meta_schedule as ms
from tvm.script import tirx as T

from tests.embedding.test_instructions import FLAGS
from tests.embedding.test_sketches import module, product
from tvm_ext.backends.cpu.target import native_target
from tvm_ext.embedding.sketches import embedding_space
from tvm_ext.tuners import builder_and_runner

DOT = """
declare <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(<16 x float>, <32 x bfloat>, <32 x bfloat>)
define linkonce_odr <16 x float> @test_bfloat16_dot(
    <16 x float> %c, ptr %a, i32 %first_a, ptr %b, i32 %first_b) alwaysinline {
  %from_a = getelementptr inbounds bfloat, ptr %a, i32 %first_a
  %from_b = getelementptr inbounds bfloat, ptr %b, i32 %first_b
  %pair = load i32, ptr %from_a, align 2
  %first = insertelement <16 x i32> poison, i32 %pair, i32 0
  %pairs = shufflevector <16 x i32> %first, <16 x i32> poison, <16 x i32> zeroinitializer
  %left = bitcast <16 x i32> %pairs to <32 x bfloat>
  %right = load <32 x bfloat>, ptr %from_b, align 2
  %sum = call <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(<16 x float> %c, <32 x bfloat> %left, <32 x bfloat> %right)
  ret <16 x float> %sum
}
"""
"""TVM has no expression for vectors of bfloat16 as LLVM has them; copies that are not read by address are float32."""


def bfloat16_dot() -> tuple[Any, Any]:
    @T.prim_func(private=True, s_tir=True)
    def description(a: T.handle, b: T.handle, c: T.handle) -> None:
        A = T.match_buffer(a, (2,), "bfloat16", offset_factor=1)
        B = T.match_buffer(b, (16, 2), "bfloat16", offset_factor=1)
        C = T.match_buffer(c, (16,), "float32", offset_factor=1)
        with T.sblock("root"):
            T.reads(C[0:16], A[0:2], B[0:16, 0:2])
            T.writes(C[0:16])
            for i, k in T.grid(16, 2):
                with T.sblock("update"):
                    vi, vk = T.axis.remap("SR", [i, k])
                    C[vi] = C[vi] + T.Cast("float32", A[vk]) * T.Cast("float32", B[vi, vk])

    @T.prim_func(private=True, s_tir=True)
    def implementation(a: T.handle, b: T.handle, c: T.handle) -> None:
        A = T.match_buffer(a, (2,), "bfloat16", offset_factor=1)
        B = T.match_buffer(b, (16, 2), "bfloat16", offset_factor=1)
        C = T.match_buffer(c, (16,), "float32", offset_factor=1)
        with T.sblock("root"):
            T.reads(C[0:16], A[0:2], B[0:16, 0:2])
            T.writes(C[0:16])
            for _ in T.serial(1, annotations={"pragma_import_llvm": DOT}):
                C[T.Ramp(0, 1, 16)] = T.call_pure_extern(
                    "float32x16",
                    "test_bfloat16_dot",
                    C[T.Ramp(0, 1, 16)],
                    A.data,
                    A.elem_offset,
                    B.data,
                    B.elem_offset,
                )

    return description, implementation


def float16_rows() -> tuple[Any, Any]:
    @T.prim_func(private=True, s_tir=True)
    def description(a: T.handle, b: T.handle, c: T.handle) -> None:
        A = T.match_buffer(a, (2,), "float16", offset_factor=1)
        B = T.match_buffer(b, (2, 8), "float16", offset_factor=1)
        C = T.match_buffer(c, (8,), "float32", offset_factor=1)
        with T.sblock("root"):
            T.reads(C[0:8], A[0:2], B[0:2, 0:8])
            T.writes(C[0:8])
            for i, k in T.grid(8, 2):
                with T.sblock("update"):
                    vi, vk = T.axis.remap("SR", [i, k])
                    C[vi] = C[vi] + T.Cast("float32", A[vk]) * T.Cast("float32", B[vk, vi])

    @T.prim_func(private=True, s_tir=True)
    def implementation(a: T.handle, b: T.handle, c: T.handle) -> None:
        A = T.match_buffer(a, (2,), "float16", offset_factor=1)
        B = T.match_buffer(b, (2, 8), "float16", offset_factor=1)
        C = T.match_buffer(c, (8,), "float32", offset_factor=1)
        with T.sblock("root"):
            T.reads(C[0:8], A[0:2], B[0:2, 0:8])
            T.writes(C[0:8])
            for k in T.unroll(2):
                C[T.Ramp(0, 1, 8)] = C[T.Ramp(0, 1, 8)] + T.Broadcast(T.Cast("float32", A[k]), 8) * T.Cast(
                    "float32x8", B[k, T.Ramp(0, 1, 8)]
                )

    return description, implementation


def convolution(dtype: str) -> tvm.IRModule:
    """Three channels and 17 outputs, dilated, channels last."""
    data, weights = te.placeholder((1, 9, 9, 3), dtype), te.placeholder((3, 3, 3, 17), dtype)
    y, x, i = (te.reduce_axis((0, 3), name) for name in "yxi")
    out = te.compute(
        (1, 5, 5, 17),
        lambda n, h, w, o: te.sum(
            data[n, h + 2 * y, w + 2 * x, i].astype("float32") * weights[y, x, i, o].astype("float32"), [y, x, i]
        ),
        name="c",
    )
    return module(data, weights, out)


def expected(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    left, right = left.astype("float64"), right.astype("float64")
    if left.ndim == 2:
        return left @ right
    windows = [left[:, 2 * y : 2 * y + 5, 2 * x : 2 * x + 5] @ right[y, x] for y in range(3) for x in range(3)]
    return np.sum(windows, axis=0)


@pytest.mark.parametrize("shape", ["product", "convolution"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_an_instruction_of_the_user_is_tuned_with_and_results_are_right(dtype: str, shape: str, tmp_path: Path) -> None:
    if dtype == "bfloat16" and "avx512_bf16" not in FLAGS:
        pytest.skip("needs AVX-512 with bfloat16")
    name, parts = {
        "bfloat16": ("test.bfloat16_dot", bfloat16_dot), "float16": ("test.float16_rows", float16_rows)
    }[dtype]  # fmt: skip
    if TensorIntrin.get(name, allow_missing=True) is None:
        TensorIntrin.register(name, *parts())
    mod = product(17, 33, 31, (dtype, dtype, "float32")) if shape == "product" else convolution(dtype)
    builder, runner = builder_and_runner()
    database = ms.tune_tir(
        mod, native_target(), work_dir=str(tmp_path), max_trials_global=4, num_trials_per_iter=4, seed=3,
        cost_model="random", space=embedding_space(name), builder=builder, runner=runner,
    )  # fmt: skip
    schedules = []
    for record in database.get_all_tuning_records():
        assert float(record.run_secs[0]) < 1e9  # what could not be built or run has 1e10
        schedules.append(tvm.s_tir.Schedule(mod))
        record.trace.apply_to_schedule(schedules[-1], remove_postproc=False)
    assert schedules
    rng = np.random.default_rng(5)
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.float16
    shapes = [[int(extent) for extent in param.ty.shape] for param in mod["main"].params]
    left, right = (rng.integers(-8, 9, extents).astype(kind) for extents in shapes[:2])
    for schedule in schedules:
        assert "Tensorize" in str([str(step.kind.name) for step in schedule.trace.insts])
        tensors = [tvm.runtime.tensor(values) for values in (left, right, np.zeros(shapes[2], "float32"))]
        tvm.compile(schedule.mod, native_target())["main"](*tensors)
        np.testing.assert_array_equal(tensors[2].numpy(), expected(left, right))
