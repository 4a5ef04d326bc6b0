"""Matrix products whose extents are only known at run time: register tiles over packed columns, in blocks of rows.

Rows that fill no register tile are computed by smaller tiles (of 4 rows and of 1), columns that fill no vector are
stored by a part of one. What follows a product is computed as its tiles are stored.
"""

from __future__ import annotations

# mypy: ignore-errors
# (the bodies are TVMScript, whose annotations are values)
from collections.abc import Sequence
from typing import Any

import tvm
from tvm import tirx
from tvm.s_tir import ScheduleError
from tvm.script import tirx as script
from tvm.script.ir_builder import tirx as T
from tvm.tirx import PrimFunc

from tvm_ext.schedules.annotations import BATCH_AXES_ATTRIBUTE, TILE_ATTRIBUTE
from tvm_ext.schedules.compute.open_product import OPEN_PRODUCT
from tvm_ext.schedules.cpu.machine import Machine, machine_of
from tvm_ext.schedules.cpu.open_tiles import ZERO, Epilogue, check_tile, digits, kept, product, registers, tiles, whole
from tvm_ext.schedules.cpu.tasks import WORK_ATTRIBUTE
from tvm_ext.schedules.kernel.blocks import annotated_block, inline_epilogue, top_blocks
from tvm_ext.schedules.open_versions import Choice, OpenRule
from tvm_ext.schedules.rule import RULE_ATTRIBUTE, new_schedule
from tvm_ext.schedules.simd.loops import SIMD_ATTRIBUTE

RULE = "cpu.open_packing"
"""Stands as the schedule rule of kernels that pack: they are written as they should be."""

BLOCK_TILES = 16
"""Register tiles of rows in a task: their operands stay in the L2 cache while columns pass by."""

SMALL_ROWS = (4, 2, 1)
"""Rows of the tiles that take what is left over: a row alone takes as long as two, which read the weights once."""

MOST_ROWS = 16
"""Rows of a register tile: more of a single vector keep the multipliers no busier, and are more code."""

TILE_ROWS = (1, 2, 3, 4, 6, 8, 10, 12, 14, 16)
MOST_VECTORS = 8
TASK_TILES = (1, 4, 16, 64)
"""What a tuner may choose: rows and vectors of a register tile, and tiles in a task."""

_DONE = {RULE_ATTRIBUTE: RULE, "tirx.is_scheduled": True, "tirx.noalias": True, "op_pattern": 8}


class OpenProduct(OpenRule):
    """Write out a matrix product of open extents."""

    name = "cpu.open_product"

    def read(self, func: PrimFunc, target: tvm.target.Target) -> _Kernel | None:
        """Read such a product, and what is computed of its elements."""
        schedule = new_schedule(func)
        block = annotated_block(schedule, OPEN_PRODUCT)
        if block is None:
            return None
        try:
            store, _ = inline_epilogue(schedule, block)
        except ScheduleError:
            return None
        if len(top_blocks(schedule)) != 2:
            return None
        kernel = _Kernel(schedule.mod["main"], schedule.get(block), schedule.get(store), machine_of(target))
        return kernel if kernel.epilogue.fits() else None


