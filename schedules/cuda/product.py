"""Products of any form as batched products of matrices: ``C[b, i, j] += A[b, i, k] * B[b, j, k]``.

A matrix product, a batched one, a dense layer and a convolution are one block that multiplies and adds. Its axes are
sorted by which operands they index: both and the result (batch), one operand and the result (rows, columns), both
operands only (depth). The first axis of a result is one of the batch where its extent is open, also if one operand
lacks it, as weights do, unless the products for each were too small; any other one stays what it is, and makes the
extent of its side open. For a convolution of NCHW the rows are output channels, the columns pixels, the depth input
channels and window: an implicit product, whose matrix of pixels is put together in shared memory and nowhere else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir.prim import expr as prim
from tvm.s_tir import Schedule, ScheduleError
from tvm.s_tir.schedule import SBlockRV
from tvm.tirx import IterVar

from tvm_ext.schedules.cuda.blocks import element_bytes
from tvm_ext.schedules.cuda.neighbours import side_by_side
from tvm_ext.schedules.cuda.open_extents import OPEN, OPEN_ROWS, divisor, estimated, is_open
from tvm_ext.schedules.cuda.open_extents import product as known_product
from tvm_ext.schedules.kernel.blocks import is_spatial, static_extents, top_blocks
from tvm_ext.schedules.kernel.operations import is_simple

FEWEST_OF_EACH = 8
"""Rows and columns of a product, where there may be any number of such products; of less they are better as one."""


@dataclass(frozen=True)
class Product:
    """A block that multiplies and adds, as a product of matrices.

    Attributes
    ----------
    block : SBlockRV or None
        None of a product that is only estimated.
    batch, rows, columns, depth : int
        Extents, estimated where they are open. The last axis of the result is a column.
    row_operand : int
        Which of what the block reads has the rows: 0 or 1.
    row_bytes, column_bytes, result_bytes : int
        Of an element.
    row_vector, column_vector : tuple of (bool, int)
        Of each operand whether neighbours in memory are neighbours in depth, and how many of them surely lie side by
        side and aligned.
    unique_bytes : int
        Of both operands and the result, each element once: a convolution reads a pixel for every place of the window.
    whole : tuple of (bool, bool)
        Whether rows, and columns, are a multiple of those of any tile: where an axis of the result has the batch too,
        as that of channels in groups, TVM takes what is beyond the last row of a product for the next one's first.
    is_open : bool
        Whether a run says how many products, or rows, or columns there are.
    open_side : PrimExpr or None
        How many rows there are, if a run says so; otherwise how many columns, if it says that.
    open_columns, open_depth : bool
        Whether it says how many columns, and how deep the product is.
    """

    block: SBlockRV | None
    batch: int
    rows: int
    columns: int
    depth: int
    row_operand: int
    row_bytes: int
    column_bytes: int
    result_bytes: int
    row_vector: tuple[bool, int]
    column_vector: tuple[bool, int]
    unique_bytes: int
    whole: tuple[bool, bool] = (False, False)
    is_open: bool = False
    open_side: Any = None
    open_columns: bool = False
    open_depth: bool = False

    def allows(self, rows: int, columns: int) -> bool:
        """Whether the result may be divided into tiles of so many rows and columns."""
        rest = (self.rows % rows, self.columns % columns)
        return not any(whole and left for whole, left in zip(self.whole, rest, strict=True))

    @property
    def multiply_adds(self) -> int:
        """Of the whole product."""
        return self.batch * self.rows * self.columns * self.depth


def find_product(schedule: Schedule, open_rows: int = OPEN_ROWS) -> Product | None:
    """Find the one product of a kernel; None when it holds none, more than one, or anything else that reduces.

    Parameters
    ----------
    schedule : Schedule
    open_rows : int
        What rows or columns of open extent count as, if they cannot be known to be more.
    """
    blocks = top_blocks(schedule)
    summing = [block for block in blocks if not is_spatial(schedule, block)]
    if len(summing) != 1 or len(schedule.get_output_blocks("root")) != 1:
        return None
    (block,) = summing
    any_open = not all(static_extents(schedule, item) for item in blocks)
    if not all(is_simple(schedule, item) for item in blocks):
        return None
    groups = _groups(schedule, block)
    if groups is None:
        return None
    body = schedule.get(block)
    whole = {side: _shares_axis(body, groups, side) for side in ("rows", "columns")}
    open_sides = {side: any(_is_open(axis) for axis in groups[side]) for side in whole}
    if any(whole[side] and open_sides[side] for side in whole):
        return None  # no tile is sure to divide them
    extents = {name: prod(_size(axis) for axis in axes) for name, axes in groups.items() if name != "row_operand"}
    extents["batch"] *= extents["outer"]
    sides = {side: known_product(axis.dom.extent for axis in groups[side]) for side in whole if open_sides[side]}
    for side, extent in sides.items():
        extents[side] = max(divisor(extent), open_rows)
    if open_depth := any(map(_is_open, groups["depth"])):
        extents["depth"] = max(extents["depth"], OPEN_ROWS)
    row = groups["row_operand"]
    regions = (body.reads[row], body.reads[1 - row])
    unique = sum(_elements(region) * element_bytes(region.source.dtype) for region in (*body.reads, *body.writes))
    vectors = [side_by_side(schedule, region, body.iter_vars, groups["depth"]) for region in regions]
    row_bytes, column_bytes, result_bytes = (
        element_bytes(region.source.dtype) for region in (*regions, body.writes[0])
    )
    return Product(
        block, extents["batch"], extents["rows"], extents["columns"], extents["depth"], row,
        row_bytes, column_bytes, result_bytes, vectors[0], vectors[1], unique,
        (whole["rows"], whole["columns"]), any_open,
        sides.get("rows", sides.get("columns")), open_sides["columns"], open_depth,
    )  # fmt: skip


def _shares_axis(body: Any, groups: dict[str, Any], side: str) -> bool:
    """Whether an axis of the result is made of one of the batch and one of rows or columns."""
    free = [_free(item.min) for item in body.writes[0].region]
    return any(
        all(any(_among(axis.var, variables) for axis in groups[name]) for name in ("batch", side)) for variables in free
    )


def as_matrices(schedule: Schedule, product: Product) -> None:
    """Rewrite a product over axes batch, rows, columns and depth, between blocks that bring its operands into order.

    An axis of the batch that one operand lacks is one by itself if there are others, as an index of that operand would
    be a remainder otherwise. Those blocks are still to be inlined, as is the one that brings the result into the order
    it is stored in.
    """
    block, row = product.block, product.row_operand
    groups = _groups(schedule, block, row)
    assert groups is not None
    places = {str(axis.var.name): place for place, axis in enumerate(schedule.get(block).iter_vars)}
    _join_behind(schedule, block)
    rows = schedule.reindex(block, ("read", row))
    columns = schedule.reindex(block, ("read", 1 - row))
    result = schedule.reindex(block, ("write", 0))
    # From here on a tensor is indexed by axes of the block, without those of one element that were only added.
    body = schedule.get(block)
    for side in ("outer", "batch", "rows", "columns", "depth"):
        groups[side] = [body.iter_vars[places[str(axis.var.name)]] for axis in groups[side]]
    axes = {str(axis.var.name): axis for axis in body.iter_vars}
    batch = ("outer", "batch") if groups["outer"] else ("batch",)
    orders = ((*batch, "rows", "depth"), (*batch, "columns", "depth"), (*batch, "rows", "columns"))
    maps = [
        _index_map([axes[str(item.min.name)] for item in region.region], groups, order)
        for region, order in zip((body.reads[row], body.reads[1 - row], body.writes[0]), orders, strict=True)
    ]
    whole = _index_map(body.iter_vars, groups, (*batch, "rows", "columns", "depth"))
    schedule.transform_layout(rows, ("write", 0), maps[0])
    schedule.transform_layout(columns, ("write", 0), maps[1])
    schedule.transform_layout(result, ("read", 0), maps[2])
    schedule.transform_block_layout(block, whole)


def inline_into(schedule: Schedule, block: SBlockRV) -> None:
    """Inline all that a block reads into it, as far as that is computed in this kernel and nobody else reads it."""
    refused: set[str] = set()
    while True:
        # One at a time: inlining one may take another away.
        waiting = [item for item in schedule.get_producers(block) if is_spatial(schedule, item)]
        waiting = [item for item in waiting if str(schedule.get(item).name_hint) not in refused]
        if not waiting:
            return
        name = str(schedule.get(waiting[0]).name_hint)
        try:
            schedule.compute_inline(waiting[0])
        except ScheduleError:
            refused.add(name)


def _join_behind(schedule: Schedule, product: SBlockRV) -> None:
    """Make what is fused behind a product one block, also where a value is used twice, as in GELU."""
    names = [str(schedule.get(block).name_hint) for block in top_blocks(schedule)]
    behind = top_blocks(schedule)[names.index(str(schedule.get(product).name_hint)) + 1 : -1]
    for block in behind:
        try:
            schedule.compute_inline(block)
        except ScheduleError:
            continue


def inline_behind(schedule: Schedule, block: SBlockRV) -> list[SBlockRV]:
    """Inline what is computed from a block's result into it; gives the blocks of the kernel that are left behind it."""
    while True:
        consumers = list(schedule.get_consumers(block))
        # One that repeats what it reads, as a broadcast does, is no place to compute it in.
        if len(consumers) != 1 or repeats(schedule, consumers[0], block):
            return consumers
        if _goes_beyond(schedule, consumers[0], block):
            return consumers
        # Of the bounds of a padded result TVM keeps one for each axis of the reader: rows that lie one behind the
        # other in it would be written with their padding, over the next one.
        if _is_bounded(schedule, block) and _joins_axes(schedule, consumers[0], block):
            return consumers
        try:
            schedule.reverse_compute_inline(consumers[0])
        except ScheduleError:
            return consumers


