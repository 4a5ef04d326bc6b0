"""Counts what the kernels of a module take, as they are behind all passes that merge them."""

from __future__ import annotations

from math import prod
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.tirx.buffer import BufferType

from tvm_ext.fusion.preference import Effort
from tvm_ext.graph.relax_module import is_view
from tvm_ext.memory.relax.graph import ALIGNMENT
from tvm_ext.memory.relax.kernel_access import kernel_access
from tvm_ext.relax_utils import static_shape
from tvm_ext.schedules.kernel.blocks import top_blocks
from tvm_ext.schedules.kernel.inline import inline_producers
from tvm_ext.schedules.rule import new_schedule


def module_effort(mod: tvm.IRModule) -> Effort:
    """Count calls of kernels, and the bytes of their results; estimated seconds are left at 0.

    Reshapes are views, and concatenations and slices are planned away where storages can begin where their parts do;
    these are not counted. Results of open size count as no bytes. Each place that calls counts once.
    """
    kernels = {variable: func for variable, func in mod.functions_items() if isinstance(func, tirx.PrimFunc)}
    free: dict[Any, bool] = {}
    calls, nbytes = 0, 0
    for _, func in mod.functions_items():
        if not isinstance(func, relax.Function):
            continue
        for binding in (binding for block in func.body.blocks for binding in block.bindings):
            call = getattr(binding, "value", None)
            kernel = call.args[0] if isinstance(call, relax.Call) and call.args else None
            if kernel not in kernels:
                continue
            if kernel not in free:
                free[kernel] = is_view(_in_one(kernels[kernel])) or is_planned_away(kernels[kernel])
            if not free[kernel]:
                calls += 1
                nbytes += sum(map(_bytes, _tensors(binding.var.ty)))
    return Effort(calls, nbytes, 0.0)


def _in_one(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Give a kernel whose result has as many elements as its only operand as one block, as scheduling makes it.

    Moves one after the other, such as out of blocks of channels and into another shape, are a view together.
    """
    shapes = [parameter.ty.shape for parameter in func.params if isinstance(parameter.ty, BufferType)]
    sizes = {_elements(shape) for shape in shapes}
    if len(shapes) != len(func.params) or len(shapes) != 2 or len(sizes) != 1 or None in sizes:
        return func
    schedule = new_schedule(func)
    if len(top_blocks(schedule)) < 2:
        return func
    try:
        inline_producers(schedule)
    except tvm.s_tir.ScheduleError:
        return func
    return schedule.mod["main"]


def _elements(shape: Any) -> int | None:
    return prod(map(int, shape)) if all(isinstance(extent, tirx.IntImm) for extent in shape) else None


def is_planned_away(func: tirx.PrimFunc) -> bool:
    """Whether a kernel joins tensors, or takes stretches of one, where storages can begin where the parts do."""
    access = kernel_access(func)
    return bool(access.slices or (access.parts and all(map(_is_aligned, access.parts))))


def _is_aligned(offset: Any) -> bool:
    return isinstance(offset, int) and offset % ALIGNMENT == 0


def _tensors(ty: Any) -> list[Any]:
    return [inner for item in ty.fields for inner in _tensors(item)] if isinstance(ty, relax.TupleType) else [ty]


def _bytes(ty: Any) -> int:
    shape = static_shape(ty) if isinstance(ty, relax.TensorType) else None
    return 0 if shape is None else prod(shape) * tvm.DataType(str(ty.dtype)).bits // 8
