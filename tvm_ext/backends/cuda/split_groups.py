"""Convolutions in groups get an axis for the group, so that they are a product of matrices for each group.

before: ``y[f] += x[f // n * m + c] * w[f, c]``
after:  ``y[g * n + o] += x[g * m + c] * w[g * n + o, c]``

Which group a channel is of is a division in TVM's kernel, and no axis of a product; behind this pass the group is one
that both factors and the result have. Groups too narrow for a tile stay as they are.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir.prim import expr as prim
from tvm.s_tir import Schedule, ScheduleError
from tvm.s_tir.schedule import SBlockRV

from tvm_ext.schedules.cuda.fragments import SIDE
from tvm_ext.schedules.cuda.matmul import SMALLEST_SIDE
from tvm_ext.schedules.cuda.product import find_product
from tvm_ext.schedules.cuda.tensor_matmul import BYTES, HALVES, SINGLES
from tvm_ext.schedules.kernel.blocks import is_spatial, top_blocks
from tvm_ext.schedules.rule import new_schedule


def split_groups() -> tvm.transform.Pass:
    """Make the pass; it runs on kernels before they are scheduled."""

    @tirx.transform.prim_func_pass(opt_level=0, name="tvm_ext.SplitGroups")
    def _split(func: tirx.PrimFunc, _mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tirx.PrimFunc:
        return with_split_groups(func)

    return _split


def with_split_groups(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Give wide groups of a convolution an axis; any other kernel stays as it is."""
    if not isinstance(func.body, s_tir.SBlockRealize) or not _divides(func.body):
        return func
    schedule = new_schedule(func)
    summing = [block for block in top_blocks(schedule) if not is_spatial(schedule, block)]
    if len(summing) != 1 or not _split(schedule, summing[0]):
        return func
    made = schedule.mod["main"]
    if not _same(func, made):
        return func
    body = tvm_ffi.structural_mutate(made.body, [(s_tir.SBlock, _simplified)])
    found = tirx.PrimFunc(func.params, body, func.ret_type, func.attrs, func.span)
    # Rules other than those of products know nothing of an axis that is a part of another one.
    product = find_product(new_schedule(found))
    return func if product is None or min(product.rows, product.columns) < SMALLEST_SIDE else found


def _same(func: tirx.PrimFunc, made: tirx.PrimFunc) -> bool:
    return all(one.same_as(other) for one, other in zip(func.params, made.params, strict=True))


def _divides(body: Any) -> bool:
    found: list[bool] = []
    tvm_ffi.structural_walk(body, [(prim.FloorDiv, lambda node: found.append(isinstance(node.a, tirx.Var)))])
    return any(found)


def _split(schedule: Schedule, block: SBlockRV) -> bool:
    """Split the axis of channels of a block that sums products; whether there are groups of enough channels."""
    body = schedule.get(block)
    if any(str(region.source.dtype) not in (*HALVES, *SINGLES, *BYTES) for region in body.reads):
        return False
    divided: dict[int, set[int]] = {}

    def visit(node: Any) -> None:
        for number, axis in enumerate(body.iter_vars):
            if node.a.same_as(axis.var) and isinstance(node.b, tirx.IntImm):
                divided.setdefault(number, set()).add(int(node.b))

    for region in body.reads:
        for item in region.region:
            tvm_ffi.structural_walk(item.min, [(prim.FloorDiv, visit)])
    if len(divided) != 1:
        return False
    ((place, sizes),) = divided.items()
    size = min(sizes)
    # Tiles divide the channels of a group.
    if len(sizes) != 1 or size % SIDE or int(body.iter_vars[place].dom.extent) % size:
        return False
    indices = [tirx.Var(f"i{number}", axis.dom.extent.ty) for number, axis in enumerate(body.iter_vars)]
    made: list[Any] = []
    for number, index in enumerate(indices):
        made += [tirx.floordiv(index, size), tirx.floormod(index, size)] if number == place else [index]
    try:
        schedule.transform_block_layout(block, tirx.IndexMap(indices, made, None))
    except ScheduleError:
        return False
    return True


def _simplified(block: Any, mutator: Any) -> Any:
    """Do the divisions of a block's indices that its axes leave nothing of."""
    block = mutator.default_mutate(block)
    analyzer = tvm.sym.Analyzer()
    for axis in block.iter_vars:
        analyzer.bind(axis.var, axis.dom)
    return tvm_ffi.structural_mutate(
        block, [(prim.FloorDiv, lambda node, inner: analyzer.simplify(inner.default_mutate(node)))]
    )
