"""Convolutions of a picture's three channels get a fourth, of zeros, so that a pixel is one access.

before: ``y = conv2d(x, w)``, of ``x`` (N, H, W, 3) and constant ``w`` (O, 7, 7, 3), of 16-bit elements
after:  ``y = conv2d(nn.pad(x), w')``, of (N, H, W, 4) and (O, 7, 8, 4), a column more of padding on the right

An implicit product of matrices reads its operands as vectors where their length is a power of two, and finds the place
of a window by shifts. Its depth was padded anyway. The kernel that converts a picture writes the zeros of a channel. A
convolution with more channels would lose more by computing with zeros.
"""

from __future__ import annotations

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_ext.passes.bindings import calls
from tvm_ext.passes.single_precision import HALVES
from tvm_ext.relax_utils import constant, rewritten, static_shape
from tvm_ext.schedules.cuda.machine import machine_of

CHANNELS, WHOLE = 3, 4

FEWEST_TAPS = 2
"""Of a window along each axis: a product with a vector of three elements is bound by memory anyway."""

MOST_LONGER = 4 / 3
"""How much wider a window may become."""

_FIELDS = ("strides", "dilation", "groups", "data_layout", "kernel_layout", "out_layout", "out_dtype")


def whole_vectors() -> tvm.transform.Pass:
    """Make the pass."""

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.WholeVectors")
    def _whole(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        if not machine_of().has_async_copy:
            return mod
        rewriter = _Rewriter(mod)
        return rewritten(mod, rewriter)

    return _whole


@mutator
class _Rewriter(PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        """Pad the operands of a convolution of pictures."""
        call = super().visit_call_(call)
        if not calls(call, "relax.nn.conv2d") or str(call.attrs.data_layout) != "NHWC" or int(call.attrs.groups) != 1:
            return call
        data, shape = call.args[0], static_shape(call.args[0])
        source = self.builder_.lookup_binding(call.args[1]) if isinstance(call.args[1], relax.Var) else call.args[1]
        wide = constant(source.args[0]) if calls(source, "relax.astype") else None
        weight = constant(source) if wide is None and source is not None else wide
        dtype = str(call.args[1].ty.dtype)
        if shape is None or weight is None or dtype not in HALVES or shape[3] != CHANNELS:
            return call
        if min(weight.shape[1:3]) < FEWEST_TAPS:
            return call
        zeros = WHOLE - CHANNELS
        padded = self.builder_.emit(relax.op.nn.pad(data, (0, 0, 0, 0, 0, 0, 0, zeros)))
        width = weight.shape[2]
        whole = 1 << (width - 1).bit_length()
        more = whole - width if whole <= MOST_LONGER * width else 0
        top, left, bottom, right = (int(edge) for edge in call.attrs.padding)
        padding = (top, left, bottom, right + more * int(call.attrs.dilation[1]))
        kernel: relax.Expr = relax.const(np.pad(weight, ((0, 0), (0, 0), (0, more), (0, zeros))))
        if wide is not None:
            kernel = self.builder_.emit(relax.op.astype(kernel, dtype))
        fields = {name: getattr(call.attrs, name) for name in _FIELDS}
        return relax.op.nn.conv2d(padded, kernel, padding=padding, **fields)
