"""Images that are resized: what is taken of a row of the source is computed once for all rows of the result.

An element of an image that is resized by linear interpolation takes two elements of two rows each, from places that are
computed: four loads one by one. Two of them make an element of a row of the source that is as long as the result's, and
rows of that are joined in whole vectors. An image of twice the height takes half the loads so, with cubics an eighth.

before: ``y[c, i, j] = (x[c, p(i), q(j)] * u(j) + x[c, p(i), r(j)] * v(j)) * s(i) + (x[c, p(i) + 1, q(j)] * ...``
after:  ``for c: for k, j: row[k, j] = x[c, k, q(j)] * u(j) + x[c, k, r(j)] * v(j)``,
        ``for i, j: y[c, i, j] = row[p(i), j] * s(i) + row[p(i) + 1, j] * t(i)``
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir import Schedule
from tvm.tirx import IntImm, PrimFunc

from tvm_ext.relax_utils import substitute
from tvm_ext.schedules.cpu.cost import block_seconds
from tvm_ext.schedules.cpu.elementwise import vector_lanes
from tvm_ext.schedules.cpu.joined_rows import JoinedRows
from tvm_ext.schedules.cpu.machine import Machine, machine_of
from tvm_ext.schedules.cpu.tasks import share_out
from tvm_ext.schedules.divisors import divisors
from tvm_ext.schedules.kernel.inline import inline_producers
from tvm_ext.schedules.kernel.operations import data_parallel_blocks
from tvm_ext.schedules.kernel.row_values import RowValues, row_values
from tvm_ext.schedules.kernel.written_blocks import (
    data_parallel_axis,
    from_zero,
    number,
    written_block,
    written_loop,
    written_root,
)  # fmt: skip
from tvm_ext.schedules.rule import new_schedule
from tvm_ext.schedules.simd.vector import element_type
from tvm_ext.schedules.simd.widen import uses

PAYS = 0.75
"""Rows that are computed once, over those that are joined, up to which that takes less time."""

CACHE_PART = 2
"""Rows that are kept take one part in so many of the L2 cache."""

ROWS_AT_ONCE = 32
"""Rows up to which a vector of columns goes down before the next: more would leave the cache before it reads them."""


class Resampling:
    """Schedule a data-parallel kernel whose elements are joined of several rows, of elements from computed places."""

    name = "cpu.resampling"

    def apply(self, func: PrimFunc, target: tvm.target.Target, tunable: bool = False) -> Schedule | None:
        """Schedule ``func`` when it is such a kernel of known extents; nothing of it is tuned.

        Images that become smaller have rows joined first (:mod:`.joined_rows`).
        """
        schedule = new_schedule(func)
        if tunable or not data_parallel_blocks(schedule):
            return None
        blocks = inline_producers(schedule)
        if len(blocks) != 1:
            return None
        (block,) = blocks
        machine = machine_of(target)
        kernel = _kernel(schedule.get(block), vector_lanes(schedule, block, machine), machine)
        if kernel is None:
            return None
        seconds = block_seconds(schedule, block, machine)
        root = written_root(kernel.body(), [kernel.rows], schedule.mod["main"].body.block)
        made = new_schedule(schedule.mod["main"].with_body(root))
        outer = list(made.get_loops(made.get_sblock(kernel.block.name_hint)))[: kernel.outer_loops]
        share_out(made, outer, seconds, machine)
        return made


def _kernel(block: Any, lanes: int, machine: Machine) -> _Kernel | JoinedRows | None:
    """Plan the kernel of a block; None where it is none whose rows pay to be computed apart."""
    variables = [each.var for each in block.iter_vars]
    store = block.body
    if not isinstance(store, tirx.BufferStore) or len(store.indices) != len(variables):
        return None
    if not all(index.same_as(variable) for index, variable in zip(store.indices, variables, strict=True)):
        return None
    found = {axis: row_values(store.value, variable) for axis, variable in enumerate(variables[:-1])}
    for axis, values in found.items():
        if values is not None and (kernel := _Kernel(block, axis, values, lanes, machine)).fits():
            return kernel
    for axis, values in found.items():
        if values is not None and len(values.places) > 1:
            joined = JoinedRows.of(block, axis, values, lanes, machine)
            if joined is not None:
                return joined
    return None


class _Kernel:
    """Writes one kernel."""

    def __init__(self, block: Any, axis: int, found: RowValues, lanes: int, machine: Machine) -> None:
        self.block, self._axis, self._found, self._lanes = block, axis, found, lanes
        self._extents = [int(each.dom.extent) for each in block.iter_vars]
        self._outer = [number for number in range(len(self._extents) - 1) if number != axis]
        size = tvm.DataType(element_type(found.value)).bits // 8
        self._strip = self._columns(machine.l2 // CACHE_PART // size, machine.cores)
        self._strips = -(-self._extents[-1] // self._strip)
        shape = [*self._extents[:-1], self._strips * self._strip]
        shape[axis] = found.rows
        self.rows = tirx.decl_buffer([number(extent) for extent in shape], element_type(found.value), "rows")

    def fits(self) -> bool:
        """Whether to compute rows apart is possible and pays."""
        return self._pays() and self._reads_inside()

    @property
    def outer_loops(self) -> int:
        return len(self._outer) + 1

    def _columns(self, elements: int, cores: int) -> int:
        """Choose how many columns of the rows are kept at once: whole vectors, and pairs of them if not all."""
        width = self._extents[-1]
        whole = -(-width // self._lanes) * self._lanes
        parts = 1 if prod(self._extents[axis] for axis in self._outer) >= cores else cores
        most = min(elements // self._found.rows, -(-width // parts))
        pair = 2 * self._lanes
        return whole if most >= width else min(whole, max(pair, most // pair * pair))

    def _pays(self) -> bool:
        """Whether several rows are joined, their elements are loaded one by one, and there are few enough of them."""
        column = self.block.iter_vars[-1].var
        apart: list[bool] = []

        def load(node: Any) -> None:
            apart.extend(uses(index, column) and not index.same_as(column) for index in node.indices)

        tvm_ffi.structural_walk(self._found.value, [(tvm.ir.TensorLoad, load)])
        return (
            any(apart)
            and len(self._found.places) > 1
            and self._found.rows <= PAYS * len(self._found.places) * self._extents[self._axis]
        )

    def _reads_inside(self) -> bool:
        """Whether all rows are there that are joined, and all elements of rows, up to the end of the last vector."""
        analyzer = tvm.sym.Analyzer()
        for each in self.block.iter_vars:
            analyzer.bind(each.var, each.dom)

        def is_inside(index: Any, extent: Any) -> bool:
            bound = analyzer.const_int_bound(index)
            return isinstance(extent, IntImm) and bound.min_value >= 0 and bound.max_value < int(extent)

        if not all(is_inside(place, number(self._found.rows)) for place in self._found.places):
            return False
        wide = from_zero(self._strips * self._strip)
        analyzer.bind(self.block.iter_vars[-1].var, wide, allow_override=True)
        analyzer.bind(self._found.row, from_zero(self._found.rows))
        inside: list[bool] = []

        def load(node: Any) -> None:
            inside.extend(map(is_inside, node.indices, node.source.ty.shape))

        tvm_ffi.structural_walk(self._found.value, [(tvm.ir.TensorLoad, load)])
        return all(inside)

    def body(self) -> Any:
        """Write the loops of both blocks."""
        loops = [tvm.ir.Var(f"i{axis}", self.block.iter_vars[axis].var.ty) for axis in self._outer]
        strip = tvm.ir.Var("strip", self.block.iter_vars[-1].var.ty)
        body: Any = tirx.SeqStmt([self._of_rows(loops, strip), self._of_elements(loops, strip)])
        body = written_loop(strip, self._strips, body)
        for variable, axis in reversed(list(zip(loops, self._outer, strict=True))):
            body = written_loop(variable, self._extents[axis], body)
        return body

    def _of_rows(self, loops: Sequence[Any], strip: Any) -> Any:
        part = max(size for size in divisors(self._found.rows) if size <= ROWS_AT_ONCE)
        group, row, vector, lane = (tvm.ir.Var(name, strip.ty) for name in ("group", "row", "vector", "lane"))
        block = self.block
        axes = [tvm.ir.Var(each.var.name, each.var.ty) for each in block.iter_vars]
        renamed = {each.var: axis for each, axis in zip(block.iter_vars, axes, strict=True)}
        value = substitute(self._found.value, {**renamed, self._found.row: axes[self._axis]})
        places = self._values(loops, group * part + row, strip * self._strip + vector * self._lanes + lane)
        made = list(map(data_parallel_axis, self.rows.ty.shape, axes))
        body: Any = written_block("rows", made, places, self.rows, value)
        body = written_loop(lane, self._lanes, body, self._lanes)
        body = written_loop(vector, self._strip // self._lanes, written_loop(row, part, body))
        return written_loop(group, self._found.rows // part, body)

    def _of_elements(self, loops: Sequence[Any], strip: Any) -> Any:
        block = self.block
        variables = [each.var for each in block.iter_vars]

        def element(place: Any) -> Any:
            indices = [place if number == self._axis else variable for number, variable in enumerate(variables)]
            return tirx.BufferLoad(self.rows, indices)

        value = self._found.join(element)
        row, column = (tvm.ir.Var(name, strip.ty) for name in ("row", "column"))
        width = self._extents[-1]
        place = strip * self._strip + column
        inside = None if self._strips == 1 or width % self._strip == 0 else place < width
        places = self._values(loops, row, place)
        body: Any = written_block(block.name_hint, block.iter_vars, places, block.body.buffer, value, inside)
        body = written_loop(column, width if self._strips == 1 else self._strip, body, self._lanes)
        return written_loop(row, self._extents[self._axis], body)

    def _values(self, loops: Sequence[Any], row: Any, column: Any) -> list[Any]:
        outer = dict(zip(self._outer, loops, strict=True))
        return [outer.get(axis, row) for axis in range(len(self._extents) - 1)] + [column]
