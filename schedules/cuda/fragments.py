"""Tensor intrinsics of the row ``cuda.mma.m16n8k16``: fragments of 16 x 16 in the registers of a warp.

Which lane holds which element is from the PTX ISA ("Matrix Fragments for mma.m16n8k16 with floating point type",
"ldmatrix"). Two instructions of 8 columns make a tile of 16 x 16, so that a fragment of any operand is loaded at once.
The descriptions are what the instructions mean; they are made when they are first asked for. In an implementation a
fragment is addressed as the registers of a lane, which :mod:`tvm_ext.schedules.cuda.registers` makes of it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from tvm.s_tir import TensorIntrin
from tvm.tirx import PrimFunc

SIDE = 16
"""Rows, columns and depth of a fragment."""


def rows_fragment(i: Any, k: Any) -> tuple[Any, Any]:
    """Give lane and place in the lane of the element in row ``i`` at depth ``k`` of the left factor."""
    return 4 * (i % 8) + (k % 8) // 2, 4 * (k // 8) + 2 * (i // 8) + k % 2


def columns_fragment(j: Any, k: Any) -> tuple[Any, Any]:
    """Give lane and place in the lane of the element in column ``j`` at depth ``k`` of the right factor."""
    return 4 * (j % 8) + (k % 8) // 2, 4 * (j // 8) + 2 * (k // 8) + k % 2


def result_fragment(i: Any, j: Any) -> tuple[Any, Any]:
    """Give lane and place in the lane of the element in row ``i`` and column ``j`` of the result."""
    return 4 * (i % 8) + (j % 8) // 2, 4 * (j // 8) + 2 * (i // 8) + j % 2


@lru_cache(maxsize=8)
def load_fragment(operand: str, deep: bool, dtype: str) -> str:
    """Register the load of a fragment from shared memory, and give its name.

    Parameters
    ----------
    operand : str
        ``"rows"`` or ``"columns"``.
    deep : bool
        Whether the depth is the last axis of the tile in shared memory; otherwise ``ldmatrix`` transposes.
    dtype : str
        ``"float16"`` or ``"bfloat16"``.
    """
    from tvm.script import tirx as T

    place = rows_fragment if operand == "rows" else columns_fragment

    def element(v0: Any, v1: Any) -> tuple[Any, Any]:
        return place(v0, v1) if deep else place(v1, v0)

    def offset(lane: Any, stride: Any) -> Any:
        # Lanes 8 n to 8 n + 7 give the rows of matrix n, of 8 x 8. The matrices go through the places of a lane in
        # order: for rows the second one is 8 rows on, the third 8 deeper; for columns the other way round.
        inner, second, third = lane % 8, lane % 16 // 8, lane // 16
        side, depth = (second, third) if operand == "rows" else (third, second)
        if deep:
            return (inner + 8 * side) * stride + 8 * depth
        return (inner + 8 * depth) * stride + 8 * side

    @T.prim_func(s_tir=True)
    def description(warp: T.handle, shared: T.handle) -> None:
        source = T.match_buffer(shared, (16, 16), dtype, align=64, offset_factor=8, scope="shared")
        target = T.match_buffer(warp, (32, 8), dtype, align=64, offset_factor=8, scope="warp")
        with T.sblock("root"):
            T.reads(source[0:16, 0:16])
            T.writes(target[0:32, 0:8])
            for i0, i1 in T.grid(16, 16):
                with T.sblock("load"):
                    v0, v1 = T.axis.remap("SS", [i0, i1])
                    lane, local = T.meta_var(element(v0, v1))
                    T.reads(source[v0, v1])
                    T.writes(target[lane, local])
                    target[lane, local] = source[v0, v1]

    @T.prim_func(s_tir=True)
    def implementation(warp: T.handle, shared: T.handle) -> None:
        stride, unit = T.int32(), T.int32()
        source = T.match_buffer(
            shared, (16, 16), dtype, align=64, offset_factor=8, scope="shared", strides=[stride, unit]
        )
        target = T.match_buffer(warp, (32, 8), dtype, align=64, offset_factor=8, scope="warp")
        with T.sblock("root"):
            T.reads(source[0:16, 0:16])
            T.writes(target[0:32, 0:8])
            for lane in T.thread_binding(0, 32, "threadIdx.x"):
                T.evaluate(
                    T.ptx_legacy.ldmatrix(
                        not deep, 4, ".b16", target.data, target.elem_offset,
                        source.access_ptr("r"), offset(lane, stride), dtype=dtype,
                    )
                )  # fmt: skip

    return _registered(f"tvm_ext.cuda.load_{operand}_{'deep' if deep else 'flat'}_{dtype}", description, implementation)


@lru_cache(maxsize=4)
def multiply_fragments(dtype: str, columns_first: bool) -> str:
    """Register the product of two fragments, added to a third in float32, and give its name.

    The same instruction has two descriptions, as a product is written with either factor first.
    """
    from tvm.script import tirx as T

    short = {"float16": "fp16", "bfloat16": "bf16"}[dtype]

    def first_element(i: Any, j: Any, k: Any) -> tuple[Any, Any]:
        return columns_fragment(j, k) if columns_first else rows_fragment(i, k)

    def second_element(i: Any, j: Any, k: Any) -> tuple[Any, Any]:
        return rows_fragment(i, k) if columns_first else columns_fragment(j, k)

    @T.prim_func(s_tir=True)
    def description(a: T.handle, b: T.handle, c: T.handle) -> None:
        first = T.match_buffer(a, (32, 8), dtype, align=64, offset_factor=8, scope="warp")
        second = T.match_buffer(b, (32, 8), dtype, align=64, offset_factor=8, scope="warp")
        result = T.match_buffer(c, (32, 8), "float32", align=64, offset_factor=8, scope="warp")
        with T.sblock("root"):
            T.reads(result[0:32, 0:8], first[0:32, 0:8], second[0:32, 0:8])
            T.writes(result[0:32, 0:8])
            for i, j, k in T.grid(16, 16, 16):
                with T.sblock("multiply"):
                    vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                    lane, local = T.meta_var(result_fragment(vi, vj))
                    left, left_local = T.meta_var(first_element(vi, vj, vk))
                    right, right_local = T.meta_var(second_element(vi, vj, vk))
                    T.reads(result[lane, local], first[left, left_local], second[right, right_local])
                    T.writes(result[lane, local])
                    result[lane, local] = result[lane, local] + T.Cast("float32", first[left, left_local]) * T.Cast(
                        "float32", second[right, right_local]
                    )

    def product(first: Any, second: Any, result: Any, half: int) -> Any:
        """Multiply with the first or the second eight columns."""
        rows, columns = (second, first) if columns_first else (first, second)
        return T.ptx_legacy.mma(
            "m16n8k16", "row", "col", short, short, "fp32",
            rows.data, rows.elem_offset, columns.data, columns.elem_offset + 4 * half,
            result.data, result.elem_offset + 4 * half, False, dtype="float32",
        )  # fmt: skip

    @T.prim_func(s_tir=True)
    def implementation(a: T.handle, b: T.handle, c: T.handle) -> None:
        first = T.match_buffer(a, (32, 8), dtype, align=64, offset_factor=8, scope="warp")
        second = T.match_buffer(b, (32, 8), dtype, align=64, offset_factor=8, scope="warp")
        result = T.match_buffer(c, (32, 8), "float32", align=64, offset_factor=8, scope="warp")
        with T.sblock("root"):
            T.reads(result[0:32, 0:8], first[0:32, 0:8], second[0:32, 0:8])
            T.writes(result[0:32, 0:8])
            for _lane in T.thread_binding(0, 32, "threadIdx.x"):
                T.evaluate(product(first, second, result, 0))
                T.evaluate(product(first, second, result, 1))

    return _registered(f"tvm_ext.cuda.mma_{dtype}_{columns_first}", description, implementation)


@lru_cache(maxsize=1)
def clear_fragment() -> str:
    """Register the filling of a result with zeros, and give its name."""
    from tvm.script import tirx as T

    @T.prim_func(s_tir=True)
    def description(c: T.handle) -> None:
        result = T.match_buffer(c, (32, 8), "float32", align=64, offset_factor=8, scope="warp")
        with T.sblock("root"):
            T.reads()
            T.writes(result[0:32, 0:8])
            for i, j in T.grid(16, 16):
                with T.sblock("clear"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    lane, local = T.meta_var(result_fragment(vi, vj))
                    T.reads()
                    T.writes(result[lane, local])
                    result[lane, local] = T.float32(0)

    @T.prim_func(s_tir=True)
    def implementation(c: T.handle) -> None:
        result = T.match_buffer(c, (32, 8), "float32", align=64, offset_factor=8, scope="warp")
        with T.sblock("root"):
            T.reads()
            T.writes(result[0:32, 0:8])
            for _lane in T.thread_binding(0, 32, "threadIdx.x"):
                T.evaluate(T.cuda.mma_fill_legacy(8, result.data, result.elem_offset, dtype="float32"))

    return _registered("tvm_ext.cuda.mma_clear", description, implementation)


def _registered(name: str, description: PrimFunc, implementation: PrimFunc) -> str:
    if TensorIntrin.get(name, allow_missing=True) is None:
        TensorIntrin.register(name, description, implementation)
    return name
