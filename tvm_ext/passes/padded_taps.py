"""Spares convolutions the products with zeros around an image: taps that only meet these, and those at its edges.

before: ``y = conv2d(x, w, padding=24, dilation=24)`` of 3 x 3 taps and 14 x 14 pixels
after:  ``y = conv2d(x, w[..., 1:2, 1:2])``: the other taps lie outside for every result

before: ``y = conv2d(x, w, padding=12, dilation=12)``
after:  ``y = concat(conv2d(x[rows, columns], w[taps of these]), ...)`` of 3 x 3 blocks of results without padding

Dilated convolutions, as of atrous spatial pyramid pooling, read more padding than picture where rates come near the
picture's size: a rate of 12 leaves 18 % of the products of 14 x 14 pixels, and 57 % of 33 x 33.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby, product
from math import prod

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_ext.relax_utils import constant, rewritten, static_shape

_LAYOUTS = {
    "relax.nn.conv1d": ("NCW", "OIW"),
    "relax.nn.conv2d": ("NCHW", "OIHW"),
    "relax.nn.conv3d": ("NCDHW", "OIDHW"),
}

_CONVOLUTIONS = {1: relax.op.nn.conv1d, 2: relax.op.nn.conv2d, 3: relax.op.nn.conv3d}

BLOCK_PRODUCTS = 2_000_000
"""Products in the time that a block costs by itself: slicing what it reads, and joining what it gives."""

LEAST_GAIN = 1.1
"""How much less work blocks must be: a narrow one is computed less well than the whole."""


@dataclass(frozen=True)
class Axis:
    """A convolution along one axis.

    Attributes
    ----------
    extent, results : int
        Elements that are read and written.
    taps, stride, dilation, before : int
        Of the filter; ``before`` is the padding before the first element.
    """

    extent: int
    results: int
    taps: int
    stride: int
    dilation: int
    before: int

    def inside(self, result: int) -> range:
        """Give the taps that meet an element, not padding, for one result."""
        place = result * self.stride - self.before
        first = max(0, -(place // self.dilation))
        last = min(self.taps - 1, (self.extent - 1 - place) // self.dilation)
        return range(first, last + 1)


@dataclass(frozen=True)
class Block:
    """Results ``start`` to ``stop`` along an axis, and the taps that meet an element for one of them at least."""

    start: int
    stop: int
    taps: range

    def window(self, axis: Axis) -> tuple[int, int, int, int]:
        """Give where the elements read begin and end, and the padding before and after them."""
        first = self.start * axis.stride - axis.before + self.taps.start * axis.dilation
        last = (self.stop - 1) * axis.stride - axis.before + (self.taps.stop - 1) * axis.dilation + 1
        begin, end = max(first, 0), min(last, axis.extent)
        return begin, end, begin - first, last - end

    @property
    def products(self) -> int:
        """Products along this axis."""
        return (self.stop - self.start) * len(self.taps)


@lru_cache(maxsize=1024)
def whole(axis: Axis) -> Block | None:
    """Take all results of an axis as a block; None where some meet nothing but padding."""
    met = [axis.inside(result) for result in range(axis.results)]
    if not met or not all(met):
        return None
    return Block(0, axis.results, range(min(taps.start for taps in met), max(taps.stop for taps in met)))


@lru_cache(maxsize=1024)
def blocks(axis: Axis, price: float) -> tuple[Block, ...]:
    """Divide the results of an axis, all of which meet an element, so that products and ``price`` per block are least.

    By dynamic programming over the places where the taps that lie inside change.
    """
    pieces = []
    for taps, results in groupby(range(axis.results), axis.inside):
        found = list(results)
        pieces.append(Block(found[0], found[-1] + 1, taps))
    best: list[tuple[float, tuple[Block, ...]]] = [(0.0, ())]
    for stop in range(1, len(pieces) + 1):
        options = []
        for start in range(stop):
            joined = pieces[start:stop]
            taps = range(min(piece.taps.start for piece in joined), max(piece.taps.stop for piece in joined))
            block = Block(joined[0].start, joined[-1].stop, taps)
            cost, before = best[start]
            options.append((cost + block.products + price, (*before, block)))
        best.append(min(options, key=lambda option: option[0]))
    return best[-1][1]


def undivided(axes: Sequence[Axis]) -> list[tuple[Block, ...]]:
    """Take all results of each axis as one block; all of them meet an element."""
    return [(block,) for block in map(whole, axes) if block is not None]


def divided(axes: Sequence[Axis], pairs: int) -> list[tuple[Block, ...]]:
    """Divide the results along all axes, or drop taps only, whichever is less work.

    Parameters
    ----------
    axes : sequence of Axis
        All of whose results meet an element.
    pairs : int
        Pairs of channels, times the batch: products for each result and tap.
    """
    single = undivided(axes)
    if all(axis.dilation == 1 for axis in axes):  # they have faster algorithms, and little is outside
        return single
    along = [block.products for (block,) in single]
    dense = prod(along)
    prices = [BLOCK_PRODUCTS * products / (dense * pairs) for products in along]
    found = [blocks(axis, price) for axis, price in zip(axes, prices, strict=True)]
    work = prod(sum(block.products for block in items) for items in found) * pairs
    work += BLOCK_PRODUCTS * prod(map(len, found))
    return found if work * LEAST_GAIN <= dense * pairs else single


def padded_taps(splits: bool) -> tvm.transform.Pass:
    """Make the pass, for convolutions of known extents with constant filters.

    Parameters
    ----------
    splits : bool
        Whether results are divided where much would be multiplied with padding; otherwise taps are dropped only.
    """

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.PaddedTaps")
    def _padded_taps(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        rewriter = _PaddedTapsMutator(mod)
        rewriter.splits = splits
        return rewritten(mod, rewriter)

    return _padded_taps


@mutator
class _PaddedTapsMutator(PyExprMutator):
    splits = False

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        """Rewrite a convolution that reads padding."""
        call = self.visit_expr_post_order(call)
        name = getattr(call.op, "name", "")
        kernel = constant(call.args[1]) if name in _LAYOUTS and any(map(int, call.attrs.padding)) else None
        axes = None if kernel is None else _axes(call, kernel, _LAYOUTS[name])
        if axes is None or any(whole(axis) is None for axis in axes):
            return call
        assert kernel is not None
        batch = int(call.ty.shape[0])
        found = divided(axes, batch * kernel.shape[0] * kernel.shape[1]) if self.splits else undivided(axes)
        is_same = all(
            len(along) == 1 and len(along[0].taps) == axis.taps for along, axis in zip(found, axes, strict=True)
        )
        # Zeros times what is no number are none either.
        if is_same or not np.isfinite(kernel).all():
            return call
        parts = {place: self._convolved(call, kernel, axes, place) for place in product(*found)}
        return self._joined(parts, found)

    def _convolved(self, call: relax.Call, kernel: NDArray, axes: Sequence[Axis], place: Sequence[Block]) -> relax.Expr:
        windows = [block.window(axis) for block, axis in zip(place, axes, strict=True)]
        begins, ends, before, after = ([window[item] for window in windows] for item in range(4))
        data, spatial = call.args[0], list(range(2, 2 + len(axes)))
        if any(begins) or ends != [axis.extent for axis in axes]:
            data = self.builder_.emit(relax.op.strided_slice(data, spatial, begins, ends))
        taps = kernel[:, :, *(slice(block.taps.start, block.taps.stop) for block in place)]
        return self.builder_.emit(
            _CONVOLUTIONS[len(axes)](
                data,
                relax.const(np.ascontiguousarray(taps), str(kernel.dtype)),
                strides=[axis.stride for axis in axes],
                padding=[*before, *after],
                # One tap has no distance to the next.
                dilation=[axis.dilation if len(block.taps) > 1 else 1 for axis, block in zip(axes, place, strict=True)],
                groups=int(call.attrs.groups),
                out_dtype=str(call.ty.dtype),
            )
        )

    def _joined(self, parts: dict[tuple[Block, ...], relax.Expr], found: Sequence[tuple[Block, ...]]) -> relax.Expr:
        """Join blocks along the last axis, then along the one before it."""
        for axis in reversed(range(len(found))):
            rows = {place: [parts[*place, block] for block in found[axis]] for place in product(*found[:axis])}
            parts = {
                place: self.builder_.emit(relax.op.concat(row, axis=2 + axis)) if len(row) > 1 else row[0]
                for place, row in rows.items()
            }
        return parts[()]


def _axes(call: relax.Call, kernel: NDArray, layouts: tuple[str, str]) -> list[Axis] | None:
    """Describe a convolution axis by axis; None where its extents are open or empty, or its layout is another."""
    attrs, shape, result = call.attrs, static_shape(call.args[0]), static_shape(call)
    if shape is None or result is None or 0 in (*shape, *result, *kernel.shape):
        return None
    if (str(attrs.data_layout), str(attrs.kernel_layout)) != layouts or str(attrs.out_layout) not in ("", layouts[0]):
        return None
    sizes = zip(shape[2:], result[2:], kernel.shape[2:], strict=True)
    steps = zip(attrs.strides, attrs.dilation, attrs.padding, strict=False)
    return [
        Axis(extent, results, taps, int(stride), int(dilation), int(before))
        for (extent, results, taps), (stride, dilation, before) in zip(sizes, steps, strict=True)
    ]
