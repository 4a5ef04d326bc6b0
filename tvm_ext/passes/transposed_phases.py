"""Splits transposed convolutions along one or three axes by phases of their result.

before: ``y = conv1d_transpose(x, w, strides=2)``, computed as a convolution of ``x`` with zeros between its elements
after:  ``y[2q + r] = conv1d(x, w[.., taps that meet phase r, flipped])[q]`` for ``r = 0, 1``, joined by a reshape

Each product with an inserted zero goes: a stride of 2 along three axes leaves an eighth. Along two axes the blocked
layout of CPUs does the same, and other targets ask for it. Where all phases read the same elements, as with a kernel of
the size of its stride, they are the channels of one convolution. Only constant weights without groups or dilation are
split.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_ext.relax_utils import constant, rewritten, static_shape

_LAYOUTS = {
    "relax.nn.conv1d_transpose": ("NCW", "IOW"),
    "relax.nn.conv2d_transpose": ("NCHW", "IOHW"),
    "relax.nn.conv3d_transpose": ("NCDHW", "IODHW"),
}

_CONVOLUTIONS = {1: relax.op.nn.conv1d, 2: relax.op.nn.conv2d, 3: relax.op.nn.conv3d}

LEAST_SAVED = 256
"""Products that must go for each element of a result, times the bytes of a factor: joining phases has its price.

On AMD Zen 5, 512 (float32) gave 1.5 times the speed, 128 (uint8) 0.8 times.
"""


def transposed_phases(least_saved: int = LEAST_SAVED, pictures: bool = False) -> tvm.transform.Pass:
    """Make the pass; transposed convolutions that it cannot split, or that save too little, are left alone.

    ``pictures`` is whether those along two axes are split too.
    """

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.TransposedPhases")
    def _transposed_phases(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        rewriter = _PhaseMutator(mod)
        rewriter.least_saved, rewriter.pictures = least_saved, pictures
        return rewritten(mod, rewriter)

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


@dataclass(frozen=True)
class _Window:
    """What a phase is a convolution of: its taps, padding, and the part of the data that they meet."""

    taps: NDArray
    padding: tuple[int, ...]
    begin: tuple[int, ...]
    end: tuple[int, ...]


@mutator
class _PhaseMutator(PyExprMutator):
    least_saved, pictures = LEAST_SAVED, False

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        """Split a transposed convolution."""
        call = self.visit_expr_post_order(call)
        name = getattr(call.op, "name", "")
        kernel = constant(call.args[1]) if name in _LAYOUTS else None
        if kernel is None or (kernel.ndim == 4 and not self.pictures):
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
        windows: list[_Window] = []
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
            windows.append(_Window(np.ascontiguousarray(taps), (*before, *after), tuple(begin), tuple(end)))
        if len({(window.taps.shape, window.padding, window.begin, window.end) for window in windows}) == 1:
            channels = replace(windows[0], taps=np.concatenate([window.taps for window in windows]))
            found = self._convolved(call, channels, extents)
            parts = self.builder_.emit(relax.op.reshape(found, (result[0], *strides, result[1], *counts)))
            rank = len(strides)
            order = [0, 1 + rank, *(place for axis in axes for place in (2 + rank + axis, 1 + axis))]
            return self._joined(self.builder_.emit(relax.op.permute_dims(parts, order)), strides, counts, result)
        phases = [self._convolved(call, window, extents) for window in windows]
        return self._joined(self._side_by_side(phases, strides, counts, result), strides, counts, result)

    def _convolved(self, call: relax.Call, window: _Window, extents: Sequence[int]) -> relax.Expr:
        data, axes = call.args[0], list(range(2, 2 + len(extents)))
        if any(window.begin) or window.end != tuple(extents):
            data = self.builder_.emit(relax.op.strided_slice(data, axes, window.begin, window.end))
        convolve = _CONVOLUTIONS[len(extents)]
        return self.builder_.emit(
            convolve(data, relax.const(window.taps), padding=window.padding, out_dtype=str(call.ty.dtype))
        )

    def _side_by_side(
        self, phases: list[relax.Expr], strides: Sequence[int], counts: Sequence[int], result: Sequence[int]
    ) -> relax.Expr:
        """Put phases next to each other along every axis: an axis of places before one of phases."""
        rank = len(strides)
        stacked = self.builder_.emit(relax.op.stack(phases, axis=-1))
        parts = self.builder_.emit(relax.op.reshape(stacked, (*result[:2], *counts, *strides)))
        order = [0, 1, *(place for axis in range(rank) for place in (2 + axis, 2 + rank + axis))]
        return self.builder_.emit(relax.op.permute_dims(parts, order))

    def _joined(
        self, turned: relax.Expr, strides: Sequence[int], counts: Sequence[int], result: Sequence[int]
    ) -> relax.Expr:
        """Make one axis of places and phases, and cut off what is beyond the end."""
        rank = len(strides)
        whole = [count * stride for count, stride in zip(counts, strides, strict=True)]
        found = self.builder_.emit(relax.op.reshape(turned, (*result[:2], *whole)))
        if whole != list(result[2:]):
            axes = list(range(2, 2 + rank))
            found = self.builder_.emit(relax.op.strided_slice(found, axes, [0] * rank, list(result[2:])))
        return found
