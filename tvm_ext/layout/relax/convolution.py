"""How convolutions of floats work on the blocked layout; the rules are listed in :mod:`tvm_ext.layout.relax.rules`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax

from tvm_ext.layout.convolution_choices import choose_convolution
from tvm_ext.layout.convolution_plan import (
    ConvolutionPlan,
    ConvolutionShape,
    plan_open_convolution,
    plan_phases,
)
from tvm_ext.layout.lanes import ANYTHING, ZERO
from tvm_ext.layout.relax.blocked import Blocked, BlockedLayoutMutator, is_better_turned, turn_geometry
from tvm_ext.layout.relax.padding import padded
from tvm_ext.layout.relax.winograd import emit_open_winograd, emit_winograd
from tvm_ext.layout.verify import verify_open_plan, verify_phases, verify_plan
from tvm_ext.relax_utils import INJECTIVE, OUT_ELEMENTWISE, open_shape, read_only, static_shape
from tvm_ext.schedules.compute.bfloat16 import pairs
from tvm_ext.schedules.compute.convolution import convolution, depthwise_convolution
from tvm_ext.schedules.compute.layout import turn
from tvm_ext.schedules.compute.open_convolution import (
    channels_to_image,
    open_convolution,
    open_depthwise,
    phases_to_image,
)
from tvm_ext.schedules.compute.packed_weights import pack_depthwise_weight, pack_weight
from tvm_ext.schedules.compute.pixel_convolution import pixel_convolution
from tvm_ext.schedules.compute.transposed_convolution import phase_windows, transposed_convolution
from tvm_ext.schedules.compute.winograd_transforms import KERNEL
from tvm_ext.schedules.cpu.machine import Machine
from tvm_ext.schedules.cpu.open_winograd import pays_open_winograd

LAYOUTS = {
    "relax.nn.conv1d": ("NCW", "OIW"),
    "relax.nn.conv2d": ("NCHW", "OIHW"),
    "relax.nn.conv3d": ("NCDHW", "OIDHW"),
    "relax.nn.conv2d_transpose": ("NCHW", "IOHW"),
}
"""Operator -> layouts of data and weight that the rules take."""


def known_weight(call: relax.Call) -> np.ndarray | None:
    """Weight of a float32 convolution that a rule can take."""
    data, weight = call.args
    shapes = open_shape(data), open_shape(call)
    if (
        any(shape is None or not isinstance(shape[1], int) or _is_empty(shape) for shape in shapes)
        or not isinstance(weight, tvm.ir.GenericConst)
        or (call.attrs.data_layout, call.attrs.kernel_layout) != LAYOUTS[call.op.name]
        or str(data.ty.dtype) != "float32"
        or str(call.ty.dtype) != "float32"
    ):
        return None
    return read_only(weight.value)


def _is_empty(shape: Sequence[Any]) -> bool:
    return any(isinstance(extent, int) and extent == 0 for extent in shape)


def geometry_of(call: relax.Call) -> dict[str, list[int]]:
    """Strides, padding and dilation of a convolution; those of a 1-D one extended by an axis of height 1."""
    strides, padding, dilation = (
        [int(item) for item in items] for items in (call.attrs.strides, call.attrs.padding, call.attrs.dilation)
    )
    if call.op.name == "relax.nn.conv1d":
        return {"strides": [1, *strides], "padding": [0, padding[0], 0, padding[1]], "dilation": [1, *dilation]}
    return {"strides": strides, "padding": padding, "dilation": dilation}


def convolution_rule(rewriter: BlockedLayoutMutator, call: relax.Call) -> Blocked | None:
    """Convolve blocked tensors: depthwise, grouped, with Winograd's algorithm where it pays, or directly."""
    weight = known_weight(call)
    if weight is None:
        return None
    if static_shape(call.args[0]) is None:
        return _open_convolution(rewriter, call, weight)
    return convolve(rewriter, call, call.args[0], weight)


