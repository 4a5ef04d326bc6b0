"""Which operators work on the blocked layout, and how: one rule each, looked up by operator name.

A rule gets the mutator and the call as it stands in the old function; it returns the blocked result, or None to leave
the call on plain tensors. It also states what the lanes of its result hold that belong to no channel
(:mod:`tvm_ext.layout.lanes`).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import tvm
from tvm import relax

from tvm_ext.layout import lanes as lane_arithmetic
from tvm_ext.layout.convolution_plan import channel_block
from tvm_ext.layout.lanes import ANYTHING, Lanes
from tvm_ext.layout.relax.blocked import Blocked, BlockedLayoutMutator, Rule, turn_geometry
from tvm_ext.layout.relax.convolution import convolution_rule, transposed_convolution_rule
from tvm_ext.layout.relax.gated import gated_convolution_rule
from tvm_ext.layout.relax.norms import norm_rule
from tvm_ext.layout.relax.parts import concat_rule, pad_rule, slice_rule, split_rule
from tvm_ext.layout.relax.quantized import INTEGER_RULES
from tvm_ext.layout.relax.response import response_rule
from tvm_ext.passes.plane_pooling import pools_planes
from tvm_ext.relax_utils import OUT_ELEMENTWISE, constant, open_shape, same_extents, static_shape
from tvm_ext.schedules.compute.layout import block_channels, turn
from tvm_ext.schedules.compute.open_convolution import open_pool
from tvm_ext.schedules.compute.pool import global_average, pool
from tvm_ext.schedules.cpu.window import computed_strip_width


def take(rewriter: BlockedLayoutMutator, value: relax.Expr) -> Blocked | tuple[Blocked, ...] | None:
    """Rewrite a bound expression to the blocked layout, or return None."""
    if isinstance(value, relax.TupleGetItem):
        items = rewriter.blocked.get(value.tuple_value) if isinstance(value.tuple_value, relax.Var) else None
        return items[value.index] if isinstance(items, tuple) else None
    if not isinstance(value, relax.Call) or not isinstance(value.op, tvm.ir.Op):
        return None
    for rules in (INTEGER_RULES, CHAIN_RULES if rewriter.chains else {}, RULES):
        rule = rules.get(value.op.name)
        result = rule(rewriter, value) if rule is not None else None
        if result is not None:
            return result
    return None


def _unary(rewriter: BlockedLayoutMutator, call: relax.Call) -> Blocked | None:
    value = rewriter.known(call.args[0])
    parameters = _parameters(call)
    if value is None or parameters is None:
        return None
    var = rewriter.builder_.emit(relax.Call(call.op, [value.var, *call.args[1:]], call.attrs))
    lanes = lane_arithmetic.unary(call.op.name, value.lanes, str(var.ty.dtype), parameters)
    return rewriter.describe(var, value, lanes)


def _parameters(call: relax.Call) -> dict[str, float] | None:
    """Read the numbers that belong to an operator of one tensor; None if they are not known."""
    attributes = {name: getattr(call.attrs, name, None) for name in ("alpha", "beta", "threshold")}
    named = {name: value for name, value in attributes.items() if value is not None}
    named |= dict(zip(("min", "max"), call.args[1:], strict=False))
    values = {name: getattr(value, "value", value) for name, value in named.items()}
    known = {name: float(value) for name, value in values.items() if isinstance(value, int | float)}
    return known if len(known) == len(named) else None


def _astype(rewriter: BlockedLayoutMutator, call: relax.Call) -> Blocked | None:
    """Convert to another type."""
    value = rewriter.known(call.args[0])
    if value is None:
        return None
    var = rewriter.builder_.emit(relax.Call(call.op, [value.var], call.attrs))
    lanes = lane_arithmetic.cast(value.lanes, str(call.ty.dtype))
    return rewriter.describe(var, value, lanes)


def _binary(rewriter: BlockedLayoutMutator, call: relax.Call) -> Blocked | None:
    main, operands = _operands(rewriter, call)
    if main is None:
        return None
    (left, left_lanes), (right, right_lanes) = operands
    dtype = str(call.ty.dtype)
    if call.op.name == "relax.divide" and not main.full and (right_lanes is ANYTHING or right_lanes.has_zero):
        if int((*right.ty.shape, 1)[-1]) == main.block:  # lanes of its own: nothing is divided by zeros in them
            right = rewriter.fill_lanes(right, main.channels, 1.0)
            right_lanes = Lanes(1.0, 1.0)
        elif not lane_arithmetic.is_float(dtype):
            return None  # the processor stops at a division of integers by zero
    if call.op.name in lane_arithmetic.COMPARISONS:
        lanes: Lanes | None = lane_arithmetic.compared()
    else:
        lanes = lane_arithmetic.binary(call.op.name, left_lanes, right_lanes, dtype)
    var = rewriter.builder_.emit(relax.Call(call.op, [left, right], call.attrs))
    return rewriter.describe(var, main, lanes)


def _choice(rewriter: BlockedLayoutMutator, call: relax.Call) -> Blocked | None:
    """Take one value or another."""
    main, operands = _operands(rewriter, call)
    if main is None:
        return None
    var = rewriter.builder_.emit(relax.Call(call.op, [value for value, _ in operands], call.attrs))
    return rewriter.describe(var, main, lane_arithmetic.either(*(lanes for _, lanes in operands[1:])))


def _falling(rewriter: BlockedLayoutMutator, call: relax.Call) -> Blocked | None:
    """Multiply what is below zero with a slope for each channel."""
    value, slopes = rewriter.known(call.args[0]), constant(call.args[1])
    if value is None or slopes is None or int(call.attrs.axis) % value.rank != 1:
        return None
    shape, dtype = (1, -1, *[1] * (value.rank - 2)), str(call.ty.dtype)
    slope = _operand(rewriter, relax.const(slopes.reshape(shape), dtype), value, "relax.multiply")
    if slope is None:
        return None
    emit = rewriter.builder_.emit
    product = emit(relax.op.multiply(value.var, slope[0]))
    var = emit(relax.op.where(emit(relax.op.less(value.var, relax.const(0, dtype))), product, value.var))
    fallen = lane_arithmetic.binary("relax.multiply", value.lanes, slope[1], dtype)
    return rewriter.describe(var, value, lane_arithmetic.either(value.lanes, fallen))


Operands = list[tuple[relax.Expr, Lanes | None]]


def _operands(rewriter: BlockedLayoutMutator, call: relax.Call) -> tuple[Blocked | None, Operands]:
    """Bring operands that broadcast into one block, that of the first to have the result's extents, which is given.

    None where there is no such operand, or another one has no place in its block.
    """
    known = [rewriter.known(arg) for arg in call.args]
    shape = open_shape(call)
    if not any(known) or shape is None:
        return None, []

    def decides(value: Blocked | None) -> bool:
        """Whether an operand has all of the result's extents; it decides the block, the other ones follow."""
        return (
            value is not None
            and value.rank == len(shape)
            and same_extents([value.channels], [shape[1]])
            and same_extents(value.spatial[-len(shape[2:]) :], shape[2:])
            and same_extents([value.shape[0]], [shape[0]])
        )

    main = next((value for value in known if decides(value)), None)
    if main is None:
        return None, []
    operands: Operands = []
    for arg in call.args:
        operand = _operand(rewriter, arg, main, call.op.name)
        if operand is None:
            return None, []
        operands.append(operand)
    return main, operands


