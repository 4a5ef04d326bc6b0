"""Inverted residuals as one tensor expression: expansion, depthwise convolution and projection, band by band of rows.

A band of output rows needs the rows of the expansion that its windows meet; neighbouring bands compute those between
them twice. Everything between the three convolutions has the band as its first axis, so that a schedule that goes band
by band, and through the channels between them part by part, needs as much memory as one part of one band.

Source: M. Sandler et al., "MobileNetV2: Inverted Residuals and Linear Bottlenecks", CVPR 2018, section 5.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from tvm import te, tirx
from tvm.ir import Expr

from tvm_ext.schedules.annotations import KERNEL_ATTRIBUTE, PARTS_ATTRIBUTE
from tvm_ext.schedules.compute.convolution import blocks_read

Tail: TypeAlias = Callable[[Expr, Sequence[Expr]], Expr]
"""What is computed of a sum of a convolution, and of its place ``(n, chunk, row, column, lane)``."""

Prologue: TypeAlias = Callable[[Sequence[Expr]], Expr]
"""What the depthwise convolution reads at a place, computed of other tensors."""


INDEX = "int64"
"""Type of indices, as in the kernels that Relax makes of tensor expressions."""


def wide(extents: Sequence[int]) -> tuple[Expr, ...]:
    """Give extents as numbers of :data:`INDEX`."""
    return tuple(tirx.const(extent, INDEX) for extent in extents)


@dataclass(frozen=True)
class Window:
    """Geometry of the depthwise convolution.

    Attributes
    ----------
    kernel, strides, dilation : tuple of two int
    before : tuple of two int
        Rows and columns of zeros above and to the left of the image.
    extents, results : tuple of two int
        Rows and columns of its input and of its result.
    """

    kernel: tuple[int, int]
    strides: tuple[int, int]
    dilation: tuple[int, int]
    before: tuple[int, int]
    extents: tuple[int, int]
    results: tuple[int, int]

    def input_rows(self, rows: int) -> int:
        """Count the rows, those of zeros included, that ``rows`` rows of the result depend on."""
        return (rows - 1) * self.strides[0] + (self.kernel[0] - 1) * self.dilation[0] + 1


def inverted_residual(
    data: te.Tensor | Prologue,
    expansion: tuple[te.Tensor, Tail] | None,
    depthwise: tuple[te.Tensor, Tail],
    projection: tuple[te.Tensor, Tail] | None,
    window: Window,
    shape: Sequence[int],
    bands: int,
    parts: int,
) -> te.Tensor:
    """Convolve by 1 x 1 taps, then channel by channel, then by 1 x 1 taps again; the first and the last may be missing.

    Parameters
    ----------
    data : te.Tensor or Prologue
        Shape ``(N, CI / vi, H, W, vi)``. A prologue, where there is no expansion, is computed for each band.
    expansion, projection : tuple of (te.Tensor, Tail), optional
        Weights ``(CO / vo, CI / vi, 1, 1, vi, vo)``, as ``packed_weights.pack_weight`` lays them out, and what follows
        the convolution. Of the expansion, ``vi`` may be a part of that of the data.
    depthwise : tuple of (te.Tensor, Tail)
        Weights ``(C / v, KH, KW, v)``.
    window : Window
    shape : sequence of int
        Of the result: ``(N, K / v, OH, OW, v)``.
    bands : int
        A divisor of ``OH``.
    parts : int
        Into how many parts a schedule divides the channels between the convolutions; a divisor of their blocks.

    Returns
    -------
    te.Tensor
        Of ``shape``.
    """
    batch, _, out_h, out_w, _ = shape
    rows = out_h // bands
    height, width = window.extents
    chunks, *_, lanes = (int(extent) for extent in depthwise[0].shape)
    in_rows = window.input_rows(rows)

    def image(task: Expr) -> Expr:
        return task // bands if batch > 1 else tirx.const(0, INDEX)

    def first(task: Expr, step: int) -> Expr:
        return (task % bands if batch > 1 else task) * (rows * step)

    def input_row(task: Expr, row: Expr) -> Expr:
        return first(task, window.strides[0]) + row - window.before[0]

    source: Any = data
    if expansion is not None:
        assert isinstance(data, te.Tensor)
        weight, tail = expansion

        def pixel(task: Expr, row: Expr, column: Expr) -> tuple[Expr, Expr, Expr]:
            # Rows of zeros are computed of another row, and dropped: a condition would stand in the innermost loops.
            inside = tirx.max(tirx.min(input_row(task, row), height - 1), 0)
            return image(task), inside, column

        expanded = _pointwise(data, weight, (batch * bands, chunks, in_rows, width, lanes), pixel, "expand", parts)

        def activated(task: Expr, c: Expr, row: Expr, column: Expr, lane: Expr) -> Expr:
            place = input_row(task, row)
            value = tail(expanded[task, c, row, column, lane], (image(task), c, place, column, lane))
            return tirx.if_then_else(tirx.all(place >= 0, place < height), value, tirx.const(0, "float32"))

        source = te.compute(expanded.shape, activated, name="expanded_tail")
    elif not isinstance(data, te.Tensor):
        # With the zeros around it, so that no condition stands in the innermost loops.
        columns = (out_w - 1) * window.strides[1] + (window.kernel[1] - 1) * window.dilation[1] + 1
        left = window.before[1]

        def computed(task: Expr, c: Expr, row: Expr, column: Expr, lane: Expr) -> Expr:
            place, across = input_row(task, row), column - left
            inside = tirx.all(place >= 0, place < height, across >= 0, across < width)
            value = data((image(task), c, place, across, lane))
            return tirx.if_then_else(inside, value, tirx.const(0, "float32"))

        extents = wide((batch * bands, chunks, in_rows, columns, lanes))
        source = te.compute(extents, computed, name="prologue", attrs={KERNEL_ATTRIBUTE: "residual_prologue"})

    weight, tail = depthwise
    taps = [_reduced(extent, name) for extent, name in zip(window.kernel, ("kh", "kw"), strict=True)]

    def summed(task: Expr, c: Expr, row: Expr, column: Expr, lane: Expr) -> Expr:
        place = row * window.strides[0] + taps[0] * window.dilation[0]
        across = column * window.strides[1] + taps[1] * window.dilation[1]
        if not isinstance(data, te.Tensor):
            return te.sum(source[task, c, place, across, lane] * weight[c, *taps, lane], taps)
        across -= window.before[1]
        inside = [across >= 0, across < width]
        if expansion is not None:
            value = source[task, c, place, across, lane]
        else:
            place = first(task, window.strides[0]) + place - window.before[0]
            inside += [place >= 0, place < height]
            value = source[image(task), c, place, across, lane]
        value = tirx.if_then_else(tirx.all(*inside), value, tirx.const(0, "float32"))
        return te.sum(value * weight[c, *taps, lane], taps)

    attrs = {KERNEL_ATTRIBUTE: "residual_window", PARTS_ATTRIBUTE: parts}
    result = te.compute(wide((batch * bands, chunks, rows, out_w, lanes)), summed, name="window", attrs=attrs)
    if projection is not None:
        inner = tail

        def filtered(task: Expr, c: Expr, row: Expr, column: Expr, lane: Expr) -> Expr:
            return inner(result[task, c, row, column, lane], (image(task), c, first(task, 1) + row, column, lane))

        hidden = te.compute(result.shape, filtered, name="window_tail")
        weight, tail = projection
        extents = (batch * bands, shape[1], rows, out_w, shape[-1])
        result = _pointwise(hidden, weight, extents, lambda *place: place, "project", parts)

    def stored(n: Expr, c: Expr, h: Expr, w: Expr, i: Expr) -> Expr:
        task = n * bands + h // rows if batch > 1 else h // rows
        return tail(result[task, c, h % rows, w, i], (n, c, h, w, i))

    return te.compute(wide(shape), stored, name="put_together")


def _reduced(extent: Any, name: str) -> tirx.IterVar:
    return te.reduce_axis((0, tirx.const(int(extent), INDEX)), name)


def _pointwise(
    data: te.Tensor,
    weight: te.Tensor,
    extents: Sequence[int],
    pixel: Callable[[Expr, Expr, Expr], Sequence[Expr]],
    name: str,
    parts: int,
) -> te.Tensor:
    """Convolve by 1 x 1 taps; ``pixel`` gives the image, row and column of the input for those of ``extents``."""
    read = blocks_read(data, int(weight.shape[-2]))
    ic = _reduced(weight.shape[1], "ic")
    ii = _reduced(weight.shape[-2], "ii")

    def element(task: Expr, oc: Expr, row: Expr, column: Expr, oi: Expr) -> Expr:
        image, h, w = pixel(task, row, column)
        return te.sum(read(image, ic, (h, w), ii) * weight[oc, ic, 0, 0, ii, oi], [ic, ii])

    attrs = {KERNEL_ATTRIBUTE: f"residual_{name}", PARTS_ATTRIBUTE: parts}
    return te.compute(wide(extents), element, name=name, attrs=attrs)