class _Kernel:
    """Writes one kernel."""

    def __init__(self, func: PrimFunc, block: Any, store: Any, machine: Machine) -> None:
        self.func, self.machine = func, machine
        self.result = block.body.buffer
        self.elements = product(self.result.shape)
        self.epilogue = Epilogue(self.result, store)
        self.dtype = str(self.result.dtype)
        terms = block.body.value.b  # the result so far, and a product of two elements
        self.data, self.packed = terms.a.source, terms.b.source
        self.batch_axes = int(block.annotations[BATCH_AXES_ATTRIBUTE])
        self.tile = tuple(int(item) for item in block.annotations[TILE_ATTRIBUTE])
        _, self.chunks, self.reduction, lanes = self.packed.shape
        self.lanes = int(lanes)
        self.counts_rows = self.epilogue.counts_rows()

    def choices(self) -> list[Choice]:
        """List rows and vectors of a register tile, and the tiles of rows in a task."""
        rows, vectors = self.tile
        # Columns are packed in whole tiles of the planned width.
        widths = [width for width in range(1, MOST_VECTORS + 1) if self._divides(width)]
        return [(TILE_ROWS, min(rows, MOST_ROWS)), (widths, vectors), (TASK_TILES, BLOCK_TILES)]

    def _divides(self, vectors: int) -> bool:
        chunks = self.chunks if isinstance(self.chunks, tirx.IntImm) else self.tile[1]
        return int(chunks) % vectors == 0

    def check(self, picks: tuple[int, ...]) -> None:
        """Refuse a tile that the registers do not hold."""
        check_tile(*picks[:2], self.machine)

    def write(self, picks: tuple[int, ...]) -> None:
        """Emit the kernel with some choices."""
        self.rows, self.vectors, block_tiles = picks
        self.heights = (self.rows, *(count for count in SMALL_ROWS if count < self.rows))
        leading = list(self.result.shape[:-1])
        batch, rows = product(leading[: self.batch_axes]), product(leading[self.batch_axes :])
        block = self.rows * block_tiles
        groups = tirx.floordiv(self.chunks, whole(self.vectors))
        outer = [batch, tirx.floordiv(rows + (block - 1), whole(block)), groups]
        total = product(outer)
        with T.parallel(ZERO, total) as task, T.sblock("product"):
            number = T.axis.spatial(total, task)
            sums = [registers(self.vectors, self.lanes, dtype=self.dtype) for _ in range(self.rows)]
            # A sum of which only a part is stored: registers are no places in memory to read from.
            self.vector = registers(self.lanes, dtype=self.dtype)
            done = None
            if not self.epilogue.is_plain():
                done = T.sblock_alloc_buffer((self.rows, self.vectors, self.lanes), self.dtype)
            b, block_number, group = digits(number, outer)
            begin = block_number * block
            b, begin, left, group = kept([b, begin, tirx.min(rows - begin, whole(block)), group])
            tiles(begin, left, self.heights, lambda first, count: self._tile(sums, done, [b, first, group], count))

    def _tile(self, sums: Sequence[Any], done: Any, place: Sequence[Any], count: int) -> None:
        """Compute ``count`` rows of one product from one on, of the columns of one tile.

        An epilogue of functions is applied in a loop, to what the registers are copied to: it is long code.
        """
        batch, first, group = place
        right = ZERO if self.batch_axes == 0 else batch
        tile = [(i, c) for i in range(count) for c in range(self.vectors)]
        for i, c in tile:
            with T.vectorized(ZERO, whole(self.lanes)) as x:
                T.buffer_store(sums[i], tirx.const(0, self.dtype), [c, x])
        with T.serial(ZERO, self.reduction) as k:
            for i, c in tile:
                with T.vectorized(ZERO, whole(self.lanes)) as x:
                    weight = self.packed[right, group * self.vectors + c, k, x]
                    value = self.data[*self._numbered(batch, first + i), k]
                    T.buffer_store(sums[i], sums[i][c, x] + value * weight, [c, x])
        if done is None:
            for i, c in tile:
                self._store(sums[i], batch, first + i, group, c)
            return
        for i, c in tile:
            with T.vectorized(ZERO, whole(self.lanes)) as x:
                T.buffer_store(done, sums[i][c, x], [i, c, x])
        with T.serial(ZERO, whole(count)) as i:
            for c in range(self.vectors):
                self._store(done, batch, first + i, group, c, i)

    def _store(self, sums: Any, batch: Any, row: Any, group: Any, c: int, *at: Any) -> None:
        """Store a vector of a tile, or the part of it that columns are left for."""
        last = self.result.shape[-1]
        column = (group * self.vectors + c) * self.lanes
        index = self._row(batch, row)

        def vector() -> None:
            with T.vectorized(ZERO, whole(self.lanes)) as x:
                self.epilogue.store(sums[*at, c, x], [*index, column + x])

        def part(count: Any) -> None:
            with T.vectorized(ZERO, whole(self.lanes)) as x:
                T.buffer_store(self.vector, sums[*at, c, x], [x])
            with T.serial(ZERO, count, annotations={SIMD_ATTRIBUTE: self.lanes}) as x:
                self.epilogue.store(self.vector[x], [*index, column + x])

        # Of ``group``, which is read from memory, nothing is known that would keep the part inside of the vector.
        left: Any = tirx.max(tirx.min(last - column, whole(self.lanes - 1)), ZERO)
        if isinstance(last, tirx.IntImm):
            rest = int(last) % (self.lanes * self.vectors) - c * self.lanes  # columns for it in the last group
            if int(last) % (self.lanes * self.vectors) == 0 or rest >= self.lanes:
                vector()
                return
            if int(last) < self.lanes * self.vectors:
                if rest > 0:
                    part(whole(rest))
                return
            # A vector that is not whole is one of the last group, whose columns are a number.
            left = whole(max(rest, 0))
        with T.If(column + self.lanes <= last):
            with T.Then():
                vector()
            if not (isinstance(left, tirx.IntImm) and int(left) == 0):
                with T.Else():
                    part(left)

    def _numbered(self, batch: Any, row: Any) -> list[Any]:
        """Give the index of a row among all of the axes before the last, the axes before them being 0.

        Those axes lie one after the other in memory: the address is that of the row.
        """
        axes = len(self.result.shape) - 1
        if self.batch_axes == 0:
            return [*([ZERO] * (axes - 1)), row]
        return [*([ZERO] * (axes - 2)), batch, row]

    def _row(self, batch: Any, row: Any) -> list[Any]:
        """Give the index of a row as the epilogue takes it."""
        if self.counts_rows:
            return self._numbered(batch, row)
        leading = list(self.result.shape[:-1])
        before = digits(batch, leading[: self.batch_axes]) if self.batch_axes else []
        return [*before, *digits(row, leading[self.batch_axes :])]