def repeats(schedule: Schedule, reader: SBlockRV, block: SBlockRV) -> bool:
    """Whether a block reads an element of a result more than once: there are fewer places than it has points."""
    body = schedule.get(reader)
    result = schedule.get(block).writes[0].source
    analyzer = tvm.sym.Analyzer()
    for axis in body.iter_vars:  # an open extent counts as the same number among places and among points
        analyzer.bind(axis.var, tvm.ir.Range(0, _size(axis)))
        for variable in _free(axis.dom.extent):
            analyzer.bind(variable, tvm.ir.Range(OPEN, OPEN + 1))
    points = prod(_size(axis) for axis in body.iter_vars)
    for region in body.reads:
        if region.source.same_as(result):
            bounds = [analyzer.const_int_bound(item.min) for item in region.region]
            sizes = [analyzer.const_int_bound(item.extent).max_value for item in region.region]
            places = prod(bound.max_value - bound.min_value + size for bound, size in zip(bounds, sizes, strict=True))
            if places < points:
                return True
    return False


def _goes_beyond(schedule: Schedule, reader: SBlockRV, block: SBlockRV) -> bool:
    """Whether an axis of a reader may be longer than that of the result it goes along, as behind padding at its end.

    TVM sees that of known extents, and takes open ones for the same.
    """
    body, result = schedule.get(reader), schedule.get(block).writes[0].source
    extents = {axis.var: axis.dom.extent for axis in body.iter_vars}
    for region in body.reads:
        if not region.source.same_as(result):
            continue
        for item, extent in zip(region.region, result.shape, strict=True):
            places = [variable for variable in _free(item.min) if variable in extents]
            along = isinstance(item.min, tvm.ir.Var | prim.Add | prim.Sub) and len(places) == 1
            if along and not tvm.sym.Analyzer().can_prove(extents[places[0]] <= extent):
                return True
    return False


