"""Which operators work on the blocked layout, and how: one rule each, looked up by operator name.

A rule gets the mutator and the call as it stands in the old function; it returns the blocked result, or None to leave
the call on plain tensors.
"""

from __future__ import annotations

from dataclasses import replace

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
from tvm_ext.passes.layout_winograd import winograd_convolution
from tvm_ext.passes.quantized_layout import INTEGER_RULES
from tvm_ext.schedules.compute.convolution import (
    convolution,
    depthwise_convolution,
    output_extent,
    pack_depthwise_weight,
    pack_weight,
    transposed_as_convolution,
    transposed_convolution,
)
from tvm_ext.schedules.compute.layout import block_channels
from tvm_ext.schedules.compute.pool import global_average, pool
from tvm_ext.schedules.cpu.convolution import computed_chunks, computed_width
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
    for rules in (INTEGER_RULES, RULES):
        rule = rules.get(value.op.name)
        result = rule(rewriter, value) if rule is not None else None
        if result is not None:
            return result
    return None


def _blocked(rewriter: BlockedLayoutMutator, expr: relax.Expr) -> Blocked | None:
    value = rewriter.blocked.get(expr) if isinstance(expr, relax.Var) else None
    return value if isinstance(value, Blocked) else None


def _static_shape(expr: relax.Expr) -> tuple[int, ...] | None:
    shape = getattr(expr.ty, "shape", None)
    if not isinstance(shape, relax.ShapeExpr) or not all(isinstance(extent, tvm.tirx.IntImm) for extent in shape):
        return None
    return tuple(int(extent) for extent in shape)


# Convolutions: operator -> layouts of data and weight that the rule takes.
CONVOLUTIONS = {
    "relax.nn.conv1d": ("NCW", "OIW"),
    "relax.nn.conv2d": ("NCHW", "OIHW"),
    "relax.nn.conv3d": ("NCDHW", "OIDHW"),
    "relax.nn.conv2d_transpose": ("NCHW", "IOHW"),
}


def _known_weight(call: relax.Call) -> np.ndarray | None:
    """Weight of a float32 convolution that a rule can take."""
    data, weight = call.args
    if (
        _static_shape(data) is None
        or not isinstance(weight, tvm.ir.GenericConst)
        or (call.attrs.data_layout, call.attrs.kernel_layout) != CONVOLUTIONS[call.op.name]
        or str(data.ty.dtype) != "float32"
        or str(call.ty.dtype) != "float32"
    ):
        return None
    return weight.value.numpy()


def _geometry(call: relax.Call) -> dict[str, list[int]]:
    """Strides, padding and dilation of a convolution; those of a 1-D one extended by an axis of height 1."""
    strides, padding, dilation = (
        [int(item) for item in items] for items in (call.attrs.strides, call.attrs.padding, call.attrs.dilation)
    )
    if call.op.name == "relax.nn.conv1d":
        return {"strides": [1, *strides], "padding": [0, padding[0], 0, padding[1]], "dilation": [1, *dilation]}
    return {"strides": strides, "padding": padding, "dilation": dilation}


def _input_block(rewriter: BlockedLayoutMutator, data: relax.Expr, channels: int) -> int:
    """Block in which a convolution over all channels reads its input."""
    known = _blocked(rewriter, data)
    lanes = rewriter.machine.lanes("float32")
    if known:
        return known.block
    return 1 if channels < lanes // 2 else channel_block(channels, lanes)


