"""How convolutions of integers whose batch, rows or columns are open work on the blocked layout.

Images are padded by a kernel of its own, which brings them to the type that is multiplied, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax

from tvm_ext.layout.integer_plan import plan_open_integer_convolution
from tvm_ext.layout.lanes import ZERO
from tvm_ext.layout.relax.blocked import Blocked, BlockedLayoutMutator
from tvm_ext.layout.relax.padding import padded
from tvm_ext.layout.verify import verify_open_plan
from tvm_ext.relax_utils import ELEMENTWISE, OUT_ELEMENTWISE, open_shape
from tvm_ext.schedules.compute.open_quantized import open_convolution_int8, open_depthwise_int8, widen
from tvm_ext.schedules.compute.quantized import pack_depthwise_weight_int8, pack_weight_int8
from tvm_ext.schedules.cpu.depthwise_int8 import taps_in_a_pack
from tvm_ext.schedules.cpu.intrinsics import dot_product


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
    zero_point : int
        What padded positions hold.
    groups : int
    """

    data: relax.Expr
    weight: np.ndarray
    strides: list[int]
    padding: list[int]
    dilation: list[int]
    zero_point: int
    groups: int


def convolve_open(rewriter: BlockedLayoutMutator, call: relax.Call, what: IntegerConvolution) -> Blocked | None:
    """Convolve a tensor of open extents; None where its groups fill no vectors."""
    shape, known = open_shape(what.data), rewriter.known(what.data)
    if shape is None or not isinstance(shape[1], int) or min(what.padding) < 0:
        return None
    form, machine = dot_product(rewriter.machine), rewriter.machine
    channels = shape[1], what.weight.shape[0], what.groups
    plan = plan_open_integer_convolution(*channels, machine, form.pack, known.block if known else 0)
    if plan is None:
        return None
    verify_open_plan(plan, *channels)
    rewriter.note(call.op.name, f"int8 {plan.form}", plan)
    source = rewriter.to_block(what.data, plan.block_in)
    steps: dict[str, Any] = {"strides": what.strides, "dilation": what.dilation}
    if plan.form == "depthwise":
        pack, width = taps_in_a_pack(machine, plan.block_in, what.dilation), what.weight.shape[3]
        taps = pack_depthwise_weight_int8(what.weight, plan.block_in, pack)
        taps = taps.reshape(len(taps), 1, *taps.shape[1:3], 1, -1)
        # Taps that fill up a pack have weights of zero, and read columns that must be there.
        further = [*what.padding[:3], what.padding[3] + -width % pack]
        data = padded(rewriter, source, further, what.zero_point) if any(further) else source.var
        total = rewriter.emit_kernel(
            open_depthwise_int8, [data, relax.const(taps)], "depthwise_conv2d_int8", OUT_ELEMENTWISE, pack=pack,
            kernel_w=width, **steps,
        )  # fmt: skip
        return Blocked(total, channels[1], 4, ZERO)
    packed = pack_weight_int8(what.weight, plan.block_in, plan.block_out, form.pack, form.weights, what.groups)
    if any(what.padding):
        data = padded(rewriter, source, what.padding, what.zero_point, form.inputs, form.offset)
    elif form.inputs != "uint8":
        data = rewriter.emit_kernel(widen, [source.var], "widen", ELEMENTWISE, dtype=form.inputs, offset=form.offset)
    else:
        data = source.var
    total = rewriter.emit_kernel(
        open_convolution_int8, [data, relax.const(packed.reshape(*packed.shape[:-2], -1))], "conv2d_int8",
        rewriter.pattern(source.stored), pack=form.pack, groups=what.groups, **steps,
    )  # fmt: skip
    return Blocked(total, channels[1], 4, ZERO)
