"""What the rules for matrix products share: the extents of a product, and bringing its neighbours into order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

import tvm
from tvm import s_tir, tirx
from tvm.ir import Expr
from tvm.s_tir import Schedule, ScheduleError
from tvm.s_tir.schedule import SBlockRV
from tvm.tirx import PrimFunc

from tvm_ext.schedules.annotations import BATCH_AXES_ATTRIBUTE, KERNEL_ATTRIBUTE, OUT_AXES_ATTRIBUTE
from tvm_ext.schedules.compute.matmul import flatten, unflatten
from tvm_ext.schedules.kernel.blocks import annotated_block, is_spatial, loop_extents, static_extents, top_blocks
from tvm_ext.schedules.rule import prepared_for


@dataclass(frozen=True)
class ProductExtents:
    """What a matmul block computes: ``batch`` products of ``rows`` x ``chunks * lanes``, summed over ``reduction``.

    Of products of bfloat16, ``reduction`` counts pairs, each of which an instruction multiplies and adds as if it were
    one float32, and ``bytes_per_element`` is that of a pair.
    """

    batch: int
    rows: int
    chunks: int
    lanes: int
    reduction: int
    bytes_per_element: int
    copies_rows: bool
    packs_columns: bool

    @property
    def flops(self) -> int:
        """Multiplications and additions."""
        return 2 * self.batch * self.rows * self.chunks * self.lanes * self.reduction


def product_extents(schedule: Schedule) -> ProductExtents | None:
    """Read the extents of the product off a kernel; None when it holds none, or one of symbolic extents."""
    product = annotated_block(schedule, "matmul")
    if product is None or not all(static_extents(schedule, block) for block in top_blocks(schedule)):
        return None
    batch, rows, chunks, lanes, reduction, *_ = loop_extents(schedule, product)
    size = tvm.DataType(schedule.get(product).writes[0].source.dtype).bits // 8
    copies, packs = (annotated_block(schedule, name) is not None for name in ("pack_rows", "pack_columns"))
    return ProductExtents(batch, rows, chunks, lanes, reduction, size, copies, packs)


def product_blocks(schedule: Schedule) -> tuple[SBlockRV, SBlockRV, SBlockRV | None]:
    """Find the product, the block that stores it, and the last block when that is another one."""
    product = annotated_block(schedule, "matmul")
    assert product is not None
    (store,) = schedule.get_consumers(product)
    last = top_blocks(schedule)[-1]
    apart = schedule.get(last).name_hint != schedule.get(store).name_hint
    return product, store, last if apart else None


PRODUCT_KERNELS = ("matmul", "pack_rows", "pack_columns")
"""What the blocks of a product are annotated as."""


def inline_neighbours(
    schedule: Schedule,
    rule: str,
    result: str = "matmul",
    kernels: Sequence[str] = PRODUCT_KERNELS,
    place: Callable[..., list[Expr]] | None = None,
) -> PrimFunc | None:
    """Inline what was fused to a product, and let the block that stores it walk over batch, rows and columns.

    The last block stays apart when it walks over other axes than the result does.

    Parameters
    ----------
    schedule : Schedule
    rule : str
        For which the kernel is prepared.
    result : str
        What the block is annotated as whose result is stored.
    kernels : sequence of str
        What the blocks are annotated as that belong to the product.
    place : callable, optional
        From a batch, a row and a column to the index that the block that stores walks over instead.

    Returns
    -------
    PrimFunc or None
        The kernel so changed, noted as prepared for ``rule``; None when the kernel is not one product with
        data-parallel neighbours and one result.
    """
    try:
        store = _inline(schedule, result, kernels)
        if store is None:
            return None
        if place is not None:
            schedule.transform_block_layout(store, tirx.IndexMap.from_func(place, ndim=3, index_dtype="int32"))
    except ScheduleError:
        return None  # a neighbour that cannot be inlined
    # The index of a row that was put together from several axes has to be seen to be that row.
    return prepared_for(s_tir.transform.StmtSimplify()(schedule.mod)["main"], rule)


def _inline(schedule: Schedule, result: str, kernels: Sequence[str]) -> SBlockRV | None:
    """Give the block that stores; None where the kernel is not such a product."""
    product = annotated_block(schedule, result)
    others = [
        block for block in top_blocks(schedule) if schedule.get(block).annotations.get(KERNEL_ATTRIBUTE) not in kernels
    ]
    if len(schedule.get_output_blocks("root")) != 1 or not all(is_spatial(schedule, block) for block in others):
        return None
    (store,) = schedule.get_consumers(product)
    last = others[-1]
    extents, last_extents = loop_extents(schedule, store), loop_extents(schedule, last)
    regrouped = regroup([0] * len(last_extents), last_extents, extents) is not None
    if regrouped:
        store = last
    kept = {schedule.get(block).name_hint for block in (store, last)}
    for block in others:
        if schedule.get(block).name_hint not in kept:
            schedule.compute_inline(block)
    order_axes(schedule, product, store, extents)
    return store


def regroup(index: Sequence[Expr], extents: Sequence[int], wanted: Sequence[int]) -> list[Expr] | None:
    """Give the index of the same element after a reshape.

    Parameters
    ----------
    index : sequence of Expr
        Index of an element of a tensor with ``extents``.
    wanted : sequence of int
        Extents of the reshaped tensor. Every axis must be a part of an old one, or several old ones together.

    Returns
    -------
    list of Expr or None
        None when the axes do not nest in this way.
    """
    old = [(entry, extent) for entry, extent in zip(index, extents, strict=True) if extent != 1]
    result: list[Expr] = []
    position = 0
    while position < len(wanted):
        if wanted[position] == 1:
            result.append(0)
            position += 1
            continue
        if not old:
            return None
        entry, extent = old.pop(0)
        if extent > wanted[position]:  # one old axis becomes several
            end = next(
                (end for end in range(position, len(wanted)) if prod(wanted[position : end + 1]) >= extent), None
            )
            if end is None or prod(wanted[position : end + 1]) != extent:
                return None
            result += unflatten(entry, wanted[position : end + 1])
            position = end + 1
            continue
        while extent < wanted[position] and old:  # several old axes become one
            inner, inner_extent = old.pop(0)
            entry, extent = entry * inner_extent + inner, extent * inner_extent
        if extent != wanted[position]:
            return None
        result.append(entry)
        position += 1
    return None if old else result


def order_axes(schedule: Schedule, product: SBlockRV, store: SBlockRV, stored: Sequence[int]) -> None:
    """Make the axes of the stored result, ``stored`` or a reshape of it, a batch axis, one of rows, one of columns.

    Fused loops would not do: a tile of rows may begin in the middle of an inner axis.
    """
    annotations = schedule.get(product).annotations
    batch_axes = int(annotations[BATCH_AXES_ATTRIBUTE])
    out_axes = [int(axis) for axis in annotations[OUT_AXES_ATTRIBUTE]]
    extents = loop_extents(schedule, store)
    order = [out_axes.index(axis) for axis in range(len(out_axes))]
    groups = (order[:batch_axes], order[batch_axes:-1], order[-1:])

    def logical(*index: Expr) -> list[Expr]:
        known = regroup(index, extents, stored)
        assert known is not None
        positions = [flatten([known[axis] for axis in group], [stored[axis] for axis in group]) for group in groups]
        return [position if isinstance(position, Expr) else tirx.const(position) for position in positions]

    schedule.transform_block_layout(store, tirx.IndexMap.from_func(logical, ndim=len(extents), index_dtype="int32"))
