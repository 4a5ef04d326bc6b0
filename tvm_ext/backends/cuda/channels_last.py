"""Convolutions of 16-bit operands read their channels side by side, where the cost model says that this pays.

before: ``y = conv2d(x, w)``, of ``x`` (N, C, H, W) and ``w`` (O, I, H, W)
after:  ``y = permute_dims(conv2d(permute_dims(x), w'))``, of (N, H, W, C) and ``w'`` (O, H, W, I); what is between two
        convolutions follows, so that transposes are left at the ends and where an operator needs the other order

For an implicit product of matrices the channels are the depth: side by side, eight of them are one access of 128 bits,
also beside padding. Weights are brought into order when compiling.
"""

from __future__ import annotations

from math import prod
from typing import Any

import tvm
from tvm import relax

from tvm_ext.passes.bindings import calls
from tvm_ext.relax_utils import static_shape
from tvm_ext.schedules.cuda.cost import Launch, kernel_seconds
from tvm_ext.schedules.cuda.machine import GpuMachine, machine_of
from tvm_ext.schedules.cuda.product import Product
from tvm_ext.schedules.cuda.product_tile import tensor_seconds, tensor_tile

LAYOUTS = {"relax.nn.conv2d": ["NHWC", "OHWI"]}

HALVES = ("float16", "bfloat16")


def channels_last() -> tvm.transform.Pass:
    """Make the pass."""

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.ChannelsLast")
    def _channels_last(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        machine = machine_of(tvm.target.Target.current(allow_none=False))
        if not machine.has_async_copy or not any(_products(call, machine) for call in _calls(mod)):
            return mod
        transform = relax.transform
        turned = tvm.transform.Sequential(
            [transform.ConvertLayout(LAYOUTS), transform.Normalize(), transform.FoldConstant()]
        )(mod)
        return turned if _seconds(turned, machine) < _seconds(mod, machine) else mod

    return _channels_last


def _calls(mod: tvm.IRModule) -> list[relax.Call]:
    """List the calls of operators of a module."""
    found: list[relax.Call] = []

    def visit(expr: Any) -> None:
        if isinstance(expr, relax.Call):
            found.append(expr)

    for func in mod.functions.values():
        if isinstance(func, relax.Function):
            relax.analysis.post_order_visit(func.body, visit)
    return found


def _seconds(mod: tvm.IRModule, machine: GpuMachine) -> float:
    """Estimate the seconds of the convolutions on tensor cores and of the transposes of a module."""
    total = 0.0
    for call in _calls(mod):
        if calls(call, "relax.permute_dims") and (shape := static_shape(call)) is not None:
            moved = 2 * prod(shape) * max(1, tvm.DataType(str(call.ty.dtype)).bits // 8)
            blocks = max(1, prod(shape) // 1024)
            total += kernel_seconds(Launch(blocks, 256, issue=8 * 60, bytes=moved), machine)
        else:
            total += sum(
                tensor_seconds(product, tensor_tile(product, machine), machine) for product in _products(call, machine)
            )
    return total


def _products(call: relax.Call, machine: GpuMachine) -> list[Product]:
    """Give the product of matrices that a convolution is, if it is one for tensor cores; its rows are pixels."""
    if not calls(call, "relax.nn.conv2d") or int(call.attrs.groups) != 1:
        return []
    if any(str(arg.ty.dtype) not in HALVES for arg in call.args):
        return []
    data, weight, out = (static_shape(expr) for expr in (*call.args, call))
    layout = str(call.attrs.data_layout)
    if data is None or weight is None or out is None or layout not in ("NCHW", "NHWC"):
        return []
    last = layout == "NHWC"
    channels, outputs = (data[3], out[3]) if last else (data[1], out[1])
    depth = prod(weight) // outputs
    side = channels & -channels
    window = depth // channels
    if last:
        vectors = (True, side), (True, side)
    else:
        pixels = data[2] * data[3]
        vectors = (False, pixels & -pixels if window == 1 else 1), (True, side if window == 1 else 1)
    moved = 2 * (prod(data) + prod(weight)) + 4 * prod(out)
    return [Product(None, 1, prod(out) // outputs, outputs, depth, 0, 2, 2, 4, *vectors, moved)]
