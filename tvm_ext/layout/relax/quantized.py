"""Rules of the blocked layout for integer tensors; see :mod:`tvm_ext.layout.relax.rules` for the contract."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax

from tvm_ext.layout import lanes as lane_arithmetic
from tvm_ext.layout.convolution_plan import ConvolutionShape
from tvm_ext.layout.integer_plan import plan_integer_convolution
from tvm_ext.layout.lanes import ZERO, Lanes
from tvm_ext.layout.relax.blocked import Blocked, BlockedLayoutMutator, Rule, is_better_turned, turn_geometry
from tvm_ext.layout.relax.convolution import LAYOUTS, geometry_of
from tvm_ext.layout.relax.open_quantized import IntegerConvolution, convolve_open, look_through_borders, raised
from tvm_ext.layout.verify import verify_plan
from tvm_ext.relax_utils import OUT_ELEMENTWISE, constant, open_shape, scalar, static_shape
from tvm_ext.schedules.compute.layout import turn
from tvm_ext.schedules.compute.quantized import (
    conv2d_int8,
    depthwise_conv2d_int8,
    dequantize,
    global_sum,
    pack_depthwise_weight_int8,
    pack_weight_int8,
    quantize,
)
from tvm_ext.schedules.cpu.depthwise_int8 import taps_in_a_pack
from tvm_ext.schedules.cpu.intrinsics import are_small, dot_product


def _definition(rewriter: BlockedLayoutMutator, expr: relax.Expr, operator: str) -> relax.Call | None:
    """Give the call of ``operator`` that a variable of the old function is bound to."""
    value = rewriter.definitions.get(expr) if isinstance(expr, relax.Var) else None
    return value if isinstance(value, relax.Call) and getattr(value.op, "name", "") == operator else None


def _unpadded(rewriter: BlockedLayoutMutator, expr: relax.Expr) -> tuple[relax.Expr, list[int], int]:
    """Look through the padding of rows and columns: its operand, (top, left, bottom, right), the value it pads with.

    A row by itself is an image of height 1.
    """
    call = _definition(rewriter, expr, "relax.nn.pad")
    if call is None or str(call.attrs.pad_mode) != "constant" or not float(call.attrs.pad_value).is_integer():
        return expr, [0, 0, 0, 0], 0
    widths = [int(width) for width in call.attrs.pad_width]
    if len(widths) not in (6, 8) or any(widths[:4]):
        return expr, [0, 0, 0, 0], 0
    top, bottom, left, right = [0, 0, *widths[4:]][-4:]
    return call.args[0], [top, left, bottom, right], int(call.attrs.pad_value)


def _convolution(rewriter: BlockedLayoutMutator, call: relax.Call) -> Blocked | None:
    """Take uint8 activations x int8 weights with an int32 result."""
    data, weight = call.args[0], constant(call.args[1])
    attributes = call.attrs
    if (
        weight is None
        or (str(data.ty.dtype), str(weight.dtype), str(call.ty.dtype)) != ("uint8", "int8", "int32")
        or (attributes.data_layout, attributes.kernel_layout) != LAYOUTS[call.op.name]
        or any(shape is None or _is_empty(shape) for shape in (open_shape(data), open_shape(call)))
    ):
        return None
    inner, padding, zero_point = _unpadded(rewriter, data)
    geometry = geometry_of(call)
    strides, own, dilation = geometry["strides"], geometry["padding"], geometry["dilation"]
    weight = weight[:, :, None] if weight.ndim == 3 else weight
    if any(own):
        if any(padding) and zero_point:
            inner, padding = data, [0] * 4
        padding, zero_point = [first + second for first, second in zip(padding, own, strict=True)], 0
    shape = static_shape(inner)
    if shape is None and call.op.name == "relax.nn.conv1d":
        return None
    if shape is None:
        groups = int(attributes.groups)
        what = IntegerConvolution(inner, weight, strides, padding, dilation, zero_point, groups)
        bordered = None if any(padding) else look_through_borders(rewriter, inner)
        if bordered is not None:
            what = IntegerConvolution(bordered[0], weight, strides, bordered[1], dilation, bordered[2], groups)
        return convolve_open(rewriter, call, what)
    known = rewriter.blocked.get(inner) if isinstance(inner, relax.Var) else None
    turned = is_better_turned(shape, known if isinstance(known, Blocked) else None)
    window = turn_geometry({"strides": strides, "padding": padding, "dilation": dilation}, turned)
    attributes_of_kernel: dict[str, object] = {**window, "zero_point": zero_point}
    weight = weight.swapaxes(2, 3) if turned else weight
    groups, out_channels = int(attributes.groups), weight.shape[0]
    small = are_small(weight)
    form = dot_product(rewriter.machine, small)
    convolved = ConvolutionShape(
        shape[0], shape[1], out_channels, groups, tuple([1, *turn(shape, turned)[2:]][-2:]), weight.shape[2:],
        *(tuple(window[name]) for name in ("strides", "padding", "dilation")),
    )  # fmt: skip
    stored = known.block if isinstance(known, Blocked) else 0
    plan = plan_integer_convolution(convolved, rewriter.machine, form.pack, stored)
    if plan is None:
        return None
    verify_plan(plan, convolved)
    source = rewriter.to_block(inner, plan.block_in, turned)
    rewriter.note(call.op.name, f"int8 {plan.form}", plan)
    if plan.form == "depthwise":
        pack = taps_in_a_pack(rewriter.machine, plan.block_in, window["dilation"])
        taps = relax.const(pack_depthwise_weight_int8(weight, plan.block_in, pack))
        total = rewriter.emit_kernel(
            depthwise_conv2d_int8, [source.var, taps], "depthwise_conv2d_int8", OUT_ELEMENTWISE,
            kernel_w=weight.shape[3], computed_width=plan.computed, **attributes_of_kernel,
        )  # fmt: skip
        return Blocked(total, out_channels, len(shape), ZERO, turned)
    packed = pack_weight_int8(weight, plan.block_in, plan.block_out, form.pack, form.weights, groups)
    total = rewriter.emit_kernel(
        conv2d_int8, [source.var, relax.const(packed)], "conv2d_int8", OUT_ELEMENTWISE, groups=groups,
        computed_width=plan.computed, offset=form.offset, small=small, **attributes_of_kernel,
    )  # fmt: skip
    # Of integers times weights of zero nothing is left in lanes without a channel.
    return Blocked(raised(rewriter, total, weight, plan, form.offset), out_channels, len(shape), ZERO, turned)


def _is_empty(shape: Sequence[Any]) -> bool:
    return any(isinstance(extent, int) and extent == 0 for extent in shape)


def _sum(rewriter: BlockedLayoutMutator, call: relax.Call) -> Blocked | None:
    """Take the sum of 8-bit integers over all rows and columns."""
    widened = _definition(rewriter, call.args[0], "relax.astype")
    if widened is None or str(call.ty.dtype) != "int32" or not call.attrs.keepdims:
        return None
    value = rewriter.blocked.get(widened.args[0]) if isinstance(widened.args[0], relax.Var) else None
    axes = sorted(int(axis) % 4 for axis in call.attrs.axis or ())
    if not isinstance(value, Blocked) or value.rank != 4 or axes != [2, 3] or str(value.var.ty.dtype) != "uint8":
        return None
    var = rewriter.emit_kernel(global_sum, [value.var], "global_sum", OUT_ELEMENTWISE)
    lanes = lane_arithmetic.total(value.lanes, int(np.prod(value.spatial)), "int32")
    return rewriter.describe(var, value, lanes)


def _scaled(rewriter: BlockedLayoutMutator, call: relax.Call) -> Blocked | None:
    """Quantise or dequantise with one scale."""
    value = rewriter.blocked.get(call.args[0]) if isinstance(call.args[0], relax.Var) else None
    scale, zero_point = scalar(call.args[1]), scalar(call.args[2])
    if not isinstance(value, Blocked) or scale is None or zero_point is None:
        return None
    dtype = str(call.ty.dtype)
    bounds = lane_arithmetic.quantize if call.op.name == "relax.quantize" else lane_arithmetic.dequantize
    lanes: Lanes | None = bounds(value.lanes, scale, zero_point, dtype)
    var = rewriter.builder_.emit(relax.Call(call.op, [value.var, *call.args[1:]], call.attrs))
    return rewriter.describe(var, value, lanes)


INTEGER_RULES: dict[str, Rule] = {
    "relax.nn.conv1d": _convolution,
    "relax.nn.conv2d": _convolution,
    "relax.sum": _sum,
    "relax.quantize": _scaled,
    "relax.dequantize": _scaled,
}


def legalize_quantize(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Make the kernel of ``relax.quantize`` to 8 bits from float32 with one scale; other cases as TVM does."""
    data, scale, zero_point = call.args[0], scalar(call.args[1]), scalar(call.args[2])
    dtype = str(call.ty.dtype)
    if scale is None or zero_point is None or dtype not in ("int8", "uint8") or str(data.ty.dtype) != "float32":
        return _as_stock(builder, call)
    return builder.call_te(
        quantize, data, scale=scale, zero_point=zero_point, dtype=dtype, primfunc_name_hint="quantize"
    )


def legalize_dequantize(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Make the kernel of ``relax.dequantize`` to float32 with one scale; other cases as TVM does."""
    data, scale, zero_point = call.args[0], scalar(call.args[1]), scalar(call.args[2])
    if scale is None or zero_point is None or str(call.ty.dtype) != "float32" or "int" not in str(data.ty.dtype):
        return _as_stock(builder, call)
    return builder.call_te(dequantize, data, scale=scale, zero_point=zero_point, primfunc_name_hint="dequantize")


def _as_stock(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    return call.op.get_attr("FLegalize")(builder, call)


LEGALIZATIONS = {"relax.quantize": legalize_quantize, "relax.dequantize": legalize_dequantize}
"""For ``relax.transform.LegalizeOps``."""