def _operand(
    rewriter: BlockedLayoutMutator, arg: relax.Expr, main: Blocked, op_name: str
) -> tuple[relax.Expr, Lanes | None] | None:
    """Bring an operand of a binary operator into the block of the one that decides; with what its lanes hold."""
    shape = None if isinstance(arg, tvm.tirx.IntImm | tvm.tirx.FloatImm) else open_shape(arg)
    if shape is None:
        return (arg, ANYTHING) if isinstance(arg, tvm.tirx.IntImm | tvm.tirx.FloatImm) else None
    values = arg.value.numpy() if isinstance(arg, tvm.ir.GenericConst) else None
    dtype = str(arg.ty.dtype)
    if len(shape) == main.rank and same_extents([shape[1]], [main.channels]) and values is None:
        spread = _spread(rewriter, arg, main)
        if spread is not None:
            return spread
        value = rewriter.to_block(arg, main.block, main.turned)
        return value.var, value.lanes
    known = ANYTHING if values is None else lane_arithmetic.of_values(values, dtype)
    if all(isinstance(extent, int) and extent == 1 for extent in shape):
        if values is not None:
            # A scalar becomes a literal of the kernel, and TVM refuses to divide by the literal zero.
            return relax.const(values.reshape(() if values.any() else (1,)), dtype), known
        scalar = rewriter.visit_expr(arg)
        return (scalar if not shape else rewriter.builder_.emit(relax.op.reshape(scalar, ()))), ANYTHING
    full = (1,) * (main.rank - len(shape)) + shape
    if not isinstance(full[1], int):
        return None
    if main.rank == 3:
        full = (*full[:2], 1, full[2])
    if values is not None:
        values = values.reshape(full)
        values = values.swapaxes(-2, -1) if main.turned else values
        if full[1] == 1:  # no channels: the same for all lanes
            return relax.const(values[..., None], dtype), known
        fill = 1.0 if op_name in ("relax.divide", "relax.power") else 0.0
        return relax.const(block_channels(values, main.block, fill), dtype), Lanes(fill, fill)
    if full[1] != 1:
        return None
    image = rewriter.known(arg)
    if image is not None and image.rank == main.rank and image.turned == main.turned:
        last = len(image.shape) - 1  # its only channel is in the first lane
        return rewriter.builder_.emit(relax.op.strided_slice(image.var, [last], [0], [1])), ANYTHING
    plain = rewriter.visit_expr(arg)
    if main.turned and not same_extents(full[-2:], (1, 1)):
        plain = rewriter.turn_image(rewriter.builder_.emit(relax.op.reshape(plain, full)), -2)
    stored = (full[0], 1, *turn(full[2:], main.turned), 1)
    return rewriter.builder_.emit(relax.op.reshape(plain, stored)), ANYTHING