def _convolution(rewriter: BlockedLayoutMutator, call: relax.Call) -> Blocked | None:
    weight = _known_weight(call)
    if weight is None:
        return None
    data, geometry = call.args[0], _geometry(call)
    shape = _static_shape(data)
    assert shape is not None
    if weight.ndim == 3:
        weight = weight[:, :, None]
    lanes = rewriter.machine.lanes("float32")
    groups, in_channels, out_channels = int(call.attrs.groups), shape[1], weight.shape[0]
    padding_w = geometry["padding"][weight.ndim - 3], geometry["padding"][-1]
    out_w = output_extent(shape[-1], weight.shape[-1], geometry["strides"][-1], *padding_w, geometry["dilation"][-1])
    known = _blocked(rewriter, data)
    if groups == in_channels == out_channels and groups > 1:
        block = known.block if known else channel_block(in_channels, lanes)
        source = rewriter.to_block(data, block)
        packed = relax.const(pack_depthwise_weight(weight, block))
        var = rewriter.emit_kernel(
            depthwise_convolution, [source.var, packed], "depthwise_conv", OUT_ELEMENTWISE,
            computed_width=computed_strip_width(out_w, rewriter.machine.vector_registers), **geometry,
        )  # fmt: skip
        return Blocked(var, out_channels, len(shape))
    if groups == 1:
        block_out = channel_block(out_channels, lanes)
        block_in = _input_block(rewriter, data, in_channels)
    else:
        sizes = [size for size in (lanes, lanes // 2, lanes // 4) if size > 1]
        block_out = next((size for size in sizes if out_channels // groups % size == 0), 0)
        block_in = next((size for size in (*sizes, 1) if in_channels // groups % size == 0), 0)
        if not block_out:
            return None
    source = rewriter.to_block(data, block_in)
    if groups == 1:
        result = winograd_convolution(rewriter, source, weight, block_out, geometry)
        if result is not None:
            return Blocked(result, out_channels, len(shape))
    out_chunks = -(-out_channels // block_out)
    chunks = computed_chunks(out_w, out_chunks, rewriter.machine) if groups == 1 else out_chunks
    packed = pack_weight(weight, block_in, block_out, groups)
    packed = np.pad(packed, [(0, chunks - out_chunks)] + [(0, 0)] * (packed.ndim - 1))
    var = rewriter.emit_kernel(
        convolution, [source.var, relax.const(packed)], "conv", OUT_ELEMENTWISE, groups=groups,
        computed_width=computed_width(out_w, chunks, rewriter.machine), out_chunks=out_chunks, **geometry,
    )  # fmt: skip
    return Blocked(var, out_channels, len(shape))


def _transposed_convolution(rewriter: BlockedLayoutMutator, call: relax.Call) -> Blocked | None:
    weight, out_shape = _known_weight(call), _static_shape(call)
    geometry = _geometry(call)
    if weight is None or out_shape is None or int(call.attrs.groups) != 1 or geometry["dilation"] != [1, 1]:
        return None
    data, strides = call.args[0], geometry["strides"]
    shape = _static_shape(data)
    assert shape is not None
    phases, first, counts = transposed_as_convolution(weight, strides, geometry["padding"], out_shape[2:])
    if any(count * stride != extent for count, stride, extent in zip(counts, strides, out_shape[2:], strict=True)):
        return None  # the last row or column of phases is not whole
    block_out = channel_block(weight.shape[1], rewriter.machine.lanes("float32"))
    source = rewriter.to_block(data, _input_block(rewriter, data, shape[1]))
    packed = np.stack([[pack_weight(phase, source.block, block_out) for phase in row] for row in phases])
    padding = [-offset for offset in first] + [
        count + taps + offset - extent - 1
        for count, taps, offset, extent in zip(counts, phases.shape[-2:], first, shape[2:], strict=True)
    ]
    var = rewriter.emit_kernel(
        transposed_convolution, [source.var, relax.const(packed)], "conv_transpose", OUT_ELEMENTWISE,
        padding=padding, out_shape=list(out_shape[2:]),
        computed_width=computed_width(counts[1], packed.shape[2], rewriter.machine),
    )  # fmt: skip
    return Blocked(var, weight.shape[1])


def _unary(rewriter: BlockedLayoutMutator, call: relax.Call) -> Blocked | None:
    value = _blocked(rewriter, call.args[0])
    if value is None or any(isinstance(arg, relax.Var) for arg in call.args[1:]):
        return None
    new_call = relax.Call(call.op, [value.var, *call.args[1:]], call.attrs)
    return replace(value, var=rewriter.builder_.emit(new_call))


def _astype(rewriter: BlockedLayoutMutator, call: relax.Call) -> Blocked | None:
    """Convert between types of floats, which keeps unused lanes finite or makes them zero."""
    return _unary(rewriter, call) if "float" in str(call.ty.dtype) else None


def _binary(rewriter: BlockedLayoutMutator, call: relax.Call) -> Blocked | None:
    known = [_blocked(rewriter, arg) for arg in call.args]
    shape = _static_shape(call)
    if not any(known) or shape is None:
        return None

    def decides(value: Blocked | None) -> bool:
        """Whether an operand has all of the result's extents; it decides the block, the other one follows."""
        return (
            value is not None
            and value.rank == len(shape)
            and value.channels == shape[1]
            and value.spatial[-len(shape[2:]) :] == shape[2:]
            and value.shape[0] == shape[0]
        )

    main = next((value for value in known if decides(value)), None)
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
    return replace(main, var=rewriter.builder_.emit(relax.Call(call.op, operands, call.attrs)))


def _operand(rewriter: BlockedLayoutMutator, arg: relax.Expr, main: Blocked, op_name: str) -> relax.Expr | None:
    """Bring the second operand of a binary operator into the block of the first."""
    shape = _static_shape(arg)
    if shape is None:
        return arg if isinstance(arg, tvm.tirx.IntImm | tvm.tirx.FloatImm) else None
    if int(np.prod(shape)) == 1:
        if isinstance(arg, tvm.ir.GenericConst):
            return relax.const(arg.value.numpy().reshape(()), str(arg.ty.dtype))
        scalar = rewriter.visit_expr(arg)
        return scalar if not shape else rewriter.builder_.emit(relax.op.reshape(scalar, ()))
    full = (1,) * (main.rank - len(shape)) + shape
    if main.rank == 3:
        full = (*full[:2], 1, full[2])
    if full[1] == 1:  # no channels: the same for all lanes
        plain = rewriter.visit_expr(arg)
        return rewriter.builder_.emit(relax.op.reshape(plain, (full[0], 1, *full[2:], 1)))
    if isinstance(arg, tvm.ir.GenericConst):
        fill = 1.0 if op_name == "relax.divide" else 0.0
        return relax.const(block_channels(arg.value.numpy().reshape(full), main.block, fill), str(arg.ty.dtype))
    if len(shape) == main.rank and shape[1] == main.channels:
        return rewriter.to_block(arg, main.block).var
    return None


def _pool(rewriter: BlockedLayoutMutator, call: relax.Call) -> Blocked | None:
    value = _blocked(rewriter, call.args[0])
    out_shape = _static_shape(call)
    if value is None or out_shape is None or value.rank != len(out_shape) or value.rank == 3:
        return None
    attributes = call.attrs
    if attributes.layout != ("NCHW" if value.rank == 4 else "NCDHW"):
        return None
    kind = "max" if "max" in call.op.name else "avg"
    sources = {"kernel": "pool_size", "strides": "strides", "padding": "padding", "dilation": "dilation"}
    sizes = {name: [int(item) for item in getattr(attributes, source)] for name, source in sources.items()}
    include = bool(getattr(attributes, "count_include_pad", False))
    var = rewriter.emit_kernel(
        pool, [value.var], f"{kind}_pool", OUT_ELEMENTWISE, kind=kind, out_shape=list(out_shape[2:]),
        computed_width=computed_strip_width(out_shape[-1], rewriter.machine.vector_registers),
        count_include_pad=include, **sizes,
    )  # fmt: skip
    return replace(value, var=var)


def _global_average(rewriter: BlockedLayoutMutator, call: relax.Call) -> Blocked | None:
    value = _blocked(rewriter, call.args[0])
    shape = _static_shape(call)
    if value is None or shape is None or len(shape) != value.rank or any(extent != 1 for extent in shape[2:]):
        return None
    if call.op.name == "relax.mean":
        axes = sorted(int(axis) % value.rank for axis in call.attrs.axis or ())
        if axes != list(range(2, value.rank)):
            return None
    return replace(value, var=rewriter.emit_kernel(global_average, [value.var], "global_average", OUT_ELEMENTWISE))


def _concat(rewriter: BlockedLayoutMutator, call: relax.Call) -> Blocked | None:
    items = call.args[0]
    shape = _static_shape(call)
    if not isinstance(items, relax.Tuple) or call.attrs.axis is None or shape is None:
        return None
    known = [_blocked(rewriter, item) for item in items.fields]
    first = next((value for value in known if value), None)
    if first is None or first.rank != len(shape) or int(call.attrs.axis) % first.rank != 1:
        return None
    channels = [_static_shape(item)[1] for item in items.fields]  # type: ignore[index]
    block = min(value.block for value in known if value)
    if any(count % block for count in channels):
        return None
    parts = [rewriter.to_block(item, block).var for item in items.fields]
    return Blocked(rewriter.builder_.emit(relax.op.concat(parts, axis=1)), sum(channels), first.rank)


def _split(rewriter: BlockedLayoutMutator, call: relax.Call) -> tuple[Blocked, ...] | None:
    value = _blocked(rewriter, call.args[0])
    if value is None or not value.full or int(call.attrs.axis) % value.rank != 1:
        return None
    sections = [_static_shape_of_type(field) for field in call.ty.fields]
    if any(shape is None or shape[1] % value.block for shape in sections):
        return None
    bounds = np.cumsum([shape[1] // value.block for shape in sections])[:-1]  # type: ignore[index]
    parts = rewriter.builder_.emit(relax.op.split(value.var, [int(bound) for bound in bounds], axis=1))
    return tuple(
        Blocked(rewriter.builder_.emit(relax.TupleGetItem(parts, index)), shape[1], value.rank)  # type: ignore[index]
        for index, shape in enumerate(sections)
    )


def _static_shape_of_type(tensor: relax.TensorType) -> tuple[int, ...] | None:
    if not isinstance(tensor.shape, relax.ShapeExpr) or not all(isinstance(e, tvm.tirx.IntImm) for e in tensor.shape):
        return None
    return tuple(int(extent) for extent in tensor.shape)


RULES: dict[str, Rule] = {
    "relax.nn.conv1d": _convolution,
    "relax.nn.conv2d": _convolution,
    "relax.nn.conv3d": _convolution,
    "relax.nn.conv2d_transpose": _transposed_convolution,
    "relax.nn.max_pool2d": _pool,
    "relax.nn.max_pool3d": _pool,
    "relax.nn.avg_pool2d": _pool,
    "relax.nn.avg_pool3d": _pool,
    "relax.nn.adaptive_avg_pool2d": _global_average,
    "relax.nn.adaptive_avg_pool3d": _global_average,
    "relax.mean": _global_average,
    "relax.astype": _astype,
    "relax.concat": _concat,
    "relax.split": _split,  # type: ignore[dict-item]
    **dict.fromkeys(UNARY, _unary),
    **dict.fromkeys(BINARY, _binary),
}
