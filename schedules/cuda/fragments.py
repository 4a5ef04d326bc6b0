"""Tensor intrinsics of the rows ``cuda.mma``: fragments in the registers of a warp, 32 bytes deep and 16 wide.

Which lane holds which element is from the PTX ISA ("Matrix Fragments for mma.m16n8k16 with floating point type",
"mma.m16n8k32", "mma.m16n8k8", "ldmatrix"), of which the formulas here are one: a register of four bytes has neighbours
in depth. Two instructions of 8 columns make a tile of 16 x 16, so that a fragment of any operand is loaded at once.
The descriptions are what the instructions mean; they are made when they are first asked for. In an implementation a
fragment is addressed as the registers of a lane, which :mod:`tvm_ext.schedules.cuda.registers` makes of it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from tvm import tirx
from tvm.s_tir import TensorIntrin
from tvm.tirx import PrimFunc

from tvm_ext.schedules.cuda.blocks import element_bytes

SIDE = 16
"""Rows and columns of a fragment."""

_NAMES = {"float16": "fp16", "bfloat16": "bf16", "float32": "tf32", "int8": "int8", "uint8": "uint8"}
"""Element types by the names that TVM has for those of ``mma``."""


def fragment_depth(dtype: str) -> int:
    """Elements of a fragment in depth: 32 bytes."""
    return 32 // element_bytes(dtype)


def result_type(dtype: str) -> str:
    """Type of the sums of products of a type."""
    return "int32" if dtype in ("int8", "uint8") else "float32"


def rows_fragment(i: Any, k: Any, per: int = 2) -> tuple[Any, Any]:
    """Give lane and place in the lane of the element in row ``i`` at depth ``k`` of the left factor.

    ``per`` is the number of elements in a register.
    """
    return 4 * (i % 8) + (k % (4 * per)) // per, 2 * per * (k // (4 * per)) + per * (i // 8) + k % per


def columns_fragment(j: Any, k: Any, per: int = 2) -> tuple[Any, Any]:
    """Give lane and place in the lane of the element in column ``j`` at depth ``k`` of the right factor."""
    return 4 * (j % 8) + (k % (4 * per)) // per, 2 * per * (j // 8) + per * (k // (4 * per)) + k % per


def result_fragment(i: Any, j: Any, per: int = 2) -> tuple[Any, Any]:
    """Give lane and place in the lane of the element in row ``i`` and column ``j`` of the result, of four bytes."""
    return 4 * (i % 8) + (j % 8) // 2, 4 * (j // 8) + 2 * (i // 8) + j % 2


@lru_cache(maxsize=16)
def load_fragment(operand: str, deep: bool, dtype: str) -> str:
    """Register the load of a fragment from shared memory, and give its name.

    Parameters
    ----------
    operand : str
        ``"rows"`` or ``"columns"``.
    deep : bool
        Whether the depth is the last axis of the tile in shared memory; otherwise ``ldmatrix`` transposes, which it
        does for elements of 16 bits only.
    dtype : str
        ``"float16"``, ``"bfloat16"``, ``"float32"`` (as tf32), ``"int8"`` or ``"uint8"``.
    """
    from tvm.script import tirx as T

    place = rows_fragment if operand == "rows" else columns_fragment
    depth = fragment_depth(dtype)
    per, half, places = depth // 8, depth // 2, depth // 2
    extents = (SIDE, depth) if deep else (depth, SIDE)

    def element(v0: Any, v1: Any) -> tuple[Any, Any]:
        return place(v0, v1, per) if deep else place(v1, v0, per)

    def offset(lane: Any, stride: Any) -> Any:
        # Lanes 8 n to 8 n + 7 give the rows of matrix n, of 8 x 16 bytes. The matrices go through the places of a lane
        # in order: for rows the second one is 8 rows on, the third 16 bytes deeper; for columns the other way round.
        inner, second, third = lane % 8, lane % 16 // 8, lane // 16
        side, deeper = (second, third) if operand == "rows" else (third, second)
        if deep:
            return (inner + 8 * side) * stride + half * deeper
        return (inner + half * deeper) * stride + 8 * side

    @T.prim_func(s_tir=True)
    def description(warp: T.handle, shared: T.handle) -> None:
        source = T.match_buffer(shared, extents, dtype, align=64, offset_factor=half, scope="shared.dyn")
        target = T.match_buffer(warp, (32, places), dtype, align=64, offset_factor=places, scope="warp")
        with T.sblock("root"):
            T.reads(source[0 : extents[0], 0 : extents[1]])
            T.writes(target[0:32, 0:places])
            for i0, i1 in T.grid(*extents):
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
            shared, extents, dtype, align=64, offset_factor=half, scope="shared.dyn", strides=[stride, unit]
        )
        target = T.match_buffer(warp, (32, places), dtype, align=64, offset_factor=places, scope="warp")
        with T.sblock("root"):
            T.reads(source[0 : extents[0], 0 : extents[1]])
            T.writes(target[0:32, 0:places])
            for lane in T.thread_binding(0, 32, "threadIdx.x"):
                T.evaluate(
                    T.ptx_legacy.ldmatrix(
                        not deep, 4, ".b16", target.data, target.elem_offset,
                        source.access_ptr("r"), offset(lane, stride), dtype=dtype,
                    )
                )  # fmt: skip

    return registered(f"tvm_ext.cuda.load_{operand}_{'deep' if deep else 'flat'}_{dtype}", description, implementation)


@lru_cache(maxsize=16)
def multiply_fragments(first_type: str, second_type: str, columns_first: bool) -> str:
    """Register the product of two fragments, added to a third, and give its name.

    The same instruction has two descriptions, as a product is written with either factor first. Operands of 8 bits may
    be of different types.
    """
    from tvm.script import tirx as T

    depth, total = fragment_depth(first_type), result_type(first_type)
    per, places = depth // 8, depth // 2
    shape = f"m16n8k{depth}"

    def first_element(i: Any, j: Any, k: Any) -> tuple[Any, Any]:
        return columns_fragment(j, k, per) if columns_first else rows_fragment(i, k, per)

    def second_element(i: Any, j: Any, k: Any) -> tuple[Any, Any]:
        return rows_fragment(i, k, per) if columns_first else columns_fragment(j, k, per)

    def wide(factor: Any) -> Any:
        return factor if first_type == total else T.Cast(total, factor)

    @T.prim_func(s_tir=True)
    def description(a: T.handle, b: T.handle, c: T.handle) -> None:
        first = T.match_buffer(a, (32, places), first_type, align=64, offset_factor=places, scope="warp")
        second = T.match_buffer(b, (32, places), second_type, align=64, offset_factor=places, scope="warp")
        result = T.match_buffer(c, (32, 8), total, align=64, offset_factor=8, scope="warp")
        with T.sblock("root"):
            T.reads(result[0:32, 0:8], first[0:32, 0:places], second[0:32, 0:places])
            T.writes(result[0:32, 0:8])
            for i, j, k in T.grid(16, 16, depth):
                with T.sblock("multiply"):
                    vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                    lane, local = T.meta_var(result_fragment(vi, vj))
                    left, left_local = T.meta_var(first_element(vi, vj, vk))
                    right, right_local = T.meta_var(second_element(vi, vj, vk))
                    T.reads(result[lane, local], first[left, left_local], second[right, right_local])
                    T.writes(result[lane, local])
                    result[lane, local] = result[lane, local] + wide(first[left, left_local]) * wide(
                        second[right, right_local]
                    )

    def product(first: Any, second: Any, result: Any, half: int) -> Any:
        """Multiply with the first or the second eight columns."""
        rows, columns = (second, first) if columns_first else (first, second)
        types = (second_type, first_type) if columns_first else (first_type, second_type)
        return T.ptx_legacy.mma(
            shape, "row", "col", _NAMES[types[0]], _NAMES[types[1]], {"float32": "fp32"}.get(total, total),
            rows.data, rows.elem_offset, columns.data, columns.elem_offset + places // 2 * half,
            result.data, result.elem_offset + 4 * half, False, dtype=total,
        )  # fmt: skip

    @T.prim_func(s_tir=True)
    def implementation(a: T.handle, b: T.handle, c: T.handle) -> None:
        first = T.match_buffer(a, (32, places), first_type, align=64, offset_factor=places, scope="warp")
        second = T.match_buffer(b, (32, places), second_type, align=64, offset_factor=places, scope="warp")
        result = T.match_buffer(c, (32, 8), total, align=64, offset_factor=8, scope="warp")
        with T.sblock("root"):
            T.reads(result[0:32, 0:8], first[0:32, 0:places], second[0:32, 0:places])
            T.writes(result[0:32, 0:8])
            for _lane in T.thread_binding(0, 32, "threadIdx.x"):
                T.evaluate(product(first, second, result, 0))
                T.evaluate(product(first, second, result, 1))

    return registered(f"tvm_ext.cuda.mma_{first_type}_{second_type}_{columns_first}", description, implementation)


@lru_cache(maxsize=2)
def clear_fragment(dtype: str) -> str:
    """Register the filling of a result with zeros, and give its name."""
    from tvm.script import tirx as T

    zero = tirx.const(0, dtype)

    @T.prim_func(s_tir=True)
    def description(c: T.handle) -> None:
        result = T.match_buffer(c, (32, 8), dtype, align=64, offset_factor=8, scope="warp")
        with T.sblock("root"):
            T.reads()
            T.writes(result[0:32, 0:8])
            for i, j in T.grid(16, 16):
                with T.sblock("clear"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    lane, local = T.meta_var(result_fragment(vi, vj))
                    T.reads()
                    T.writes(result[lane, local])
                    result[lane, local] = zero

    @T.prim_func(s_tir=True)
    def implementation(c: T.handle) -> None:
        result = T.match_buffer(c, (32, 8), dtype, align=64, offset_factor=8, scope="warp")
        with T.sblock("root"):
            T.reads()
            T.writes(result[0:32, 0:8])
            for _lane in T.thread_binding(0, 32, "threadIdx.x"):
                T.evaluate(T.cuda.mma_fill_legacy(8, result.data, result.elem_offset, dtype=dtype))

    return registered(f"tvm_ext.cuda.mma_clear_{dtype}", description, implementation)


def registered(name: str, description: PrimFunc, implementation: PrimFunc) -> str:
    """Register a tensor intrinsic, unless there is one of the name; gives the name."""
    if TensorIntrin.get(name, allow_missing=True) is None:
        TensorIntrin.register(name, description, implementation)
    return name