def _spread(rewriter: BlockedLayoutMutator, arg: relax.Expr, main: Blocked) -> tuple[relax.Expr, Lanes | None] | None:
    """Compute an operand in blocks that is a number for each channel with one for each pixel, or smaller parts yet."""
    call: Any = rewriter.definitions.get(arg) if isinstance(arg, relax.Var) else None
    name = call.op.name if isinstance(call, relax.Call) and isinstance(call.op, tvm.ir.Op) else ""
    if name not in lane_arithmetic.BINARY or rewriter.known(arg) is not None or rewriter.uses[arg] != 1:
        return None
    shape = open_shape(arg) or ()
    if any(same_extents(open_shape(part) or (), shape) for part in call.args):
        return None
    operands = [_operand(rewriter, part, main, name) for part in call.args]
    if len(operands) != 2 or any(operand is None for operand in operands):
        return None
    (left, left_lanes), (right, right_lanes) = operands  # type: ignore[misc]
    lanes = lane_arithmetic.binary(name, left_lanes, right_lanes, str(call.ty.dtype))
    return rewriter.builder_.emit(relax.Call(call.op, [left, right], call.attrs)), lanes


def _pool(rewriter: BlockedLayoutMutator, call: relax.Call) -> Blocked | None:
    value = rewriter.known(call.args[0])
    if value is None and _pays_for_copies(rewriter, call):
        value = rewriter.to_block(call.args[0], channel_block(int(call.ty.shape[1]), rewriter.machine))
    if value is not None and value.is_open:
        return _open_pool(rewriter, call, value)
    out_shape = static_shape(call)
    if value is None or out_shape is None or value.rank != len(out_shape) or value.rank == 3:
        return None
    attributes = call.attrs
    if attributes.layout != ("NCHW" if value.rank == 4 else "NCDHW"):
        return None
    kind = "max" if "max" in call.op.name else "avg"
    sources = {"kernel": "pool_size", "strides": "strides", "padding": "padding", "dilation": "dilation"}
    sizes = {name: [int(item) for item in getattr(attributes, source)] for name, source in sources.items()}
    sizes = turn_geometry(sizes, value.turned)
    out_spatial = turn(out_shape[2:], value.turned)
    include = bool(getattr(attributes, "count_include_pad", False))
    dtype = str(call.ty.dtype)
    if kind == "avg" and not lane_arithmetic.is_float(dtype):
        return None
    var = rewriter.emit_kernel(
        pool, [value.var], f"{kind}_pool", OUT_ELEMENTWISE, kind=kind, out_shape=out_spatial,
        computed_width=computed_strip_width(out_spatial[-1], rewriter.machine.vector_registers),
        count_include_pad=include, **sizes,
    )  # fmt: skip
    lanes: Lanes | None = value.lanes
    if kind == "avg":
        lanes = lane_arithmetic.average(lanes, dtype)
    elif not _windows_meet_input(value.stored, out_spatial, sizes):
        lanes = ANYTHING  # the largest of nothing is the least number there is
    return rewriter.describe(var, value, lanes)


SHORT_ROWS, FEW_TAPS = 3, 3
"""Vectors of a row, and columns of a window, up to which blocks of channels are faster than rows where windows move by
one column, transpositions included: on one thread of Zen 3 an average over 3 x 3 of 192 channels of 17 x 17 takes 0.6
of the time in blocks, of 35 x 35 0.95; a maximum over 5 x 5 of 20 x 20 1.7 times as long."""


def _pays_for_copies(rewriter: BlockedLayoutMutator, call: relax.Call) -> bool:
    """Whether pooling planes or volumes is worth two transpositions: windows overlap, channels fill vectors, and rows
    are short.
    """
    shape, result, attributes = static_shape(call.args[0]), static_shape(call), call.attrs
    if shape is None or result is None or str(call.ty.dtype) != "float32":
        return False
    if attributes.layout not in ("NCHW", "NCDHW") or 0 in (*shape, *result):
        return False
    lanes = rewriter.machine.lanes("float32")
    is_short = shape[-1] < SHORT_ROWS * lanes and attributes.strides[-1] == 1 and attributes.pool_size[-1] <= FEW_TAPS
    if shape[1] < lanes or (pools_planes(call, rewriter.machine) and not is_short):
        return False
    # One pixel is an average along rows, which plain tensors are good for.
    taps = prod(int(extent) for extent in attributes.pool_size)
    return prod(result[2:]) > 1 and taps > prod(int(step) for step in attributes.strides)


