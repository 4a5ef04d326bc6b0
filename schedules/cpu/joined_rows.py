"""Images that become smaller: rows of the source are joined before elements of the joined row are.

before: ``y[c, i, j] = (x[c, p(i), q(j)] * u(j) + x[c, p(i), r(j)] * v(j)) * s(i) + (x[c, p(i) + 1, q(j)] * ...``
after:  ``for c: for i, k: row[i, k] = x[c, p(i), k] * s(i) + x[c, p(i) + 1, k] * t(i)``,
        ``for j, i: y[c, i, j] = row[i, q(j)] * u(j) + row[i, r(j)] * v(j)``

Rows are joined in whole vectors, which leaves half of the elements that are loaded one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from tvm_ext.relax_utils import substitute
from tvm_ext.schedules.cpu.machine import Machine
from tvm_ext.schedules.divisors import divisors
from tvm_ext.schedules.kernel.row_values import RowValues, row_values, with_rows_joined_first
from tvm_ext.schedules.kernel.written_blocks import data_parallel_axis, number, written_block, written_loop
from tvm_ext.schedules.simd.vector import element_type
from tvm_ext.schedules.simd.widen import uses

WIDEST = 4
"""Elements of a joined row for one of the result up to which joining whole rows pays."""

FEWEST_ROWS = 4
"""Rows of the result for which a vector's places and weights are computed, at least."""

CACHE_PART = 4
"""Joined rows that are kept take one part in so many of the L2 cache."""


class JoinedRows:
    """Writes a kernel that joins rows first.

    Parameters
    ----------
    block : tvm.s_tir.SBlock
        The block of the result.
    axis : int
        The axis of rows.
    found : RowValues
        What an element takes of several places of a joined row.
    part : int
        How many rows of the result are joined before their elements are.
    lanes : int
        Of vectors.
    """

    def __init__(self, block: Any, axis: int, found: RowValues, part: int, lanes: int) -> None:
        self.block, self._axis, self._found, self._part, self._lanes = block, axis, found, part, lanes
        self._extents = [int(each.dom.extent) for each in block.iter_vars]
        self._outer = [number for number in range(len(self._extents) - 1) if number != axis]
        shape = [number(extent) for extent in (*self._extents[:-1], found.rows)]
        self.rows = tirx.decl_buffer(shape, element_type(found.value), "rows")

    @classmethod
    def of(cls, block: Any, axis: int, found: RowValues, lanes: int, machine: Machine) -> JoinedRows | None:
        """Plan to join rows first; None where that is not possible or does not pay.

        Parameters
        ----------
        found : RowValues
            What an element takes of several rows, as it stands.
        """
        column = block.iter_vars[-1].var
        turned = with_rows_joined_first(found)
        columns = None if turned is None else row_values(turned, column)
        if columns is None or len(columns.places) < 2 or not _reads_in_order(columns):
            return None
        width, height = int(block.iter_vars[-1].dom.extent), int(block.iter_vars[axis].dom.extent)
        size = tvm.DataType(element_type(columns.value)).bits // 8
        most = machine.l2 // CACHE_PART // (size * columns.rows)
        part = max((divisor for divisor in divisors(height) if divisor <= most), default=1)
        if columns.rows > WIDEST * width or part < min(FEWEST_ROWS, height) or width < lanes:
            return None
        return cls(block, axis, columns, part, lanes)

    @property
    def outer_loops(self) -> int:
        """How many loops are around both blocks."""
        return len(self._outer) + 1

    def body(self) -> Any:
        """Write the loops of both blocks."""
        block = self.block
        index = block.iter_vars[-1].var.ty
        loops = [tvm.ir.Var(f"i{axis}", index) for axis in self._outer]
        group = tvm.ir.Var("group", index)
        body: Any = tirx.SeqStmt([self._of_rows(loops, group), self._of_elements(loops, group)])
        body = written_loop(group, self._extents[self._axis] // self._part, body)
        for variable, axis in reversed(list(zip(loops, self._outer, strict=True))):
            body = written_loop(variable, self._extents[axis], body)
        return body

    def _of_rows(self, loops: Sequence[Any], group: Any) -> Any:
        block = self.block
        row, column = (tvm.ir.Var(name, group.ty) for name in ("row", "column"))
        axes = [tvm.ir.Var(each.var.name, each.var.ty) for each in block.iter_vars]
        renamed = {each.var: axis for each, axis in zip(block.iter_vars, axes, strict=True)}
        value = substitute(self._found.value, {**renamed, self._found.row: axes[-1]})
        made = list(map(data_parallel_axis, self.rows.ty.shape, axes))
        values = self._values(loops, group * self._part + row, column)
        body = written_block("rows", made, values, self.rows, value)
        return written_loop(row, self._part, written_loop(column, self._found.rows, body, self._lanes))

    def _of_elements(self, loops: Sequence[Any], group: Any) -> Any:
        block, width = self.block, self._extents[-1]
        row, vector, lane = (tvm.ir.Var(name, group.ty) for name in ("row", "vector", "lane"))
        variables = [each.var for each in block.iter_vars]
        value = self._found.join(lambda place: tirx.BufferLoad(self.rows, [*variables[:-1], place]))
        column = vector * self._lanes + lane
        inside = None if width % self._lanes == 0 else column < width
        values = self._values(loops, group * self._part + row, column)
        body = written_block(block.name_hint, block.iter_vars, values, block.body.buffer, value, inside)
        body = written_loop(lane, self._lanes, body, self._lanes)
        return written_loop(vector, -(-width // self._lanes), written_loop(row, self._part, body))

    def _values(self, loops: Sequence[Any], row: Any, column: Any) -> list[Any]:
        outer = dict(zip(self._outer, loops, strict=True))
        return [outer.get(axis, row) for axis in range(len(self._extents) - 1)] + [column]


def _reads_in_order(found: RowValues) -> bool:
    """Whether what is joined lies next to each other along a row."""
    in_order = []

    def load(node: Any) -> None:
        using = [index for index in node.indices if uses(index, found.row)]
        in_order.append(not using or (len(using) == 1 and node.indices[-1].same_as(found.row)))

    tvm_ffi.structural_walk(found.value, [(tvm.ir.TensorLoad, load)])
    return all(in_order)