def _is_bounded(schedule: Schedule, block: SBlockRV) -> bool:
    """Whether a block does not run in all rounds of its loops."""
    body = schedule.get(schedule.get_loops(block)[-1]).body
    return not (isinstance(body, s_tir.SBlockRealize) and _is_one(body.predicate))


def _joins_axes(schedule: Schedule, reader: SBlockRV, block: SBlockRV) -> bool:
    """Whether several axes of a result are one axis of a block that reads it, or one of them in another order."""
    result = schedule.get(block).writes[0].source
    for region in schedule.get(reader).reads:
        if region.source.same_as(result):
            variables = _variables(region)
            if any(_among(variable, variables[:place]) for place, variable in enumerate(variables)):
                return True
            quotients: list[Any] = []
            tvm_ffi.structural_walk(region.region, [((prim.FloorDiv, prim.FloorMod), quotients.append)])
            if quotients:
                return True
    return False


def _groups(schedule: Schedule, block: SBlockRV, row_operand: int | None = None) -> dict[str, Any] | None:
    """Sort the axes of a block; None when it is no product of two tensors with rows, columns and depth.

    Which operand has the rows is ``row_operand``; by default the one that does not have the last axis of the result.
    """
    body = schedule.get(block)
    if len(body.reads) != 2 or len(body.writes) != 1 or not _multiplies_and_adds(body):
        return None
    if any(not all(_is_one(item.extent) for item in region.region) for region in (*body.reads, *body.writes)):
        return None
    left, right, result = (_variables(region) for region in (*body.reads, body.writes[0]))
    found: dict[str, Any] = {"outer": [], "batch": [], "left": [], "right": [], "depth": []}
    for axis in body.iter_vars:
        if _is_one(axis.dom.extent):
            continue
        inside = (_among(axis.var, left), _among(axis.var, right), _among(axis.var, result))
        reduces = int(axis.iter_type) == IterVar.CommReduce
        name = {
            (True, True, True): "batch", (True, False, True): "left", (False, True, True): "right",
            (True, True, False): "depth",
        }.get(inside)  # fmt: skip
        if name is None or reduces != (name == "depth"):
            return None
        found[name].append(axis)
    for side, other in (("left", "right"), ("right", "left")):
        first = next((axis for axis in found[side] if _is_open(axis)), None)
        if first is None:
            continue
        # Rows of any number have the open axis outermost: what is divided by is known.
        known = [axis for axis in found[side] if axis is not first]
        found[side] = [first, *known]
        comes_first = _among(first.var, _free(body.writes[0].region[0].min))
        if comes_first and min(prod(map(_size, axes)) for axes in (known, found[other])) >= FEWEST_OF_EACH:
            found["outer"].append(first)
            found[side] = known
    found["batch"].sort(key=_is_open, reverse=True)
    if not found["batch"]:
        found["outer"], found["batch"] = [], found["outer"]
    if not all(found[name] for name in ("left", "right", "depth")):
        return None
    last = next(
        (axis for axis in reversed(list(body.writes[0].region)) if tvm.tirx.analysis.undefined_vars(axis.min)), None
    )
    names = [] if last is None else [str(variable.name) for variable in tvm.tirx.analysis.undefined_vars(last.min)]
    left_is_last = any(str(axis.var.name) in names for axis in found["left"])
    row = (1 if left_is_last else 0) if row_operand is None else row_operand
    rows, columns = ("right", "left") if row else ("left", "right")
    return {
        "outer": found["outer"], "batch": found["batch"], "rows": found[rows], "columns": found[columns],
        "depth": found["depth"], "row_operand": row,
    }  # fmt: skip


