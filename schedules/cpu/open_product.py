"""Matrix products whose extents are only known at run time: register tiles over packed columns, in blocks of rows.

Rows that fill no register tile are computed by smaller tiles (of 4 rows and of 1), columns that fill no vector are
stored one by one: three versions of the inner loop in one kernel, among which two divisions a block of rows choose.
"""

from __future__ import annotations

# mypy: ignore-errors
# (the bodies are TVMScript, whose annotations are values)
from typing import Any

from tvm import tirx
from tvm.script import tirx as T

from tvm_ext.schedules.rule import RULE_ATTRIBUTE
from tvm_ext.schedules.simd.loops import SIMD_ATTRIBUTE

RULE = "cpu.open_product"
"""Stands as the schedule rule of these kernels: they are written as they should be."""

BLOCK_TILES = 16
"""Register tiles of rows in a task: their operands stay in the L2 cache while columns pass by."""

SMALL_ROWS = 4
"""Rows of the tiles that take what is left over."""

_DONE = {RULE_ATTRIBUTE: RULE, "tirx.is_scheduled": True, "tirx.noalias": True, "op_pattern": 8}


def open_product(tile: tuple[int, int], lanes: int, shared: bool, columns: int | None, dtype: str) -> tirx.PrimFunc:
    """Make the kernel ``out[b, m, n] = sum(data[b, m, k] * packed[b, n // lanes, k, n % lanes])``.

    Parameters
    ----------
    tile : tuple of int
        Rows and vectors of a register tile; chunks of columns are packed to a multiple of the second.
    lanes : int
        Elements of a vector.
    shared : bool
        All products have the same right operand.
    columns : int or None
        None if they are open.
    dtype : str

    Returns
    -------
    tvm.tirx.PrimFunc
        Arguments: data ``[b, m, k]``, packed ``[1 or b, chunks, k, lanes]``, result ``[b, m, n]``.
    """
    tile_rows, vectors = tile
    block = tile_rows * BLOCK_TILES
    whole = columns is not None and columns % (lanes * vectors) == 0
    zero = tirx.const(0, dtype)

    def compute(
        data: Any, packed: Any, out: Any, sums: Any, place: tuple[Any, Any, Any], first: Any, count: int
    ) -> None:
        """Compute ``count`` rows from ``first`` on of the columns of one tile."""
        batch, right, group = place
        reduction, last = data.shape[2], out.shape[2]
        with T.unroll(0, count) as i, T.unroll(0, vectors) as c, T.vectorized(0, lanes) as x:
            T.buffer_store(sums, zero, [i, c, x])
        with T.serial(0, reduction) as k:
            with T.unroll(0, count) as i, T.unroll(0, vectors) as c, T.vectorized(0, lanes) as x:
                weight = packed[right, group * vectors + c, k, x]
                T.buffer_store(sums, sums[i, c, x] + data[batch, first + i, k] * weight, [i, c, x])
        with T.unroll(0, count) as i, T.unroll(0, vectors) as c:
            column = (group * vectors + c) * lanes
            if whole:
                with T.vectorized(0, lanes) as x:
                    T.buffer_store(out, sums[i, c, x], [batch, first + i, column + x])
                return
            with T.If(column + lanes <= last):
                with T.Then(), T.vectorized(0, lanes) as x:
                    T.buffer_store(out, sums[i, c, x], [batch, first + i, column + x])
                with T.Else(), T.serial(T.int64(0), last - column, annotations={SIMD_ATTRIBUTE: lanes}) as x:
                    T.buffer_store(out, sums[i, c, x], [batch, first + i, column + x])

    @T.prim_func(private=True, s_tir=True)
    def product(data_handle: T.handle, packed_handle: T.handle, out_handle: T.handle) -> None:
        batch, rows, reduction, chunks, extent = T.int64(), T.int64(), T.int64(), T.int64(), T.int64()
        data = T.match_buffer(data_handle, (batch, rows, reduction), dtype)
        packed = T.match_buffer(packed_handle, (1 if shared else batch, chunks, reduction, lanes), dtype)
        out = T.match_buffer(out_handle, (batch, rows, extent if columns is None else columns), dtype)
        for task in T.parallel(batch * ((rows + (block - 1)) // block) * (chunks // vectors)):
            with T.sblock("product"):
                blocks = T.meta_var((rows + (block - 1)) // block)
                groups = T.meta_var(chunks // vectors)
                v = T.axis.spatial(batch * blocks * groups, task)
                sums = T.sblock_alloc_buffer((tile_rows, vectors, lanes), dtype, scope="local")
                b = T.meta_var(v // (blocks * groups))
                begin = T.meta_var(v // groups % blocks * block)
                left = T.meta_var(T.min(rows - begin, T.int64(block)))
                place = T.meta_var((b, T.int64(0) if shared else b, v % groups))
                rest = T.meta_var(left % tile_rows)
                for t in range(left // tile_rows):
                    compute(data, packed, out, sums, place, begin + t * tile_rows, tile_rows)
                for t in range(rest // SMALL_ROWS):
                    compute(
                        data,
                        packed,
                        out,
                        sums,
                        place,
                        begin + (left - rest) + t * SMALL_ROWS,
                        min(SMALL_ROWS, tile_rows),
                    )
                for t in range(rest % SMALL_ROWS):
                    compute(data, packed, out, sums, place, begin + (left - rest % SMALL_ROWS) + t, 1)

    return product.with_attrs(_DONE)


def open_packing(vectors: int, lanes: int, transposed: bool, dtype: str) -> tirx.PrimFunc:
    """Make the kernel that packs right operands; columns beyond the last are zero.

    Parameters
    ----------
    vectors : int
        The number of chunks is a multiple of it.
    lanes : int
        Columns of a chunk.
    transposed : bool
        The operand is ``[b, n, k]``, not ``[b, k, n]``.
    dtype : str

    Returns
    -------
    tvm.tirx.PrimFunc
        Arguments: the operand, the packed one ``[b, chunks, k, lanes]``.
    """
    zero = tirx.const(0, dtype)

    def element(source: Any, batch: Any, k: Any, column: Any) -> Any:
        return source[batch, column, k] if transposed else source[batch, k, column]

    @T.prim_func(private=True, s_tir=True)
    def packing(source_handle: T.handle, packed_handle: T.handle) -> None:
        batch, reduction, columns, chunks = T.int64(), T.int64(), T.int64(), T.int64()
        source = T.match_buffer(
            source_handle, (batch, columns, reduction) if transposed else (batch, reduction, columns), dtype
        )
        packed = T.match_buffer(packed_handle, (batch, chunks, reduction, lanes), dtype)
        for task in T.parallel(batch * chunks):
            with T.sblock("packing"):
                v = T.axis.spatial(batch * chunks, task)
                b, chunk = T.meta_var(v // chunks), T.meta_var(v % chunks)
                if chunk * lanes + lanes <= columns:
                    for k in range(reduction):
                        for x in T.vectorized(lanes):
                            packed[b, chunk, k, x] = element(source, b, k, chunk * lanes + x)
                else:
                    for k, x in T.grid(reduction, lanes):
                        packed[b, chunk, k, x] = T.if_then_else(
                            chunk * lanes + x < columns,
                            element(source, b, k, T.min(chunk * lanes + x, columns - 1)),
                            zero,
                        )

    return packing.with_attrs(_DONE)
