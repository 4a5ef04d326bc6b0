"""What an element is made of, divided into what is computed of one row of a tensor and what joins the rows.

before: ``y[i, j] = (x[p(i), q(j)] * u(j) + x[p(i), r(j)] * v(j)) * s(i) + (x[p(i) + 1, q(j)] * u(j) + ...) * t(i)``
within: ``row[k, j] = x[k, q(j)] * u(j) + x[k, r(j)] * v(j)``
after:  ``y[i, j] = row[p(i), j] * s(i) + row[p(i) + 1, j] * t(i)``
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir.prim import expr as prim

from tvm_ext.relax_utils import substitute
from tvm_ext.schedules.simd.vector import element_type
from tvm_ext.schedules.simd.widen import uses


@dataclass(frozen=True)
class RowValues:
    """What an element takes of several rows, the same of each.

    Attributes
    ----------
    value : tvm.ir.Expr
        What is computed of row ``row``.
    row : tvm.ir.Var
    rows : int
        How many rows there are.
    places : list of tvm.ir.Expr
        The rows that an element takes, each once.
    join : callable
        Gives what an element is, of a function that gives what is computed of a place.
    """

    value: Any
    row: Any
    rows: int
    places: list[Any]
    join: Callable[[Callable[[Any], Any]], Any]


def row_values(value: Any, axis: Any) -> RowValues | None:
    """Find what an element takes of rows whose places are computed of an axis; None where that is not all of one kind.

    Parameters
    ----------
    value : tvm.ir.Expr
        What an element is.
    axis : tvm.ir.Var
        The axis that the places of rows depend on.
    """
    row = tvm.ir.Var("row", axis.ty)
    found: list[tuple[Any, Any, int]] = []

    def divided(node: Any, mutator: Any) -> Any:
        of_row = _of_one_row(node, axis, row)
        if of_row is None:
            return mutator.default_mutate(node)
        found.append(of_row)
        return node

    tvm_ffi.structural_mutate(value, [(_EXPRESSIONS, divided)])
    if not found:
        return None
    first, _, rows = found[0]
    if not all(count == rows and _same(first, other) for other, _, count in found):
        return None
    places: list[Any] = []
    for _, place, _ in found:
        if not any(_same(place, other) for other in places):
            places.append(place)

    def join(element: Callable[[Any], Any]) -> Any:
        def replaced(node: Any, mutator: Any) -> Any:
            of_row = _of_one_row(node, axis, row)
            return mutator.default_mutate(node) if of_row is None else element(of_row[1])

        return tvm_ffi.structural_mutate(value, [(_EXPRESSIONS, replaced)])

    return RowValues(first, row, rows, places, join)


def with_rows_joined_first(found: RowValues) -> Any:
    """Write an element so that rows are joined before elements of the joined row are; None where sums allow no order.

    before: ``(x[p, q] * u + x[p, r] * v) * s + (x[p + 1, q] * u + x[p + 1, r] * v) * t``
    after:  ``(x[p, q] * s + x[p + 1, q] * t) * u + (x[p, r] * s + x[p + 1, r] * t) * v``
    """
    mark = tirx.decl_buffer((found.rows,), element_type(found.value), "mark")
    joined = found.join(lambda place: tirx.BufferLoad(mark, [place]))
    core = joined
    while inside := [part for part in _operands(core) if uses(part, mark)]:
        if len(inside) > 1:
            break
        core = inside[0]
    rows, columns = _terms(core, mark), _terms(found.value, found.row)
    if rows is None or columns is None or not all(isinstance(leaf, tvm.ir.TensorLoad) for leaf, _ in rows):
        return None
    total: Any = None
    for column, weight in columns:
        row_total: Any = None
        for row, factor in rows:
            part = _times(substitute(column, {found.row: row.indices[0]}), factor)
            row_total = part if row_total is None else row_total + part
        part = _times(row_total, weight)
        total = part if total is None else total + part

    def replaced(node: Any, mutator: Any) -> Any:
        return total if node.same_as(core) else mutator.default_mutate(node)

    return tvm_ffi.structural_mutate(joined, [(_EXPRESSIONS, replaced)])


def _operands(node: Any) -> list[Any]:
    if isinstance(node, tvm.ir.Call):
        return list(node.args)
    if isinstance(node, prim.Select):
        return [node.condition, node.true_value, node.false_value]
    if isinstance(node, prim.Cast):
        return [node.value]
    return [node.a, node.b] if hasattr(node, "a") and hasattr(node, "b") else []


def _terms(node: Any, variable: Any) -> list[tuple[Any, Any]] | None:
    """Write an expression as a sum of what uses a variable, each with its factor or None; None for another one."""
    if isinstance(node, prim.Add):
        parts = [_terms(part, variable) for part in (node.a, node.b) if uses(part, variable)]
        return None if len(parts) < 2 or None in parts else [*parts[0], *parts[1]]  # type: ignore[misc]
    if isinstance(node, prim.Mul) and uses(node.a, variable) != uses(node.b, variable):
        inner, factor = (node.a, node.b) if uses(node.a, variable) else (node.b, node.a)
        terms = _terms(inner, variable)
        return None if terms is None else [(leaf, _times(factor, before)) for leaf, before in terms]
    return [(node, None)]


def _times(value: Any, factor: Any) -> Any:
    return value if factor is None else value * factor


_EXPRESSIONS = (
    tvm.ir.TensorLoad, tvm.ir.Call, prim.Cast, prim.Add, prim.Sub, prim.Mul, prim.Div, prim.Min, prim.Max, prim.Select,
)  # fmt: skip


def _of_one_row(node: Any, axis: Any, row: Any) -> tuple[Any, Any, int] | None:
    """Give an expression that uses an axis for the place of one row only, of any row; with that place, and the rows."""
    places: list[Any] = []
    counts: list[int] = []

    def load(found: Any, mutator: Any) -> Any:
        using = [number for number, index in enumerate(found.indices) if uses(index, axis)]
        if len(using) != 1:
            return mutator.default_mutate(found)
        place, extent = found.indices[using[0]], found.source.ty.shape[using[0]]
        if place.same_as(axis) or not isinstance(extent, tirx.IntImm) or _holds_load(place):
            return mutator.default_mutate(found)
        places.append(place)
        counts.append(int(extent))
        indices = [row if number == using[0] else index for number, index in enumerate(found.indices)]
        return tirx.BufferLoad(found.source, indices)

    of_row = tvm_ffi.structural_mutate(node, [(tvm.ir.TensorLoad, load)])
    if not places or uses(of_row, axis) or len(set(counts)) > 1:
        return None
    return (of_row, places[0], counts[0]) if all(_same(places[0], other) for other in places) else None


def _holds_load(expression: Any) -> bool:
    stop = [(tvm.ir.TensorLoad, lambda _load: tvm_ffi.VisitInterrupt(True))]
    return tvm_ffi.structural_walk(expression, stop) is not None


def _same(one: Any, other: Any) -> bool:
    return bool(tvm_ffi.structural_equal(one, other, map_free_vars=False))
