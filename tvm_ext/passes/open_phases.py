"""Writes transposed convolutions over open extents, whose filters overlap, as ordinary ones.

before: ``y = conv2d_transpose(x, w, strides=(s, s))``, of ``x`` with zeros between its elements
after:  ``z = conv2d(x, w')`` whose channels are the s * s phases of the result, laid side by side and cut at both ends

A phase is the sum over the taps ``w[s * j + r]``; all have as many, the last ones zero, and read the same elements, so
that neither a filter nor a padding depends on the extents.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relax, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_ext.relax_utils import constant, open_shape, rewriting_pass

_LAYOUTS = {"relax.nn.conv1d_transpose": ("NCW", "IOW"), "relax.nn.conv2d_transpose": ("NCHW", "IOHW")}
_CONVOLUTIONS = {1: relax.op.nn.conv1d, 2: relax.op.nn.conv2d}


def open_phases() -> tvm.transform.Pass:
    """Make the pass; only constant weights without groups or dilation are taken."""
    return rewriting_pass("tvm_ext.OpenPhases", _OpenPhaseMutator)


def phases_of(kernel: NDArray, strides: list[int]) -> NDArray:
    """Turn filters (in, out, ...) of a transposed convolution into those of its phases, (phases * out, in, ...)."""
    taps = [-(-extent // stride) for extent, stride in zip(kernel.shape[2:], strides, strict=True)]
    whole = [(0, count * stride - extent)
             for count, stride, extent in zip(taps, strides, kernel.shape[2:], strict=True)]  # fmt: skip
    padded = np.pad(kernel, [(0, 0), (0, 0), *whole])
    rank = len(strides)
    parts = padded.reshape(*kernel.shape[:2], *(n for pair in zip(taps, strides, strict=True) for n in pair))
    steps, phases = [2 + 2 * axis for axis in range(rank)], [3 + 2 * axis for axis in range(rank)]
    turned = np.flip(parts, tuple(steps)).transpose(*phases, 1, 0, *steps)
    return np.ascontiguousarray(turned.reshape(-1, kernel.shape[0], *taps))


@mutator
class _OpenPhaseMutator(PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        """Rewrite a transposed convolution over open extents."""
        call = self.visit_expr_post_order(call)
        name = getattr(call.op, "name", "")
        kernel = constant(call.args[1]) if name in _LAYOUTS else None
        given, result = (open_shape(value) for value in (call.args[0], call)) if kernel is not None else (None, None)
        if kernel is None or given is None or result is None:
            return call
        attrs = call.attrs
        strides = [int(stride) for stride in attrs.strides]
        if all(isinstance(extent, int) for extent in given[2:]) or 0 in kernel.shape or max(strides) == 1:
            return call
        layouts = (str(attrs.data_layout), str(attrs.kernel_layout))
        if layouts != _LAYOUTS[name] or int(attrs.groups) != 1 or any(int(step) != 1 for step in attrs.dilation):
            return call
        ends = [int(pad) for pad in attrs.padding[len(strides) :]]
        beyond = [int(extra) > end for extra, end in zip(attrs.output_padding, ends, strict=True)]
        if not any(map(int.__gt__, kernel.shape[2:], strides)) or any(beyond):
            return call  # filters that do not overlap have kernels of their own
        return self._rewritten(call, kernel, strides, given, result)

    def _rewritten(
        self, call: relax.Call, kernel: NDArray, strides: list[int], given: Sequence[Any], result: Sequence[Any]
    ) -> relax.Expr:
        emit, rank = self.builder_.emit, len(strides)
        filters = phases_of(kernel, strides)
        around = [taps - 1 for taps in filters.shape[2:]]
        convolve, dtype = _CONVOLUTIONS[rank], str(call.ty.dtype.dtype)
        found = emit(convolve(call.args[0], relax.const(filters), padding=[*around, *around], out_dtype=dtype))
        places = [extent + more for extent, more in zip(given[2:], around, strict=True)]
        parts = emit(relax.op.reshape(found, relax.ShapeExpr([given[0], *strides, result[1], *places])))
        order = [0, 1 + rank, *(place for axis in range(rank) for place in (2 + rank + axis, 1 + axis))]
        turned = emit(relax.op.permute_dims(parts, order))
        whole = [place * stride for place, stride in zip(places, strides, strict=True)]
        joined = emit(relax.op.reshape(turned, relax.ShapeExpr([given[0], result[1], *whole])))
        begins = [tirx.IntImm("int64", int(pad)) for pad in call.attrs.padding[:rank]]
        ends = [begin + extent for begin, extent in zip(begins, result[2:], strict=True)]
        axes, steps = list(range(2, 2 + rank)), [tirx.IntImm("int64", 1)] * rank
        return relax.op.strided_slice(joined, axes, begins, ends, steps, assume_inbound=True)
