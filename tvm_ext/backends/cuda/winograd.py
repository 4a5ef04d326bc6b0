"""Convolutions of 3 x 3 taps become Winograd's sixteen products, where the cost model says that this is faster.

before: ``y = conv2d(x, w)``
after:  ``y = transformed_back(matmul(w', transformed_input(x)))``, with ``w'`` of ``w`` at compile time

The products are batched ones, which the rules put on tensor cores or not as any other. In float32 that pays for many
channels; on tensor cores the sixteen matrices take longer to move than the products that are saved.
"""

from __future__ import annotations

from math import prod
from typing import Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_ext.backends.cuda.channels_last import HALVES, product_seconds
from tvm_ext.passes.bindings import calls
from tvm_ext.relax_utils import constant, static_shape
from tvm_ext.schedules.cuda.cost import Launch, kernel_seconds
from tvm_ext.schedules.cuda.machine import GpuMachine, machine_of
from tvm_ext.schedules.cuda.product import Product
from tvm_ext.schedules.cuda.product_tile import arithmetic_seconds, arithmetic_tile
from tvm_ext.schedules.cuda.winograd import (
    POSITIONS,
    tiles,
    transform_weight,
    transformed_back,
    transformed_input,
)

FEWEST_CHANNELS = 16
"""Of both sides: fewer leave products too small for a tile."""

SLOWER = 2.0
"""What an H100 took to transform inputs, against what is counted: each element reads its pixels anew."""


def winograd_convolutions(always: bool = False) -> tvm.transform.Pass:
    """Make the pass; ``always`` asks no cost model."""

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.WinogradConvolutions")
    def _winograd(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        rewriter = _Rewriter(mod, machine_of(), always)
        for variable, func in mod.functions_items():
            if isinstance(func, relax.Function):
                rewriter.builder_.update_func(variable, rewriter.visit_expr(func))
        return rewriter.builder_.get() if rewriter.changed else mod

    return _winograd


@mutator
class _Rewriter(PyExprMutator):
    def __init__(self, mod: tvm.IRModule, machine: GpuMachine, always: bool) -> None:
        super().__init__(mod)
        self._machine, self._always = machine, always
        self.changed = False

    def visit_call_(self, call: Any) -> Any:
        """Rewrite a convolution that takes less time so."""
        call = self.builder_.normalize(super().visit_call_(call))
        if not calls(call, "relax.nn.conv2d") or not _takes(call):
            return call
        direct, apart = seconds(call, self._machine)
        if apart >= direct and not self._always:
            return call
        self.changed = True
        builder, (x, weight) = self.builder_, call.args
        last = str(call.attrs.data_layout) == "NHWC"
        shape, out_dtype = static_shape(call), str(call.ty.dtype)
        assert shape is not None
        out, padding = (shape[1:3] if last else shape[2:]), [int(side) for side in call.attrs.padding][:2]
        given = builder.emit_te(
            lambda data: transformed_input(data, padding, out, last), x, primfunc_name_hint="winograd_input"
        )
        filters = constant(weight)
        assert filters is not None
        matrices = transform_weight(filters, last).astype(filters.dtype)
        factors = (given, relax.const(matrices)) if last else (relax.const(matrices), given)
        products = builder.emit(relax.op.matmul(*factors, out_dtype="float32"))
        return builder.emit_te(
            lambda data: transformed_back(data, shape, out_dtype, last), products, primfunc_name_hint="winograd_output"
        )


def _takes(call: Any) -> bool:
    """Whether a call is a convolution of 3 x 3 constant taps, stride 1, one group, in a type that transforms well."""
    attrs, (data, weight) = call.attrs, call.args
    layouts = (str(attrs.data_layout), str(attrs.kernel_layout))
    shapes = [static_shape(expr) for expr in (data, weight, call)]
    if layouts not in (("NCHW", "OIHW"), ("NHWC", "OHWI")) or constant(weight) is None or None in shapes:
        return False
    steps = [int(step) for step in (*attrs.strides, *attrs.dilation, attrs.groups)]
    types = {str(expr.ty.dtype) for expr in (data, weight)}
    if set(steps) != {1} or types not in ({"float32"}, {"float16"}):  # bfloat16 rounds sums of pixels too much
        return False
    taps, (outputs, channels) = _sizes(weight, layouts[0])
    return taps == (3, 3) and min(outputs, channels) >= FEWEST_CHANNELS and 0 not in (static_shape(call) or ())


def _sizes(weight: Any, layout: str) -> tuple[tuple[int, int], tuple[int, int]]:
    outputs, second, third, fourth = static_shape(weight) or (0, 0, 0, 0)
    return ((second, third), (outputs, fourth)) if layout == "NHWC" else ((third, fourth), (outputs, second))


def seconds(call: Any, machine: GpuMachine) -> tuple[float, float]:
    """Estimate a convolution as one product, and as sixteen with what transforms to them and back."""
    last = str(call.attrs.data_layout) == "NHWC"
    _, (outputs, channels) = _sizes(call.args[1], str(call.attrs.data_layout))
    data, out = (static_shape(expr) or () for expr in (call.args[0], call))
    height, width = out[1:3] if last else out[2:]
    pixels, size = out[0] * height * width, tvm.DataType(str(call.args[0].ty.dtype)).bits // 8
    count = out[0] * prod(tiles((height, width)))
    own = channels & -channels
    unique = size * (prod(data) + 9 * channels * outputs) + 4 * prod(out)
    moved = POSITIONS * (size * channels * (count + outputs) + 4 * count * outputs)
    if last:
        direct = Product(
            None, 1, pixels, outputs, 9 * channels, 0, size, size, 4, (True, own), (True, own), unique
        )  # fmt: skip
        parts = Product(
            None, POSITIONS, count, outputs, channels, 0, size, size, 4, (True, own), (False, outputs & -outputs), moved
        )  # fmt: skip
    else:
        direct = Product(
            None, 1, outputs, pixels, 9 * channels, 0, size, size, 4, (True, 1), (False, 1), unique
        )  # fmt: skip
        parts = Product(
            None, POSITIONS, outputs, count, channels, 0, size, size, 4, (True, own), (False, count & -count), moved
        )  # fmt: skip
    there = SLOWER * _moving(
        POSITIONS * count * channels, 4, size * (prod(data) + POSITIONS * count * channels), machine
    )
    back = _moving(prod(out), 9, 4 * POSITIONS * count * outputs + size * prod(out), machine)
    halves = str(call.args[0].ty.dtype) in HALVES
    return _product(direct, halves, machine), _product(parts, halves, machine) + there + back


def _product(product: Product, halves: bool, machine: GpuMachine) -> float:
    if halves and machine.has_async_copy:
        return product_seconds([product], machine)
    return arithmetic_seconds(product, arithmetic_tile(product, machine), machine)


def _moving(elements: int, terms: int, moved: float, machine: GpuMachine) -> float:
    """Estimate a data-parallel kernel with so many loads an element, of one element a thread."""
    blocks = max(1, elements // 256)
    return kernel_seconds(Launch(blocks, 256, issue=8 * (20 + 6 * terms), bytes=moved, in_flight=4 * terms), machine)
