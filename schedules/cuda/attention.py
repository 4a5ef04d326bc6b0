"""Attention as one kernel: a block of threads keeps its queries, and meets the keys and values tile after tile.

As in FlashAttention-2 (Dao, 2023, algorithm 1) the softmax is taken along the way: of each row the largest score so far
and the sum of exponentials are kept, and what was summed up is scaled when a larger score comes. The matrix of scores
is in registers only. Operands of 16 bits go to tensor cores, others to ordinary arithmetic.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm.ir.prim import expr as prim
from tvm.s_tir import Schedule, ScheduleError
from tvm.tirx import PrimFunc

from tvm_ext.schedules.annotations import OPERAND_ATTRIBUTE, OUT_AXES_ATTRIBUTE
from tvm_ext.schedules.compute.row_attention import ROW_ATTENTION
from tvm_ext.schedules.cuda.attention_kernel import plain_kernel
from tvm_ext.schedules.cuda.attention_parts import AttentionParts
from tvm_ext.schedules.cuda.attention_tensor_kernel import tensor_kernel
from tvm_ext.schedules.cuda.attention_tile import AttentionShape, attention_tile, resident_attentions
from tvm_ext.schedules.cuda.launch_bounds import with_resident_blocks
from tvm_ext.schedules.cuda.machine import machine_of
from tvm_ext.schedules.cuda.open_extents import is_open
from tvm_ext.schedules.kernel.blocks import annotated_block, is_spatial, top_blocks
from tvm_ext.schedules.rule import new_schedule


class Attention:
    """Schedule the kernel of :func:`tvm_ext.schedules.compute.row_attention.row_attention`."""

    name = "cuda.attention"

    def apply(self, func: PrimFunc, target: tvm.target.Target, tunable: bool = False) -> Schedule | None:
        """Schedule ``func`` when it is an attention whose heads fit the registers."""
        parts = _parts(func)
        machine = machine_of(target)
        tile = None if parts is None else attention_tile(parts.shape, machine)
        if parts is None or tile is None:
            return None
        made = tensor_kernel(func, parts, tile) if tile.tensor else plain_kernel(func, parts, tile)
        if parts.shape.is_open:
            made = with_resident_blocks(made, resident_attentions(parts.shape, tile, machine), axes_of_tiles=1)
        return new_schedule(made, tunable)


def _parts(func: PrimFunc) -> AttentionParts | None:
    """Take the function apart: how operands are loaded, what is done to a score, where a result is stored."""
    schedule = new_schedule(func)
    product = annotated_block(schedule, ROW_ATTENTION)
    if product is None:
        return None
    try:
        for block in top_blocks(schedule):
            if is_spatial(schedule, block) and schedule.get(block).name_hint not in ("weights", "logits", "store"):
                schedule.compute_inline(block)
    except ScheduleError:
        return None
    scores, logits, result = (schedule.get(schedule.get_sblock(name)) for name in ("scores", "logits", "result"))
    query, key = _factors(scores.body)
    _, value = _factors(result.body)
    *batch, rows, length, depth = (_extent(axis) for axis in scores.iter_vars)
    columns = int(result.iter_vars[-2].dom.extent)
    operand = str(result.annotations[OPERAND_ATTRIBUTE])
    return AttentionParts(
        AttentionShape.of((*batch, rows, depth), (*batch, length, columns), operand, 0),
        tuple(batch),
        rows,
        length,
        (query, [axis.var for axis in (*scores.iter_vars[:-2], scores.iter_vars[-1])]),
        (key, [axis.var for axis in (*scores.iter_vars[:-3], scores.iter_vars[-1], scores.iter_vars[-2])]),
        (value, [axis.var for axis in (*result.iter_vars[:-3], result.iter_vars[-1], result.iter_vars[-2])]),
        (logits.body.value, [axis.var for axis in logits.iter_vars], scores.body.buffer),
        (func.params[-1], [int(axis) for axis in result.annotations[OUT_AXES_ATTRIBUTE]]),
    )


def _extent(axis: Any) -> Any:
    extent = axis.dom.extent
    return extent if is_open(extent) else int(extent)


def _factors(statement: Any) -> tuple[Any, Any]:
    """Give the two factors of ``c = c + a * b``, before they are made float32."""
    product = statement.value.b if isinstance(statement.value.b, prim.Mul) else statement.value.a
    return product.a, product.b
