"""What follows a reduction, joined to the place where its result leaves the registers.

before: ``r[i, j] = sum(...)`` for all i and j, then ``y[j * 2, i] = exp(r[i, j])`` for all of them
after:  the second block runs over i and j as well, and takes each tile of sums as it is finished

A transpose or a reshape behind the reduction so becomes the address of the store. Where the second block spreads the
result, as a broadcast does, it runs over the rows of the result first, and takes each row as it is finished.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import tvm
from tvm import tirx
from tvm.s_tir import Schedule, ScheduleError
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.tirx import BufferRegion, IntImm

from tvm_ext.schedules.kernel.blocks import is_spatial
from tvm_ext.schedules.kernel.operations import is_simple


def join_store(schedule: Schedule, reduction: SBlockRV) -> SBlockRV | None:
    """Let the only block that reads a reduction run over the axes of its result.

    Returns
    -------
    SBlockRV or None
        The block, its axes those of the result in order; None, and nothing changed, when several blocks read the
        result, or one that reads an element more than once or not at all.
    """
    found = _only_reader(schedule, reduction)
    if found is None:
        return None
    store, region = found
    iter_vars = schedule.get(store).iter_vars
    extents, shape = [iter_var.dom.extent for iter_var in iter_vars], region.source.shape
    if not all(isinstance(extent, IntImm) for extent in (*extents, *shape)):
        return None
    if prod(int(extent) for extent in extents) != prod(int(extent) for extent in shape):
        return None
    analyzer = tvm.sym.Analyzer()
    for iter_var in iter_vars:
        analyzer.bind(iter_var.var, iter_var.dom)
    variables = [iter_var.var for iter_var in iter_vars]
    indices = [analyzer.simplify(item.min) for item in region.region]
    if len(variables) == len(indices) and all(v.same_as(i) for v, i in zip(variables, indices, strict=True)):
        return store
    try:
        schedule.transform_block_layout(store, tirx.IndexMap(variables, indices, None))
    except ScheduleError:
        return None
    return store


def _only_reader(schedule: Schedule, reduction: SBlockRV) -> tuple[SBlockRV, BufferRegion] | None:
    """Find the only block that reads a reduction, if it reads one element at a time, and what it reads of it."""
    consumers = list(schedule.get_consumers(reduction))
    if len(consumers) != 1 or not is_spatial(schedule, consumers[0]) or not is_simple(schedule, consumers[0]):
        return None
    result = schedule.get(reduction).writes[0].source
    regions = [region for region in schedule.get(consumers[0]).reads if region.source.same_as(result)]
    analyzer = tvm.sym.Analyzer()
    if len(regions) != 1 or not all(analyzer.can_prove_equal(item.extent, 1) for item in regions[0].region):
        return None
    return consumers[0], regions[0]


def spread_rows(schedule: Schedule, reduction: SBlockRV) -> tuple[SBlockRV, LoopRV, int] | None:
    """Order the loops of the only block that reads a reduction, and spreads it, so that rows of the result go outside.

    Returns
    -------
    tuple or None
        The block, the loop inside which one row of the result is in use, and how many loops there are up to it; None,
        and nothing changed, when it is no such block.
    """
    found = _only_reader(schedule, reduction)
    if found is None or len(found[1].region) < 2:
        return None
    store, region = found
    outer, last = region.region[:-1], region.region[-1]
    variables = [iter_var.var for iter_var in schedule.get(store).iter_vars]

    def places(items: Sequence[Any]) -> list[int]:
        used = [variable for item in items for variable in tirx.analysis.undefined_vars(item.min)]
        return [n for n, variable in enumerate(variables) if any(variable.same_as(found) for found in used)]

    # Each row of the result is read by rows of its own.
    if not all(any(item.min.same_as(variable) for variable in variables) or _is_zero(item.min) for item in outer):
        return None
    rows, columns = places(outer), places([last])
    loops = list(schedule.get_loops(store))
    if not rows or set(rows) & set(columns) or len(loops) != len(variables) or len(rows) == len(loops):
        return None
    rest = [number for number in range(len(loops)) if number not in rows]
    schedule.reorder(*(loops[number] for number in (*rows, *rest)))
    return store, loops[rows[-1]], len(rows)


def _is_zero(index: Any) -> bool:
    return isinstance(index, IntImm) and int(index) == 0
