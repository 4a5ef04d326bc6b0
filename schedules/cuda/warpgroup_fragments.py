"""Tensor intrinsics of the rows ``cuda.wgmma``: four warps multiply 64 rows with up to 256 columns, 16 deep.

Both factors are read from shared memory. A row of 128 bytes is stored as eight pieces of 16 bytes, in the order
``piece ^ (row % 8)``, so that no column of pieces meets a bank twice (the PTX ISA's "128-Byte swizzling"); tiles are
described here without that order, which :mod:`tvm_ext.backends.cuda.warpgroup_steps` puts in. What one warp has of an
instruction is its 16 rows: a description is of those, and the instruction finds the tile of all four warps from there.
Which lane holds which element of the result is as with ``mma.sync`` ("Register Fragments for wgmma.mma_async").
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from tvm import tirx

from tvm_ext.schedules.cuda.fragments import SIDE, registered, result_fragment

GROUP_ROWS, GROUP_WARPS = 64, 4
"""Rows of an instruction, and warps that share it."""

ROW = 64
"""Elements of 16 bits in a row of 128 bytes of shared memory: the depth of a tile, or neighbours at one depth."""

PREFIX = "tvm_ext_wgmma"

_TYPES = {"float16": "f16", "bfloat16": "bf16"}


def call_name(columns: int, dtype: str, rows_deep: bool, columns_deep: bool) -> str:
    """Name the device function of an instruction."""
    kinds = "".join("d" if deep else "f" for deep in (rows_deep, columns_deep))
    return f"{PREFIX}_{columns}_{dtype}_{kinds}"


def read_name(name: str) -> tuple[int, str, bool, bool]:
    """Give columns, element type, and whether rows and columns are stored along their depth, of a device function."""
    columns, dtype, kinds = name.removeprefix(f"{PREFIX}_").split("_")
    return int(columns), dtype, kinds[0] == "d", kinds[1] == "d"


def device_function(name: str) -> str:
    """Write the device function of an instruction.

    Its arguments are the first sum of a lane, and the addresses of a warp's rows and of the columns, as they would be
    in shared memory without the order of pieces: both begin in the first of eight rows of 128 bytes.
    """
    columns, dtype, rows_deep, columns_deep = read_name(name)
    count = columns // 2
    sums = ", ".join(f"%{number}" for number in range(count))
    operands = ", ".join(f'"+f"(sums[{number}])' for number in range(count))
    kind = _TYPES[dtype]
    # A warp's rows are 16 rows of 128 bytes, or 16 neighbours of 2 bytes in each of them, behind the previous warp's.
    step = SIDE * 128 if rows_deep else SIDE * 2
    return f"""
__device__ __forceinline__ unsigned long long {name}_tile(unsigned int address, int deep) {{
  // 128-byte swizzle; eight rows take 1024 bytes, and 64 neighbours at all depths of a tile 8192.
  return ((unsigned long long)((address & 0x3FFFF) >> 4)) | ((unsigned long long)(deep ? 1 : 512) << 16)
      | (64ull << 32) | (1ull << 62);
}}
__device__ __forceinline__ void {name}(float* sums, const void* rows, const void* columns) {{
  unsigned int first = (unsigned int)__cvta_generic_to_shared(rows) - (threadIdx.y & 3) * {step};
  unsigned long long a = {name}_tile(first, {int(rows_deep)});
  unsigned long long b = {name}_tile((unsigned int)__cvta_generic_to_shared(columns), {int(columns_deep)});
  asm volatile("{{\\n.reg .pred add;\\nsetp.ne.b32 add, 1, 0;\\n"
      "wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{kind}.{kind} {{{sums}}}, %{count}, %{count + 1}, add, 1, 1, "
      "{int(not rows_deep)}, {int(not columns_deep)};\\n}}\\n" : {operands} : "l"(a), "l"(b));
}}
"""


def arrive_function(columns: int) -> str:
    """Write the device function that waits for all products of a warpgroup and hands its sums on."""
    return f"""