def _open_pool(rewriter: BlockedLayoutMutator, call: relax.Call, value: Blocked) -> Blocked | None:
    """Pool a tensor of open extents."""
    attributes, out_shape, dtype = call.attrs, open_shape(call), str(call.ty.dtype)
    if attributes.layout != ("NCHW" if value.rank == 4 else "NCDHW") or value.turned:
        return None
    kind = "max" if "max" in call.op.name else "avg"
    if dtype != "float32" and (kind, dtype) != ("max", "uint8"):
        return None
    sources = {"kernel": "pool_size", "strides": "strides", "padding": "padding", "dilation": "dilation"}
    sizes = {name: [int(item) for item in getattr(attributes, source)] for name, source in sources.items()}
    include = bool(getattr(attributes, "count_include_pad", False))
    var = rewriter.emit_kernel(
        open_pool, [value.var], f"{kind}_pool", OUT_ELEMENTWISE, kind=kind, ceil_mode=bool(attributes.ceil_mode),
        count_include_pad=include, **sizes,
    )  # fmt: skip
    found = open_shape(var)
    if out_shape is None or found is None or not same_extents(out_shape[2:], found[2:-1]):
        return None
    # A window of nothing but padding has the least number there is.
    return rewriter.describe(var, value, lane_arithmetic.average(value.lanes, dtype) if kind == "avg" else ANYTHING)


def _windows_meet_input(spatial: Sequence[int], out: Sequence[int], sizes: dict[str, list[int]]) -> bool:
    """Whether every window of a pooling holds an element of its input, none of them padding only."""
    for axis, (extent, count) in enumerate(zip(spatial, out, strict=True)):
        kernel, stride, step = sizes["kernel"][axis], sizes["strides"][axis], sizes["dilation"][axis]
        for index in range(count):
            first = index * stride - sizes["padding"][axis]
            if not any(0 <= first + tap * step < extent for tap in range(kernel)):
                return False
    return True


def _global_average(rewriter: BlockedLayoutMutator, call: relax.Call) -> Blocked | None:
    value = rewriter.known(call.args[0])
    shape = open_shape(call)
    if value is None or shape is None or len(shape) != value.rank or not same_extents(shape[2:], (1,) * len(shape[2:])):
        return None
    if call.op.name == "relax.mean":
        axes = sorted(int(axis) % value.rank for axis in call.attrs.axis or ())
        if axes != list(range(2, value.rank)):
            return None
    dtype = str(call.ty.dtype)
    if not lane_arithmetic.is_float(dtype):
        return None
    var = rewriter.emit_kernel(global_average, [value.var], "global_average", rewriter.pattern((1, 1)))
    return rewriter.describe(var, value, lane_arithmetic.average(value.lanes, dtype))


CHAIN_RULES: dict[str, Rule] = {"relax.divide": response_rule, "relax.nn.conv2d": gated_convolution_rule}
"""Rules of operators that end a chain which becomes one kernel; asked first."""

RULES: dict[str, Rule] = {
    "relax.nn.conv1d": convolution_rule,
    "relax.nn.conv2d": convolution_rule,
    "relax.nn.conv3d": convolution_rule,
    "relax.nn.conv2d_transpose": transposed_convolution_rule,
    "relax.nn.max_pool2d": _pool,
    "relax.nn.max_pool3d": _pool,
    "relax.nn.avg_pool2d": _pool,
    "relax.nn.avg_pool3d": _pool,
    "relax.nn.adaptive_avg_pool2d": _global_average,
    "relax.nn.adaptive_avg_pool3d": _global_average,
    "relax.mean": _global_average,
    "relax.astype": _astype,
    "relax.concat": concat_rule,
    "relax.split": split_rule,  # type: ignore[dict-item]
    "relax.strided_slice": slice_rule,
    "relax.where": _choice,
    "relax.nn.pad": pad_rule,
    "relax.nn.prelu": _falling,
    "relax.nn.group_norm": norm_rule,
    "relax.nn.instance_norm": norm_rule,
    "relax.nn.layer_norm": norm_rule,
    **dict.fromkeys(lane_arithmetic.UNARY, _unary),
    **dict.fromkeys((*lane_arithmetic.BINARY, *lane_arithmetic.COMPARISONS), _binary),
}
