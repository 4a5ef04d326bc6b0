"""Which operators work on the blocked layout, and how: one rule each, looked up by operator name.

A rule gets the mutator and the call as it stands in the old function; it returns the blocked result, or None to leave
the call on plain tensors.
"""

from __future__ import annotations

import numpy as np
import tvm
from tvm import relax

from tvm_ext.passes.layout import (
    OUT_ELEMENTWISE,
    Blocked,
    BlockedLayoutMutator,
    Rule,
    channel_block,
)
from tvm_ext.schedules.compute.conv2d import (
    conv2d,
    depthwise_conv2d,
    output_extent,
    pack_depthwise_weight,
    pack_weight,
)
from tvm_ext.schedules.compute.layout import block_channels
from tvm_ext.schedules.compute.pool2d import global_average, pool2d
from tvm_ext.schedules.cpu.conv2d import computed_width
from tvm_ext.schedules.cpu.window import computed_strip_width

# Element-wise operators of one tensor, finite for finite values (also those in unused lanes); further arguments are
# plain numbers.
UNARY = (
    "relax.nn.relu", "relax.nn.leakyrelu", "relax.nn.silu", "relax.nn.gelu", "relax.nn.gelu_tanh", "relax.nn.softplus",
    "relax.sigmoid", "relax.tanh", "relax.clip", "relax.exp", "relax.sqrt", "relax.abs", "relax.negative",
    "relax.erf", "relax.square",
)  # fmt: skip
BINARY = (
    "relax.add", "relax.subtract", "relax.multiply", "relax.divide", "relax.maximum", "relax.minimum",
)  # fmt: skip


def take(rewriter: BlockedLayoutMutator, value: relax.Expr) -> Blocked | tuple[Blocked, ...] | None:
    """Rewrite a bound expression to the blocked layout, or return None."""
    if isinstance(value, relax.TupleGetItem):
        items = rewriter.blocked.get(value.tuple_value) if isinstance(value.tuple_value, relax.Var) else None
        return items[value.index] if isinstance(items, tuple) else None
    if not isinstance(value, relax.Call) or not isinstance(value.op, tvm.ir.Op):
        return None
    rule = RULES.get(value.op.name)
    return rule(rewriter, value) if rule is not None else None


def _blocked(rewriter: BlockedLayoutMutator, expr: relax.Expr) -> Blocked | None:
    value = rewriter.blocked.get(expr) if isinstance(expr, relax.Var) else None
    return value if isinstance(value, Blocked) else None


def _static_shape(expr: relax.Expr) -> tuple[int, ...] | None:
    shape = getattr(expr.ty, "shape", None)
    if not isinstance(shape, relax.ShapeExpr) or not all(isinstance(extent, tvm.tirx.IntImm) for extent in shape):
        return None
    return tuple(int(extent) for extent in shape)