def _multiplies_and_adds(body: Any) -> bool:
    """Whether a block computes ``c = c + a * b``, with conversions of the operands."""
    store = body.body
    if not isinstance(store, tirx.BufferStore) or not isinstance(store.value, prim.Add):
        return False
    for own, product in ((store.value.a, store.value.b), (store.value.b, store.value.a)):
        if isinstance(own, tvm.ir.TensorLoad) and own.source.same_as(store.buffer) and isinstance(product, prim.Mul):
            return all(isinstance(_converted(factor), tvm.ir.TensorLoad) for factor in (product.a, product.b))
    return False


def _converted(factor: Any) -> Any:
    while isinstance(factor, prim.Cast):
        factor = factor.value
    return factor


def _index_map(axes: Sequence[Any], groups: dict[str, Any], order: Sequence[str]) -> tirx.IndexMap:
    """Map axes to one index for each group, its first axis outermost."""
    variables = [tirx.Var(f"i{number}", axis.dom.extent.ty) for number, axis in enumerate(axes)]
    indices: dict[str, Any] = {}
    for name in order:
        for item in groups[name]:
            found = next((place for place, axis in enumerate(axes) if axis.var.same_as(item.var)), None)
            if found is not None:
                inner = variables[found]
                indices[name] = inner if name not in indices else indices[name] * item.dom.extent + inner
    zero = tirx.IntImm(axes[0].dom.extent.ty, 0)
    return tirx.IndexMap(variables, [indices.get(name, zero) for name in order], None)


def _variables(region: Any) -> list[Any]:
    return [variable for item in region.region for variable in _free(item.min)]


def _free(expression: Any) -> list[Any]:
    return list(tvm.tirx.analysis.undefined_vars(expression))


def _among(variable: Any, variables: Sequence[Any]) -> bool:
    return any(variable.same_as(item) for item in variables)


def _is_one(extent: Any) -> bool:
    return isinstance(extent, tirx.IntImm) and int(extent) == 1


def _size(axis: Any) -> int:
    return estimated(axis.dom.extent)


def _is_open(axis: Any) -> bool:
    return is_open(axis.dom.extent)


def _elements(region: Any) -> int:
    return prod(map(estimated, region.source.shape))