@dataclass(frozen=True)
class GatedWeights:
    """Packed weights that take up a factor of each channel: in blocks of which size, and what multiplies them."""

    block: int
    scaled: Callable[[relax.Expr], relax.Expr]

    def fit(self, plan: ConvolutionPlan) -> bool:
        """Whether the kernels of a plan read weights in these blocks."""
        blocks = {plan.block_in, plan.block_sum or plan.block_in}
        return plan.winograd is None and plan.form != "depthwise" and not plan.rounds and blocks == {self.block}


def convolve(
    rewriter: BlockedLayoutMutator,
    call: relax.Call,
    data: relax.Expr,
    weight: np.ndarray,
    gated: GatedWeights | None = None,
) -> Blocked | None:
    """Convolve a tensor of static extents as ``call`` does its own operand."""
    shape = static_shape(data)
    assert shape is not None
    known = rewriter.known(data)
    turned = is_better_turned(shape, known)
    geometry = turn_geometry(geometry_of(call), turned)
    convolved = _shape_of(call, shape, weight, geometry, turned)
    if weight.ndim == 3:
        weight = weight[:, :, None]
    if turned:
        weight = weight.swapaxes(-2, -1)
    groups, out_channels = convolved.groups, convolved.out_channels
    plan = choose_convolution(
        rewriter.choices, convolved, rewriter.machine, known.block if known else 0,
        rewriter.winograd, rewriter.bfloat16, rewriter.wanted_block,
    )  # fmt: skip
    if plan is None or (gated is not None and not gated.fit(plan)):
        return None
    verify_plan(plan, convolved)
    source = rewriter.to_block(data, plan.block_in, turned)
    rewriter.note(call.op.name, plan.form, plan)
    scaled = (lambda packed: packed) if gated is None else gated.scaled
    var = _emit(rewriter, plan, source, weight, geometry, groups, known is not None, scaled)
    return Blocked(var, out_channels, len(shape), ZERO, turned)  # lanes beyond the channels have weights of zero


def convolved_shape(call: relax.Call) -> ConvolutionShape | None:
    """Describe a convolution of static extents as :func:`convolution_rule` takes it from a plain image; None: not."""
    name = getattr(call.op, "name", "")
    if name not in LAYOUTS or name.endswith("transpose"):
        return None
    weight, shape = known_weight(call), static_shape(call.args[0])
    if weight is None or shape is None:
        return None
    turned = is_better_turned(shape, None)
    return _shape_of(call, shape, weight, turn_geometry(geometry_of(call), turned), turned)


def _shape_of(
    call: relax.Call, shape: Sequence[int], weight: np.ndarray, geometry: dict[str, list[int]], turned: bool
) -> ConvolutionShape:
    kernel = turn((1, *weight.shape[2:]) if weight.ndim == 3 else weight.shape[2:], turned)
    return ConvolutionShape(
        shape[0], shape[1], weight.shape[0], int(call.attrs.groups),
        (1, *shape[2:]) if len(shape) == 3 else tuple(turn(shape, turned)[2:]),
        tuple(kernel),
        *(tuple(geometry[name]) for name in ("strides", "padding", "dilation")),
    )  # fmt: skip