def open_packing(vectors: int, lanes: int, transposed: bool, dtype: str, machine: Machine) -> tirx.PrimFunc:
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
    machine : Machine
        What it runs on; a small operand is packed by the calling thread alone.

    Returns
    -------
    tvm.tirx.PrimFunc
        Arguments: the operand, the packed one ``[b, chunks, k, lanes]``.
    """
    zero = tirx.const(0, dtype)
    seconds = 2 * tvm.DataType(dtype).bits / 8 / machine.stream_bandwidth  # an element read and written
    operations = max(1, round(seconds * lanes * machine.flops))

    def element(source: Any, batch: Any, k: Any, column: Any) -> Any:
        return source[batch, column, k] if transposed else source[batch, k, column]

    @script.prim_func(private=True, s_tir=True)
    def packing(source_handle: script.handle, packed_handle: script.handle) -> None:
        batch, reduction, columns, chunks = script.int64(), script.int64(), script.int64(), script.int64()
        source = script.match_buffer(
            source_handle, (batch, columns, reduction) if transposed else (batch, reduction, columns), dtype
        )
        packed = script.match_buffer(packed_handle, (batch, chunks, reduction, lanes), dtype)
        with script.attr(tirx.const(0, "int32"), WORK_ATTRIBUTE, batch * chunks * reduction * operations):
            for task in script.parallel(batch * chunks):
                with script.sblock("packing"):
                    v = script.axis.spatial(batch * chunks, task)
                    b, chunk = script.meta_var(v // chunks), script.meta_var(v % chunks)
                    if chunk * lanes + lanes <= columns:
                        for k in range(reduction):
                            for x in script.vectorized(lanes):
                                packed[b, chunk, k, x] = element(source, b, k, chunk * lanes + x)
                    else:
                        for k, x in script.grid(reduction, lanes):
                            packed[b, chunk, k, x] = script.if_then_else(
                                chunk * lanes + x < columns,
                                element(source, b, k, script.min(chunk * lanes + x, columns - 1)),
                                zero,
                            )

    return packing.with_attrs(_DONE)
