"""The kernel that copies rows of a tensor of open extents into another tensor of more rows, or of fewer."""

# mypy: ignore-errors
# (what the script builder gives has no types)
from __future__ import annotations

import tvm
from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T
from tvm.tirx import PrimFunc

from tvm_ext.schedules.cpu.machine import Machine
from tvm_ext.schedules.cpu.open_tiles import ZERO, digits, product
from tvm_ext.schedules.cpu.tasks import WORK_ATTRIBUTE
from tvm_ext.schedules.rule import RULE_ATTRIBUTE
from tvm_ext.schedules.simd.loops import SIMD_ATTRIBUTE

ROW_COPY_RULE = "cpu.row_copy"
"""Stands as the schedule rule of the kernel: it is written as it should be."""


def row_copy(dtype: str, machine: Machine) -> PrimFunc:
    """Make the kernel.

    Parameters
    ----------
    dtype : str
    machine : Machine

    Returns
    -------
    tvm.tirx.PrimFunc
        Arguments: the first row to read, the first to write, how many there are (int64), the tensor that is read
        ``(outside, rows, inside)``, and the one that is written, of other rows.
    """
    with IRBuilder() as builder:
        with T.prim_func(is_private=True, s_tir=True):
            T.func_name("copy_rows")
            begin, place, count = (T.arg(name, T.int64()) for name in ("begin", "place", "count"))
            outside, rows, others, inside = (T.int64() for _ in range(4))
            source = T.arg("source", T.buffer((outside, rows, inside), dtype))
            target = T.arg("target", T.buffer((outside, others, inside), dtype))
            total = outside * count
            seconds = 2 * tvm.DataType(dtype).bits / 8 / machine.stream_bandwidth  # an element read and written
            work = product([total, inside, tirx.const(max(1, round(seconds * machine.flops)), "int64")])
            with (
                T.sblock("root"),
                T.attr(tirx.const(0, "int32"), WORK_ATTRIBUTE, work),
                T.parallel(ZERO, total) as task,
                T.sblock("copy"),
            ):
                number = T.axis.spatial(total, task)
                block, row = digits(number, [outside, count])
                with T.serial(ZERO, inside, annotations={SIMD_ATTRIBUTE: machine.lanes(dtype)}) as x:
                    T.buffer_store(target, source[block, begin + row, x], [block, place + row, x])
    attributes = {RULE_ATTRIBUTE: ROW_COPY_RULE, "tirx.is_scheduled": True, "tirx.noalias": True, "op_pattern": 8}
    return builder.get().with_attrs(attributes)