def _emit(
    rewriter: BlockedLayoutMutator,
    plan: ConvolutionPlan,
    source: Blocked,
    weight: np.ndarray,
    geometry: dict[str, list[int]],
    groups: int,
    is_blocked: bool,
    scaled: Callable[[relax.Expr], relax.Expr],
) -> relax.Var:
    """Emit the kernels of a plan, with the weights as they take them, and ``scaled`` where these are packed in blocks.

    What is in the blocked layout already may be rounded where it is made; a copy from the plain layout stays a copy.
    """
    if plan.winograd is not None:
        return emit_winograd(rewriter, plan.winograd, source, weight, geometry["padding"], plan.rounds)
    pattern = rewriter.pattern(source.stored)
    if plan.form == "depthwise":
        packed = relax.const(pack_depthwise_weight(weight, plan.block_in))
        return rewriter.emit_kernel(
            depthwise_convolution, [source.var, packed], "depthwise_conv", pattern,
            computed_width=plan.computed, **geometry,
        )  # fmt: skip
    packed, data = pack_weight(weight, plan.block_sum or plan.block_in, plan.block_out, groups), source.var
    if plan.rounds:
        packed = pairs(packed, -2)
        data = rewriter.rounded(data) if is_blocked else data
    if plan.form == "pixels":
        return rewriter.emit_kernel(
            pixel_convolution, [data, scaled(relax.const(packed))], "conv", pattern, groups=groups,
            pixels=plan.computed, out_channels=weight.shape[0], **geometry,
        )  # fmt: skip
    packed = np.pad(packed, [(0, plan.chunks - len(packed))] + [(0, 0)] * (packed.ndim - 1))
    return rewriter.emit_kernel(
        convolution, [data, scaled(relax.const(packed))], "conv", pattern, groups=groups,
        computed_width=plan.computed, out_channels=weight.shape[0], **geometry,
    )  # fmt: skip


def _open_convolution(rewriter: BlockedLayoutMutator, call: relax.Call, weight: np.ndarray) -> Blocked | None:
    """Convolve a blocked tensor some of whose extents are only known at run time."""
    data, geometry = call.args[0], geometry_of(call)
    shape = open_shape(data)
    assert shape is not None
    known = rewriter.known(data)
    if min(geometry["padding"]) < 0:
        return None
    if weight.ndim == 3:
        weight = weight[:, :, None]
    groups, in_channels, out_channels = int(call.attrs.groups), shape[1], weight.shape[0]
    plan = plan_open_convolution(in_channels, out_channels, groups, rewriter.machine, known.block if known else 0)
    if plan is None:
        return None
    verify_open_plan(plan, in_channels, out_channels, groups)
    source = rewriter.to_block(data, plan.block_in)
    if plan.form == "depthwise":
        rewriter.note(call.op.name, plan.form, plan)
        packed = relax.const(pack_depthwise_weight(weight, source.block))
        var = rewriter.emit_kernel(open_depthwise, [source.var, packed], "depthwise_conv", OUT_ELEMENTWISE, **geometry)
        return Blocked(var, out_channels, len(shape), ZERO)
    if rewriter.winograd and _takes_open_winograd(weight, geometry, groups, source.block, rewriter.machine):
        rewriter.note(call.op.name, "open winograd", plan)
        var = emit_open_winograd(rewriter, source, weight, geometry["padding"])
        return Blocked(var, out_channels, len(shape), ZERO)
    rewriter.note(call.op.name, plan.form, plan)
    padding = geometry.pop("padding")
    data = padded(rewriter, source, padding) if any(padding) else source.var
    packed = pack_weight(weight, plan.block_in, plan.block_out, groups)
    var = rewriter.emit_kernel(
        open_convolution, [data, relax.const(packed)], "conv", rewriter.pattern(source.stored), groups=groups,
        out_channels=out_channels, **geometry,
    )  # fmt: skip
    return Blocked(var, out_channels, len(shape), ZERO)


def _takes_open_winograd(
    weight: np.ndarray, geometry: dict[str, list[int]], groups: int, block: int, machine: Machine
) -> bool:
    """Whether a convolution of open extents is computed by Winograd's algorithm, from blocks of a vector."""
    return (
        weight.shape[2:] == (KERNEL, KERNEL)
        and all(step == 1 for step in (*geometry["strides"], *geometry["dilation"]))
        and groups == 1
        and block == machine.lanes("float32")
        and pays_open_winograd(weight.shape[1], weight.shape[0], machine)
    )


