"""Splits transposed convolutions along one or three axes by phases of their result.

before: ``y = conv1d_transpose(x, w, strides=2)``, computed as a convolution of ``x`` with zeros between its elements
after:  ``y[2q + r] = conv1d(x, w[.., taps that meet phase r, flipped])[q]`` for ``r = 0, 1``, joined by a reshape

Each product with an inserted zero goes: a stride of 2 along three axes leaves an eighth. Along two axes the blocked
layout does the same. Only constant weights without groups or dilation are split.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_ext.relax_utils import constant, static_shape

_LAYOUTS = {"relax.nn.conv1d_transpose": ("NCW", "IOW"), "relax.nn.conv3d_transpose": ("NCDHW", "IODHW")}


LEAST_SAVED = 256
"""Products that must go for each element of a result, times the bytes of a factor: joining phases has its price.

On AMD Zen 5, 512 (float32) gave 1.5 times the speed, 128 (uint8) 0.8 times.
"""


def transposed_phases(least_saved: int = LEAST_SAVED) -> tvm.transform.Pass:
    """Make the pass; transposed convolutions that it cannot split, or that save too little, are left alone."""

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.TransposedPhases")
    def _transposed_phases(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        rewriter = _PhaseMutator(mod)
        rewriter.least_saved = least_saved
        for global_var, function in mod.functions_items():
            if isinstance(function, relax.Function) and not (function.attrs and "Primitive" in function.attrs):
                rewriter.builder_.update_func(global_var, rewriter.visit_expr(function))
        return rewriter.builder_.finalize()

    return _transposed_phases


def taps_of(extent: int, stride: int, padding: int, phase: int) -> tuple[int, int, int]:
    """Find the taps that meet a phase: outputs ``stride * q + phase``.

    Output ``y`` is the sum of ``x[i] * w[k]`` with ``y = stride * i + k - padding``.

    Returns
    -------
    first : int
        Of the taps ``first, first + stride, ...``.
    count : int
    place : int
        Input that the last of them meets at ``q = 0``; the others meet those after it.
    """
    first = (phase + padding) % stride
    count = len(range(first, extent, stride))
    return first, count, (phase + padding - first) // stride - (count - 1)


@mutator
class _PhaseMutator(PyExprMutator):
    least_saved = LEAST_SAVED

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        """Split a transposed convolution."""
        call = self.visit_expr_post_order(call)
        name = getattr(call.op, "name", "")
        kernel = constant(call.args[1]) if name in _LAYOUTS else None
        if kernel is None:
            return call
        attrs, shape, result = call.attrs, static_shape(call.args[0]), static_shape(call)
        strides = [int(stride) for stride in attrs.strides]
        layouts = (str(attrs.data_layout), str(attrs.kernel_layout))
        whole = shape is not None and result is not None and 0 not in (*shape, *result, *kernel.shape)
        if not whole or layouts != _LAYOUTS[name] or int(attrs.groups) != 1 or max(strides) == 1:
            return call
        if any(int(step) != 1 for step in attrs.dilation) or any(map(int.__lt__, kernel.shape[2:], strides)):
            return call  # with fewer taps than phases some are zeros
        products = kernel.size // kernel.shape[1]
        if (products - products // np.prod(strides)) * kernel.itemsize < self.least_saved:
            return call
        assert shape is not None
        assert result is not None
        return self._split(call, kernel, strides, shape[2:], result)

    def _split(
        self, call: relax.Call, kernel: NDArray, strides: Sequence[int], extents: Sequence[int], result: Sequence[int]
    ) -> relax.Expr:
        axes = range(len(strides))
        counts = [-(-length // stride) for length, stride in zip(result[2:], strides, strict=True)]
        joined: list[relax.Expr] = []
        for phase in product(*map(range, strides)):
            window: list[slice] = [slice(None), slice(None)]
            before, after, begin, end = [], [], [], []
            for axis in axes:
                stride, extent = strides[axis], extents[axis]
                first, count, place = taps_of(
                    kernel.shape[2 + axis], stride, int(call.attrs.padding[axis]), phase[axis]
                )
                window.append(slice(first, None, stride))
                last = place + counts[axis] + count - 1  # one beyond
                begin.append(max(place, 0))
                end.append(min(last, extent))
                before.append(max(-place, 0))
                after.append(max(last - extent, 0))
            if any(map(int.__ge__, begin, end)):
                return call  # a phase that sees nothing but padding
            taps = np.flip(kernel[tuple(window)], tuple(axis + 2 for axis in axes)).swapaxes(0, 1)
            joined.append(self._convolved(call, np.ascontiguousarray(taps), before, after, begin, end, extents))
        return self._joined(joined, strides, counts, result)

    def _convolved(
        self, call: relax.Call, taps: NDArray, before: Sequence[int], after: Sequence[int], begin: Sequence[int],
        end: Sequence[int], extents: Sequence[int],
    ) -> relax.Expr:  # fmt: skip
        data, axes = call.args[0], list(range(2, 2 + len(extents)))
        if any(begin) or list(end) != list(extents):
            data = self.builder_.emit(relax.op.strided_slice(data, axes, begin, end))
        convolve = relax.op.nn.conv1d if len(extents) == 1 else relax.op.nn.conv3d
        padding = [*before, *after]
        return self.builder_.emit(convolve(data, relax.const(taps), padding=padding, out_dtype=str(call.ty.dtype)))

    def _joined(
        self, phases: list[relax.Expr], strides: Sequence[int], counts: Sequence[int], result: Sequence[int]
    ) -> relax.Expr:
        """Put phases next to each other along every axis, and cut off what is beyond the end."""
        rank = len(strides)
        stacked = self.builder_.emit(relax.op.stack(phases, axis=-1))
        parts = self.builder_.emit(relax.op.reshape(stacked, (*result[:2], *counts, *strides)))
        order = [0, 1, *(place for axis in range(rank) for place in (2 + axis, 2 + rank + axis))]
        turned = self.builder_.emit(relax.op.permute_dims(parts, order))
        whole = [count * stride for count, stride in zip(counts, strides, strict=True)]
        found = self.builder_.emit(relax.op.reshape(turned, (*result[:2], *whole)))
        if whole != list(result[2:]):
            axes = list(range(2, 2 + rank))
            found = self.builder_.emit(relax.op.strided_slice(found, axes, [0] * rank, list(result[2:])))
        return found