def _convolution(rewriter: BlockedLayoutMutator, call: relax.Call) -> Blocked | None:
    data, weight = call.args
    attributes = call.attrs
    shape = _static_shape(data)
    if (
        shape is None
        or not isinstance(weight, tvm.ir.GenericConst)
        or (attributes.data_layout, attributes.kernel_layout) != ("NCHW", "OIHW")
        or str(data.ty.dtype) != "float32"
        or str(call.ty.dtype) != "float32"
    ):
        return None
    array = weight.value.numpy()
    strides, padding, dilation = (
        [int(item) for item in items] for items in (attributes.strides, attributes.padding, attributes.dilation)
    )
    geometry = {"strides": strides, "padding": padding, "dilation": dilation}
    lanes = rewriter.machine.lanes("float32")
    groups, in_channels, out_channels = int(attributes.groups), shape[1], array.shape[0]
    known = _blocked(rewriter, data)
    out_w = output_extent(shape[3], array.shape[3], strides[1], padding[1], padding[3], dilation[1])
    if groups == in_channels == out_channels and groups > 1:
        block = known.block if known else channel_block(in_channels, lanes)
        source = rewriter.to_block(data, block)
        packed = relax.const(pack_depthwise_weight(array, block))
        var = rewriter.emit_kernel(
            depthwise_conv2d, [source.var, packed], "depthwise_conv2d", OUT_ELEMENTWISE,
            computed_width=computed_strip_width(out_w, rewriter.machine.vector_registers), **geometry,
        )  # fmt: skip
        return Blocked(var, out_channels)
    if groups == 1:
        block_out = channel_block(out_channels, lanes)
        if known:
            block_in = known.block
        else:
            block_in = 1 if in_channels < lanes // 2 else channel_block(in_channels, lanes)
    else:
        sizes = [size for size in (lanes, lanes // 2, lanes // 4) if size > 1]
        block_out = next((size for size in sizes if out_channels // groups % size == 0), 0)
        block_in = next((size for size in (*sizes, 1) if in_channels // groups % size == 0), 0)
        if not block_out:
            return None
    source = rewriter.to_block(data, block_in)
    packed = relax.const(pack_weight(array, block_in, block_out, groups))
    var = rewriter.emit_kernel(
        conv2d, [source.var, packed], "conv2d", OUT_ELEMENTWISE, groups=groups,
        computed_width=computed_width(out_w, -(-out_channels // block_out), rewriter.machine), **geometry,
    )  # fmt: skip
    return Blocked(var, out_channels)


def _unary(rewriter: BlockedLayoutMutator, call: relax.Call) -> Blocked | None:
    value = _blocked(rewriter, call.args[0])
    if value is None or any(isinstance(arg, relax.Var) for arg in call.args[1:]):
        return None
    new_call = relax.Call(call.op, [value.var, *call.args[1:]], call.attrs)
    return Blocked(rewriter.builder_.emit(new_call), value.channels)


def _binary(rewriter: BlockedLayoutMutator, call: relax.Call) -> Blocked | None:
    known = [_blocked(rewriter, arg) for arg in call.args]
    shape = _static_shape(call)
    if not any(known) or shape is None or len(shape) != 4:
        return None
    # The operand with all of the result's extents decides the block; the other one follows or broadcasts.
    main = next(
        (value for value in known if value and value.channels == shape[1] and value.shape[2:4] == shape[2:]), None
    )
    if main is None:
        return None
    if call.op.name == "relax.divide" and not main.full and not isinstance(call.args[1], tvm.ir.GenericConst):
        return None  # 0 / 0 in the unused lanes would spread through the next convolution
    operands = []
    for value, arg in zip(known, call.args, strict=True):
        operand = value.var if value and value.block == main.block else _operand(rewriter, arg, main, call.op.name)
        if operand is None:
            return None
        operands.append(operand)
    return Blocked(rewriter.builder_.emit(relax.Call(call.op, operands, call.attrs)), main.channels)


def _operand(rewriter: BlockedLayoutMutator, arg: relax.Expr, main: Blocked, op_name: str) -> relax.Expr | None:
    """Bring the second operand of a binary operator into the block of the first."""
    shape = _static_shape(arg)
    if shape is None:
        return arg if isinstance(arg, tvm.tirx.PrimExpr) else None
    if int(np.prod(shape)) == 1:
        scalar = rewriter.visit_expr(arg)
        return scalar if not shape else rewriter.builder_.emit(relax.op.reshape(scalar, ()))
    full = (1,) * (4 - len(shape)) + shape
    if full[1] == 1:  # no channels: the same for all lanes
        plain = rewriter.visit_expr(arg)
        return rewriter.builder_.emit(relax.op.reshape(plain, (full[0], 1, full[2], full[3], 1)))
    if isinstance(arg, tvm.ir.GenericConst):
        fill = 1.0 if op_name == "relax.divide" else 0.0
        return relax.const(block_channels(arg.value.numpy().reshape(full), main.block, fill))
    if len(shape) == 4 and shape[1] == main.channels:
        return rewriter.to_block(arg, main.block).var
    return None


def _pool(rewriter: BlockedLayoutMutator, call: relax.Call) -> Blocked | None:
    value = _blocked(rewriter, call.args[0])
    out_shape = _static_shape(call)
    if value is None or out_shape is None or call.attrs.layout != "NCHW":
        return None
    attributes = call.attrs
    kind = "max" if "max" in call.op.name else "avg"
    sizes = {
        name: [int(item) for item in getattr(attributes, source)]
        for name, source in (
            ("kernel", "pool_size"),
            ("strides", "strides"),
            ("padding", "padding"),
            ("dilation", "dilation"),
        )
    }
    include = bool(getattr(attributes, "count_include_pad", False))
    var = rewriter.emit_kernel(
        pool2d, [value.var], f"{kind}_pool2d", OUT_ELEMENTWISE, kind=kind, out_shape=list(out_shape[2:]),
        count_include_pad=include, computed_width=computed_strip_width(out_shape[3], rewriter.machine.vector_registers),
        **sizes,
    )  # fmt: skip
    return Blocked(var, value.channels)


def _global_average(rewriter: BlockedLayoutMutator, call: relax.Call) -> Blocked | None:
    value = _blocked(rewriter, call.args[0])
    shape = _static_shape(call)
    if value is None or shape is None or len(shape) != 4 or shape[2:] != (1, 1):
        return None
    if call.op.name == "relax.mean":
        axes = sorted(int(axis) % 4 for axis in call.attrs.axis or ())
        if axes != [2, 3]:
            return None
    var = rewriter.emit_kernel(global_average, [value.var], "global_average", OUT_ELEMENTWISE)
    return Blocked(var, value.channels)


def _concat(rewriter: BlockedLayoutMutator, call: relax.Call) -> Blocked | None:
    items = call.args[0]
    if not isinstance(items, relax.Tuple) or call.attrs.axis is None or int(call.attrs.axis) not in (1, -3):
        return None
    shape = _static_shape(call)
    known = [_blocked(rewriter, item) for item in items.fields]
    if shape is None or len(shape) != 4 or not any(known):
        return None
    channels = [_static_shape(item)[1] for item in items.fields]  # type: ignore[index]
    block = min(value.block for value in known if value)
    if any(count % block for count in channels):
        return None
    parts = [rewriter.to_block(item, block).var for item in items.fields]
    return Blocked(rewriter.builder_.emit(relax.op.concat(parts, axis=1)), sum(channels))


def _split(rewriter: BlockedLayoutMutator, call: relax.Call) -> tuple[Blocked, ...] | None:
    value = _blocked(rewriter, call.args[0])
    if value is None or not value.full or int(call.attrs.axis) not in (1, -3):
        return None
    sections = [_static_shape_of_type(field) for field in call.ty.fields]
    if any(shape is None or shape[1] % value.block for shape in sections):
        return None
    bounds = np.cumsum([shape[1] // value.block for shape in sections])[:-1]  # type: ignore[index]
    parts = rewriter.builder_.emit(relax.op.split(value.var, [int(bound) for bound in bounds], axis=1))
    return tuple(
        Blocked(rewriter.builder_.emit(relax.TupleGetItem(parts, index)), shape[1])  # type: ignore[index]
        for index, shape in enumerate(sections)
    )


def _static_shape_of_type(tensor: relax.TensorType) -> tuple[int, ...] | None:
    if not isinstance(tensor.shape, relax.ShapeExpr) or not all(isinstance(e, tvm.tirx.IntImm) for e in tensor.shape):
        return None
    return tuple(int(extent) for extent in tensor.shape)


RULES: dict[str, Rule] = {
    "relax.nn.conv2d": _convolution,
    "relax.nn.max_pool2d": _pool,
    "relax.nn.avg_pool2d": _pool,
    "relax.nn.adaptive_avg_pool2d": _global_average,
    "relax.mean": _global_average,
    "relax.concat": _concat,
    "relax.split": _split,  # type: ignore[dict-item]
    **dict.fromkeys(UNARY, _unary),
    **dict.fromkeys(BINARY, _binary),
}