def transposed_convolution_rule(rewriter: BlockedLayoutMutator, call: relax.Call) -> Blocked | None:
    """Convolve once for each phase of the result, with the taps that meet it."""
    weight, out_shape = known_weight(call), static_shape(call)
    geometry = geometry_of(call)
    if weight is None or int(call.attrs.groups) != 1 or geometry["dilation"] != [1, 1]:
        return None
    if out_shape is None or static_shape(call.args[0]) is None:
        return _open_transposed(rewriter, call, weight)
    data, strides = call.args[0], geometry["strides"]
    shape = static_shape(data)
    assert shape is not None
    if any(extent % stride for extent, stride in zip(out_shape[2:], strides, strict=True)):
        return None  # the last row or column of phases is not whole
    phases, axes = phase_windows(weight, strides, geometry["padding"])
    taps = phases.shape[-2:]
    before = [-axis.first for axis in axes]
    # What a phase needs behind the data, if its windows do not begin one later.
    after = [
        out // stride + reach - 1 - extent - front
        for out, stride, reach, extent, front in zip(out_shape[2:], strides, taps, shape[2:], before, strict=True)
    ]
    phase = ConvolutionShape(
        shape[0], shape[1], weight.shape[1], 1, tuple(shape[2:]), taps, (1, 1), (*before, *after), (1, 1)
    )
    known = rewriter.known(data)
    plan = plan_phases(phase, rewriter.machine, known.block if known else 0)
    verify_phases(plan, phase, strides, out_shape[2:])
    source = rewriter.to_block(data, plan.block_in)
    rewriter.note(call.op.name, "phases", plan)
    packed = np.stack([[pack_weight(phase, plan.block_in, plan.block_out) for phase in row] for row in phases])
    var = rewriter.emit_kernel(
        transposed_convolution, [source.var, relax.const(packed)], "conv_transpose", OUT_ELEMENTWISE,
        padding=[*before, *(end + (axis.lead > 0) for end, axis in zip(after, axes, strict=True))],
        out_shape=list(out_shape[2:]), computed_width=plan.computed, out_channels=weight.shape[1],
        leads=[axis.lead for axis in axes], absent=[axis.absent for axis in axes],
    )  # fmt: skip
    return Blocked(var, weight.shape[1], len(shape), ZERO)


def _open_transposed(rewriter: BlockedLayoutMutator, call: relax.Call, weight: np.ndarray) -> Blocked | None:
    """Enlarge images of open extents by filters that do not overlap: a product for each phase, then put in place."""
    geometry = geometry_of(call)
    scales, further = geometry["strides"], [int(item) for item in call.attrs.output_padding]
    if list(weight.shape[-2:]) != scales or any((*geometry["padding"], *further)):
        return None
    channels = weight.shape[1]
    known = rewriter.known(call.args[0])
    count = scales[0] * scales[1]
    # Few channels fill a part of a vector in each phase: all phases of them are channels of one product.
    joined = count * channels <= rewriter.machine.lanes("float32")
    results = count * channels if joined else channels
    plan = plan_open_convolution(weight.shape[0], results, 1, rewriter.machine, known.block if known else 0)
    assert plan is not None
    verify_open_plan(plan, weight.shape[0], results, 1)
    rewriter.note(call.op.name, "open phases", plan)
    source = rewriter.to_block(call.args[0], plan.block_in)
    phases = weight.transpose(2, 3, 1, 0).reshape(-1, results, weight.shape[0], 1, 1)
    packed = np.concatenate([pack_weight(phase, source.block, plan.block_out) for phase in phases])
    product = rewriter.emit_kernel(
        open_convolution, [source.var, relax.const(packed)], "conv_transpose", OUT_ELEMENTWISE, strides=[1, 1],
        dilation=[1, 1],
    )  # fmt: skip
    if joined:
        var = rewriter.emit_kernel(
            channels_to_image, [product], "channels_to_image", INJECTIVE, scales=scales, channels=channels
        )
        return Blocked(var, channels, len(source.spatial) + 2, ZERO)
    var = rewriter.emit_kernel(phases_to_image, [product], "phases_to_image", INJECTIVE, scales=scales)
    return rewriter.describe(var, source, ANYTHING, channels)
