"""How convolutions of integers whose batch, rows or columns are open work on the blocked layout.

Images are padded by a kernel of its own, which brings them to the type that is multiplied, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax

from tvm_ext.layout.convolution_plan import ConvolutionPlan
from tvm_ext.layout.integer_plan import plan_open_integer_convolution
from tvm_ext.layout.lanes import ZERO
from tvm_ext.layout.relax.blocked import Blocked, BlockedLayoutMutator
from tvm_ext.layout.relax.padding import padded
from tvm_ext.layout.verify import verify_open_plan
from tvm_ext.relax_utils import ELEMENTWISE, OUT_ELEMENTWISE, open_shape, scalar, static_shape
from tvm_ext.schedules.compute.open_quantized import open_convolution_int8, open_depthwise_int8, widen
from tvm_ext.schedules.compute.quantized import pack_depthwise_weight_int8, pack_weight_int8
from tvm_ext.schedules.cpu.depthwise_int8 import taps_in_a_pack
from tvm_ext.schedules.cpu.intrinsics import are_small, dot_product


@dataclass(frozen=True)
class IntegerConvolution:
    """A convolution of uint8 activations with int8 weights.

    Attributes
    ----------
    data : relax.Expr
        What is padded and convolved, as it stands in the old function.
    weight : np.ndarray
        OIHW.
    strides, dilation : list of int
    padding : list of int
        Top, left, bottom, right.
    zero_point : int or relax.Expr
        What padded positions hold; one that only a run tells is a uint8 of shape ``(1, 1, 1, 1)``.
    groups : int
    """

    data: relax.Expr
    weight: np.ndarray
    strides: list[int]
    padding: list[int]
    dilation: list[int]
    zero_point: int | relax.Expr
    groups: int


def convolve_open(rewriter: BlockedLayoutMutator, call: relax.Call, what: IntegerConvolution) -> Blocked | None:
    """Convolve a tensor of open extents; None where its groups fill no vectors."""
    shape, known = open_shape(what.data), rewriter.known(what.data)
    if shape is None or not isinstance(shape[1], int) or min(what.padding) < 0:
        return None
    small, machine = are_small(what.weight), rewriter.machine
    form = dot_product(machine, small)
    channels = shape[1], what.weight.shape[0], what.groups
    plan = plan_open_integer_convolution(*channels, machine, form.pack, known.block if known else 0)
    if plan is None:
        return None
    verify_open_plan(plan, *channels)
    rewriter.note(call.op.name, f"int8 {plan.form}", plan)
    source = rewriter.to_block(what.data, plan.block_in)
    outside = what.zero_point
    if not isinstance(outside, int):
        outside = rewriter.builder_.emit(relax.op.reshape(rewriter.visit_expr(outside), (1,)))
    steps: dict[str, Any] = {"strides": what.strides, "dilation": what.dilation}
    if plan.form == "depthwise":
        pack, width = taps_in_a_pack(machine, plan.block_in, what.dilation), what.weight.shape[3]
        taps = pack_depthwise_weight_int8(what.weight, plan.block_in, pack)
        taps = taps.reshape(len(taps), 1, *taps.shape[1:3], 1, -1)
        # Taps that fill up a pack have weights of zero, and read columns that must be there.
        further = [*what.padding[:3], what.padding[3] + -width % pack]
        data = padded(rewriter, source, further, outside) if any(further) else source.var
        total = rewriter.emit_kernel(
            open_depthwise_int8, [data, relax.const(taps)], "depthwise_conv2d_int8", OUT_ELEMENTWISE, pack=pack,
            kernel_w=width, **steps,
        )  # fmt: skip
        return Blocked(total, channels[1], 4, ZERO)
    packed = pack_weight_int8(what.weight, plan.block_in, plan.block_out, form.pack, form.weights, what.groups)
    if any(what.padding):
        data = padded(rewriter, source, what.padding, outside, form.inputs, form.offset)
    elif form.inputs != "uint8":
        data = rewriter.emit_kernel(widen, [source.var], "widen", ELEMENTWISE, dtype=form.inputs, offset=form.offset)
    else:
        data = source.var
    total = rewriter.emit_kernel(
        open_convolution_int8, [data, relax.const(packed.reshape(*packed.shape[:-2], -1))], "conv2d_int8",
        rewriter.pattern(source.stored), pack=form.pack, groups=what.groups, small=small, **steps,
    )  # fmt: skip
    return Blocked(raised(rewriter, total, what.weight, plan, form.offset), channels[1], 4, ZERO)


def raised(
    rewriter: BlockedLayoutMutator, total: relax.Var, weight: np.ndarray, plan: ConvolutionPlan, offset: int
) -> relax.Var:
    """Add to the sums of a convolution, of weights OIHW, what they lack where activations were lowered by an offset."""
    if not offset:
        return total
    missing = np.zeros(plan.chunks * plan.block_out, np.int32)
    missing[: len(weight)] = offset * weight.astype(np.int32).sum(axis=(1, 2, 3))
    operand = relax.const(missing.reshape(1, plan.chunks, 1, 1, plan.block_out))
    return rewriter.builder_.emit(relax.op.add(total, operand))


def look_through_borders(
    rewriter: BlockedLayoutMutator, expr: relax.Expr
) -> tuple[relax.Expr, list[int], relax.Expr] | None:
    """Look through a padding with a number that only a run tells, in the form in which integers are padded with one.

    before: ``where(inside, pad(x, 0), z)`` with ``inside = astype(pad(full(1), 0), "bool")``

    Returns
    -------
    tuple of relax.Expr, list of int and relax.Expr, or None
        ``x``, (top, left, bottom, right), and ``z``, of one element; None for anything else.
    """
    chosen = _call(rewriter, expr, "relax.where")
    if chosen is None:
        return None
    inside, data, outside = chosen.args
    mask = _call(rewriter, inside, "relax.astype")
    image = _call(rewriter, data, "relax.nn.pad")
    picture = None if mask is None else _call(rewriter, mask.args[0], "relax.nn.pad")
    if image is None or picture is None:
        return None
    ones = _call(rewriter, picture.args[0], "relax.full")
    pads = [image.attrs, picture.attrs]
    widths = [[int(width) for width in pad.pad_width] for pad in pads]
    if (
        ones is None
        or any(str(pad.pad_mode) != "constant" or float(pad.pad_value) for pad in pads)
        or scalar(ones.args[1]) != 1
        or widths[0] != widths[1]
        or len(widths[0]) != 8
        or any(widths[0][:4])
        or static_shape(outside) != (1, 1, 1, 1)
        or str(outside.ty.dtype) != "uint8"
    ):
        return None
    top, bottom, left, right = widths[0][4:]
    return image.args[0], [top, left, bottom, right], outside


def _call(rewriter: BlockedLayoutMutator, expr: relax.Expr, operator: str) -> relax.Call | None:
    value = rewriter.definitions.get(expr) if isinstance(expr, relax.Var) else None
    return value if isinstance(value, relax.Call) and getattr(value.op, "name", "") == operator else None
