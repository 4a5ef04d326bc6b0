"""Computes slices of the channels of a convolution by themselves, so that their whole is never there.

before: ``y = conv(x, w); a = y[:, :m]; b = y[:, m:]``
after:  ``a = conv(x, w[:m]); b = conv(x, w[m:])``

A spectrum is such a convolution: its real and imaginary parts are halves of the channels, and what follows is merged
into the kernels that make them. No channel is computed twice, so the slices must not overlap.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import tvm
from tvm import relax

from tvm_ext.memory.relax.trial import room_for
from tvm_ext.relax_utils import constant, static_shape

SLICES_ATTRIBUTE = "tvm_ext.sliced_convolutions"
"""Attribute of a function: convolutions that were taken apart, as JSON."""

LAYOUTS = {
    "relax.nn.conv1d": ("NCW", "OIW"),
    "relax.nn.conv2d": ("NCHW", "OIHW"),
    "relax.nn.conv3d": ("NCDHW", "OIDHW"),
}
CHANNELS = 1


@dataclass(frozen=True)
class Range:
    """Places ``begin .. end`` (exclusive) along an axis of a tensor."""

    axis: int
    begin: int
    end: int


def slice_convolutions(
    peak_of: Callable[[tvm.IRModule], int | None], limit: int = 0, function: str = "main"
) -> tvm.transform.Pass:
    """Make the pass; it works on operators, and keeps what it does where that lowers the peak.

    Parameters
    ----------
    peak_of : callable
        Gives the bytes alive at once in a module that is lowered on trial; None where sizes are open.
    limit : int
        Bytes below which nothing more is asked for.
    """

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.SliceConvolutions")
    def _slice_convolutions(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        global_var = next((var for var in mod.get_global_vars() if var.name_hint == function), None)
        if global_var is None or not is_one_block(mod[global_var]):
            return mod
        room = room_for(mod[global_var], limit)
        slices = sliced_convolutions(mod[global_var])
        before = peak_of(mod) if slices else None
        if before is None or before <= room:
            return mod
        tried = _applied(mod, global_var, slices)
        after = peak_of(tried)
        if after is None or after >= before:
            return mod
        note = json.dumps({"slices": len(slices), "before": before, "after": after})
        tried.update_func(global_var, tried[global_var].with_attr(SLICES_ATTRIBUTE, note))
        return tried

    return _slice_convolutions


def sliced_convolutions(func: relax.Function) -> dict[Any, tuple[Any, Range]]:
    """Find slices of channels; gives for each the convolution, and the channels."""
    bindings = func.body.blocks[0].bindings
    users: dict[Any, list[Any]] = {}
    for binding in bindings:
        for variable in relax.analysis.free_vars(binding.value):
            users.setdefault(variable, []).append(binding)
    found: dict[Any, tuple[Any, Range]] = {}
    for binding in bindings:
        if _is_plain(binding.value) and isinstance(binding.var, relax.DataflowVar):
            slices = _slices(binding.var, users)
            ranges = sorted((part.begin, part.end) for part in slices.values()) if slices else []
            if len(ranges) > 1 and all(end <= begin for (_, end), (begin, _) in pairwise(ranges)):
                assert slices is not None
                found.update({variable: (binding.value, part) for variable, part in slices.items()})
    return found


def is_one_block(func: Any) -> bool:
    """Whether a function is one dataflow block, in which operators are looked for."""
    if not isinstance(func, relax.Function) or not isinstance(func.body, relax.SeqExpr):
        return False
    return len(func.body.blocks) == 1 and isinstance(func.body.blocks[0], relax.DataflowBlock)


def _is_plain(value: Any) -> bool:
    """Whether a value is a convolution of one group with constant weights."""
    name = getattr(getattr(value, "op", None), "name", "")
    if name not in LAYOUTS or not isinstance(value.args[1], tvm.ir.GenericConst) or static_shape(value) is None:
        return False
    return (str(value.attrs.data_layout), str(value.attrs.kernel_layout)) == LAYOUTS[name] and value.attrs.groups == 1


def _slices(variable: Any, users: dict[Any, list[Any]]) -> dict[Any, Range] | None:
    """List the slices of channels that a value is used by; None where something else uses it, too."""
    found: dict[Any, Range] = {}
    shape = static_shape(variable)
    for binding in users.get(variable, ()):
        part = _part(binding.value, shape)
        if part is None:
            return None
        if (part.begin, part.end) == (0, (shape or ())[part.axis]):  # all there is: what uses it counts
            inner = _slices(binding.var, users) if isinstance(binding.var, relax.DataflowVar) else None
            if inner is None:
                return None
            found |= inner
        elif part.axis == CHANNELS:
            found[binding.var] = part
        else:
            return None
    return found


def _part(value: Any, shape: tuple[int, ...] | None) -> Range | None:
    """Read a slice of a row of places along one axis."""
    if getattr(getattr(value, "op", None), "name", "") != "relax.strided_slice" or shape is None:
        return None
    fields = [list(item.fields) for item in value.args[1:] if isinstance(item, relax.Tuple)]
    if len(fields) != len(value.args) - 1 or any(len(item) != 1 for item in fields):
        return None
    if not all(isinstance(number, tvm.tirx.IntImm) for (number,) in fields):
        return None
    axis, begin, end, *step = (int(number) for (number,) in fields)
    axis %= len(shape)
    end = min(end, shape[axis])
    return Range(axis, begin, end) if 0 <= begin < end and step in ([], [1]) else None


def _applied(mod: tvm.IRModule, global_var: tvm.ir.GlobalVar, slices: dict[Any, tuple[Any, Range]]) -> tvm.IRModule:
    func = mod[global_var]
    builder = relax.BlockBuilder()
    with builder.function(global_var.name_hint, func.params, attrs=dict(func.attrs.items()) if func.attrs else None):
        with builder.dataflow():
            for binding in func.body.blocks[0].bindings:
                if binding.var not in slices:
                    builder.emit_normalized(binding)
                    continue
                call, part = slices[binding.var]
                weight = constant(call.args[1])
                assert weight is not None
                channels = np.ascontiguousarray(weight[part.begin : part.end])
                operands = [call.args[0], relax.const(channels, str(channels.dtype))]
                sliced = builder.normalize(relax.Call(call.op, operands, call.attrs, call.ty_args))
                builder.emit_normalized(relax.VarBinding(binding.var, sliced))
        builder.emit_func_output(func.body.body)
    updated = tvm.IRModule(mod.functions, attrs=mod.attrs, global_infos=mod.global_infos)
    updated.update_func(global_var, builder.get()[global_var.name_hint])
    return relax.transform.DeadCodeElimination()(updated)
