"""Operators that read their data, or give their result, with channels last, as kernels and as Relax."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax, s_tir, tirx
from tvm.tirx import IndexMap

from tvm_ext.embedding.neighbours import AS_IT_IS
from tvm_ext.layout.lanes import BINARY, UNARY
from tvm_ext.relax_utils import constant, static_shape

ELEMENTWISE = frozenset(
    {*UNARY, *BINARY}
    | {f"relax.{name}" for name in "astype ceil floor left_shift right_shift round sign trunc".split()}
)
"""Operators that compute each element of a tensor from those at the same place, in any order of dimensions."""

CHANNELS_SECOND = frozenset({"NCW", "NCHW", "NCDHW"})


def channels_last(rank: int) -> tuple[int, ...]:
    """Order of dimensions that puts the second one last."""
    return (0, *range(2, rank), 1)


def channels_second(rank: int) -> tuple[int, ...]:
    """Order of dimensions that puts the last one second."""
    return (0, rank - 1, *range(1, rank - 1))


def in_last(shape: Sequence[int]) -> tuple[int, ...]:
    """Put the channels of a shape last."""
    return tuple(shape[at] for at in channels_last(len(shape)))


def may_reorder(call: relax.Call) -> bool:
    """Whether an operator that multiplies and adds has channels of its data and result in the second place."""
    attributes = call.attrs
    data, out = (str(getattr(attributes, name, "")) for name in ("data_layout", "out_layout"))
    return data in CHANNELS_SECOND and out in (data, "")


def tensors_alike(call: relax.Call) -> list[Any] | None:
    """List the tensors of the result's shape that an element-wise operator reads; None where it reads others, too.

    Constants are no matter: they can be stored in any order.
    """
    shape = static_shape(call)
    if getattr(call.op, "name", "") not in ELEMENTWISE or shape is None or len(shape) < 3 or 0 in shape:
        return None
    found: list[Any] = []
    for argument in call.args:
        if not isinstance(getattr(argument, "ty", None), relax.TensorType) or constant(argument) is not None:
            continue
        if not isinstance(argument, tvm.ir.Var) or static_shape(argument) != shape:
            return None
        found.append(argument)
    return found or None


def constant_last(values: Any, rank: int) -> relax.Expr:
    """Put the channels of a constant last that is broadcast to a tensor of so many dimensions."""
    whole = values.reshape((1,) * (rank - values.ndim) + values.shape)
    return relax.const(np.ascontiguousarray(whole.transpose(channels_last(rank))), str(values.dtype))


def kernel_in_order(func: tirx.PrimFunc, takes: str, gives: str) -> tirx.PrimFunc:
    """Let a kernel read its first parameter, and give its last, with channels last.

    What it makes of the first parameter before the product, as padding it, is in that order as well.

    Parameters
    ----------
    func : PrimFunc
        Not scheduled; its last block computes the result.
    takes, gives : str
        As in :mod:`tvm_ext.embedding.neighbours`.
    """
    schedule = s_tir.Schedule(tvm.IRModule({"main": func.with_attr("global_symbol", "main")}))
    *before, product = schedule.get_child_blocks(schedule.get_sblock("root"))
    data, result = func.params[0], func.params[-1]
    if takes != AS_IT_IS:
        names, rank = {str(data.name)}, len(data.ty.shape)
        for block in (*before, product):
            reads = [str(read.source.name) for read in schedule.get(block).reads]
            if str(data.name) in reads:
                schedule.transform_layout(block, ("read", reads.index(str(data.name))), _moved(rank))
                break
        for block in before:
            stage = schedule.get(block)
            if names & {str(read.source.name) for read in stage.reads}:
                names.add(str(stage.writes[0].source.name))
                schedule.transform_layout(block, ("write", 0), _moved(rank))
                schedule.transform_block_layout(block, _moved(rank))
    if gives != AS_IT_IS:
        schedule.transform_layout(product, ("write", 0), _moved(len(result.ty.shape)))
    return schedule.mod["main"].without_attr("global_symbol")


def _moved(rank: int) -> IndexMap:
    return IndexMap.from_func(lambda *place: [place[at] for at in channels_last(rank)], ndim=rank)
