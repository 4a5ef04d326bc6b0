"""Convolutions of 16-bit operands read their channels side by side, where the cost model says that this pays.

before: ``y = conv2d(x, w)``, of ``x`` (N, C, H, W) and ``w`` (O, I, H, W)
after:  ``y = permute_dims(conv2d(permute_dims(x), w'))``, of (N, H, W, C) and ``w'`` (O, H, W, I); what is between two
        convolutions follows, so that transposes are left at the ends and where an operator needs the other order

For an implicit product of matrices the channels are the depth: side by side, eight of them are one access of 128 bits,
also beside padding. Weights are brought into order when compiling.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import tvm
from tvm import relax

from tvm_ext.backends.cuda.layout_selection import LAST, convert, select_orders
from tvm_ext.passes.bindings import calls
from tvm_ext.passes.positive_axes import positive_axes
from tvm_ext.relax_utils import static_shape
from tvm_ext.schedules.cuda.cost import Launch, kernel_seconds
from tvm_ext.schedules.cuda.fragments import SIDE
from tvm_ext.schedules.cuda.machine import GpuMachine, machine_of
from tvm_ext.schedules.cuda.product import Product
from tvm_ext.schedules.cuda.tensor_matmul import SMALLEST_SIDE
from tvm_ext.schedules.cuda.tensor_tile import tensor_seconds, tensor_tile
from tvm_ext.schedules.cuda.warpgroup_tile import FEWEST_NEIGHBOURS, warpgroup_seconds, warpgroup_tile

LAYOUTS = {"relax.nn.conv2d": ["NHWC", "OHWI"], "relax.nn.conv2d_transpose": ["NCHW", "IOHW"]}
"""TVM has no kernel for transposed convolutions of another order."""

HALVES = ("float16", "bfloat16")


def channels_last() -> tvm.transform.Pass:
    """Make the pass."""

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.ChannelsLast")
    def _channels_last(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        machine = machine_of()
        if not machine.has_async_copy or not any(_products(call, machine) for call in _calls(mod)):
            return mod
        # TVM's pass that orders channels fails on tensors that are stacked, as phases of transposed convolutions are,
        # and on operators that nobody has met yet: such a module stays as it is.
        if any(calls(call, "relax.stack") for call in _calls(mod)):
            return mod
        try:
            candidates = _candidates(positive_axes(mod), machine)
        except tvm.error.InternalError:
            return mod
        # Costs of plans leave out what transposes become once they are fused and folded: the modules are compared.
        found = min(candidates, key=lambda item: _seconds(item, machine))
        return found if _seconds(found, machine) < _seconds(mod, machine) else mod

    return _channels_last


def _candidates(mod: tvm.IRModule, machine: GpuMachine) -> list[tvm.IRModule]:
    """Make the module with those convolutions turned that are selected for the whole network, and with all turned."""
    transform = relax.transform
    passes = [transform.ConvertLayout(LAYOUTS), transform.Normalize(), transform.FoldConstant()]
    everything = tvm.transform.Sequential(passes)(mod)
    selected = _selected(mod, machine)
    if not selected:
        return [everything]
    return [everything, convert(mod, selected)]


def _selected(mod: tvm.IRModule, machine: GpuMachine) -> list[relax.Call]:
    """List the convolutions that are better off with their channels side by side, in all functions together."""
    found: list[relax.Call] = []

    def transposed(expr: Any) -> float:
        return sum(_transpose_seconds(static_shape(ty), str(ty.dtype), machine) for ty in _tensors(expr.ty))

    def seconds(call: relax.Call, order: str) -> float | None:
        products = _products(call, machine, order == LAST)
        return product_seconds(products, machine) if products else None

    for func in mod.functions.values():
        if isinstance(func, relax.Function):
            selected = select_orders(func, seconds, transposed)
            found += [] if selected is None else selected[1]
    return found


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
        if calls(call, "relax.permute_dims"):
            total += _transpose_seconds(static_shape(call), str(call.ty.dtype), machine)
        else:
            total += product_seconds(_products(call, machine), machine)
    return total


def product_seconds(products: Sequence[Product], machine: GpuMachine) -> float:
    """Estimate products on tensor cores, each by the faster instruction."""
    return sum(min(_by_warps(product, machine), _by_warpgroups(product, machine)) for product in products)


def _by_warps(product: Product, machine: GpuMachine) -> float:
    return tensor_seconds(product, tensor_tile(product, machine), machine)


def _by_warpgroups(product: Product, machine: GpuMachine) -> float:
    neighbours = min(product.row_vector[1], product.column_vector[1])
    tile = warpgroup_tile(product, machine) if machine.has_warpgroups and neighbours >= FEWEST_NEIGHBOURS else None
    return float("inf") if tile is None else warpgroup_seconds(product, tile, machine)


def _tensors(ty: Any) -> list[relax.TensorType]:
    """List the tensors of a type: none of a shape, several of the largest elements and their places."""
    if isinstance(ty, relax.TupleType):
        return [tensor for field in ty.fields for tensor in _tensors(field)]
    return [ty] if isinstance(ty, relax.TensorType) else []


def _transpose_seconds(shape: Sequence[int] | None, dtype: str, machine: GpuMachine) -> float:
    if shape is None:
        return 0.0
    moved = 2 * prod(shape) * max(1, tvm.DataType(dtype).bits // 8)
    blocks = max(1, prod(shape) // 1024)
    return kernel_seconds(Launch(blocks, 256, issue=8 * 60, bytes=moved), machine)


def _products(call: relax.Call, machine: GpuMachine, last: bool | None = None) -> list[Product]:
    """Give the product of matrices that a convolution is, if it is one for tensor cores; its rows are pixels.

    ``last`` asks for what it would be with its channels side by side, or with planes; by default it is as it stands.
    """
    if not calls(call, "relax.nn.conv2d"):
        return []
    if any(str(arg.ty.dtype) not in HALVES for arg in call.args):
        return []
    data, weight, out = (static_shape(expr) for expr in (*call.args, call))
    layout = str(call.attrs.data_layout)
    if data is None or weight is None or out is None or layout not in ("NCHW", "NHWC"):
        return []
    stands = layout == "NHWC"
    channels, outputs = (data[3], out[3]) if stands else (data[1], out[1])
    last = stands if last is None else last
    depth, groups = prod(weight) // outputs, int(call.attrs.groups)
    own = channels // groups
    if groups > 1 and (own < SMALLEST_SIDE or outputs // groups % SIDE):
        return []
    side, window = own & -own, depth // own
    if last:
        vectors = (True, side), (True, side)
    else:
        pixels = prod(data) // data[0] // channels
        vectors = (False, pixels & -pixels if window == 1 else 1), (True, side if window == 1 else 1)
    moved = 2 * (prod(data) + prod(weight)) + 4 * prod(out)
    return [
        Product(
            None, groups, prod(out) // outputs, outputs // groups, depth, 0, 2, 2, 4, *vectors, moved,
            (False, groups > 1),
        )
    ]  # fmt: skip