__device__ __forceinline__ void {PREFIX}_sums_{columns}(float* sums) {{
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
  for (int i = 0; i < {columns}; ++i) asm volatile("" : "+f"(sums[i]) :: "memory");
}}
"""


@lru_cache(maxsize=32)
def multiply_shared(columns: int, dtype: str, rows_deep: bool, columns_deep: bool, columns_first: bool) -> str:
    """Register the product of a warp's rows with ``columns`` columns, added to the sums, and give its name.

    Parameters
    ----------
    columns : int
        A multiple of 16; of columns that are not ``deep`` one of 64.
    dtype : str
        ``"float16"`` or ``"bfloat16"``.
    rows_deep, columns_deep : bool
        Whether the depth is the last axis of the tile in shared memory.
    columns_first : bool
        Whether the product is written with the columns as its first factor.
    """
    from tvm.script import tirx as T

    name = call_name(columns, dtype, rows_deep, columns_deep)
    rows_shape = (SIDE, SIDE)
    columns_shape = (columns, SIDE) if columns_deep else (columns // ROW, SIDE, ROW)
    shapes = (columns_shape, rows_shape) if columns_first else (rows_shape, columns_shape)

    def row_place(i: Any, k: Any) -> Any:
        return (i, k) if rows_deep else (k, i)

    def column_place(j: Any, k: Any) -> Any:
        return (j, k) if columns_deep else (j // ROW, k, j % ROW)

    def first_place(i: Any, j: Any, k: Any) -> Any:
        return column_place(j, k) if columns_first else row_place(i, k)

    def second_place(i: Any, j: Any, k: Any) -> Any:
        return row_place(i, k) if columns_first else column_place(j, k)

    def whole(buffer: Any) -> Any:
        return buffer[tuple(slice(0, extent) for extent in buffer.shape)]

    @T.prim_func(s_tir=True)
    def description(a: T.handle, b: T.handle, c: T.handle) -> None:
        first = T.match_buffer(a, shapes[0], dtype, align=64, offset_factor=SIDE, scope="shared.dyn")
        second = T.match_buffer(b, shapes[1], dtype, align=64, offset_factor=SIDE, scope="shared.dyn")
        result = T.match_buffer(c, (columns // SIDE, 32, 8), "float32", align=64, offset_factor=8, scope="warp")
        with T.sblock("root"):
            T.reads(result[0 : columns // SIDE, 0:32, 0:8], whole(first), whole(second))
            T.writes(result[0 : columns // SIDE, 0:32, 0:8])
            for i, j, k in T.grid(SIDE, columns, SIDE):
                with T.sblock("multiply"):
                    vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                    lane, local = T.meta_var(result_fragment(vi, vj % SIDE))
                    left = T.meta_var(first_place(vi, vj, vk))
                    right = T.meta_var(second_place(vi, vj, vk))
                    T.reads(result[vj // SIDE, lane, local], first[left], second[right])
                    T.writes(result[vj // SIDE, lane, local])
                    result[vj // SIDE, lane, local] = result[vj // SIDE, lane, local] + T.Cast(
                        "float32", first[left]
                    ) * T.Cast("float32", second[right])

    def call(first: Any, second: Any, result: Any) -> Any:
        rows, others = (second, first) if columns_first else (first, second)
        sums = T.tvm_access_ptr(T.type_annotation("float32"), result.data, result.elem_offset, columns // 2, 3)
        return T.cuda.func_call(
            name, sums, rows.access_ptr("r"), others.access_ptr("r"), source_code=device_function(name)
        )

    def strides(shape: tuple[int, ...]) -> list[Any]:
        return [tirx.Var(f"stride{axis}", "int32") for axis in range(len(shape))]

    @T.prim_func(s_tir=True)
    def implementation(a: T.handle, b: T.handle, c: T.handle) -> None:
        first = T.match_buffer(
            a, shapes[0], dtype, align=64, offset_factor=SIDE, scope="shared.dyn", strides=strides(shapes[0])
        )
        second = T.match_buffer(
            b, shapes[1], dtype, align=64, offset_factor=SIDE, scope="shared.dyn", strides=strides(shapes[1])
        )
        result = T.match_buffer(c, (columns // SIDE, 32, 8), "float32", align=64, offset_factor=8, scope="warp")
        with T.sblock("root"):
            T.reads(result[0 : columns // SIDE, 0:32, 0:8], whole(first), whole(second))
            T.writes(result[0 : columns // SIDE, 0:32, 0:8])
            for _lane in T.thread_binding(0, 32, "threadIdx.x"):
                T.evaluate(call(first, second, result))

    return registered(f"tvm_ext.cuda.{name}_{columns_first}", description, implementation)


def control_function(kind: str) -> str:
    """Write the device function that begins products, ends a group of them, waits, or shows copies to them.

    Parameters
    ----------
    kind : str
        A key of :data:`CONTROL`.
    """
    return (
        f"\n__device__ __forceinline__ void {PREFIX}_{kind}() {{\n"
        f'  asm volatile("{CONTROL[kind]};" ::: "memory");\n}}\n'
    )


CONTROL = {
    "begin": "wgmma.fence.sync.aligned",
    "commit": "wgmma.commit_group.sync.aligned",
    "wait1": "wgmma.wait_group.sync.aligned 1",
    "visible": "fence.proxy.async.shared::cta",
}
"""Instructions around products: before the first that adds to sums; behind those that are waited for together; all but
the last such group is done; what this thread stored to shared memory is seen by products."""
