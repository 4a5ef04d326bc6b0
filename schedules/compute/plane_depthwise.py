"""Depthwise convolutions of plain tensors, a plane for each channel, which may be read in another order."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import te, tirx
from tvm.ir import Expr

from tvm_ext.schedules.annotations import KERNEL_ATTRIBUTE
from tvm_ext.schedules.compute.convolution import output_extent
from tvm_ext.schedules.compute.matmul import flatten, round_up, unflatten


def plane_depthwise(
    data: te.Tensor,
    weight: te.Tensor,
    padding: Sequence[int],
    lanes: int,
    factors: Sequence[int] = (),
    order: Sequence[int] = (),
) -> te.Tensor:
    """Convolve every channel with its own filter, in steps of one; vectors run along rows of the image.

    Parameters
    ----------
    data : te.Tensor
        Shape ``(N, C, H, W)``.
    weight : te.Tensor
        Shape ``(C, KH, KW)``.
    padding : sequence of four int
        Above, left, below, right; none negative.
    lanes : int
        Columns of a vector; the columns that are computed are rounded up to a multiple.
    factors, order : sequence of int
        With them channels are shuffled first: those of ``data``, as an array of shape ``factors``, with its axes in the
        ``order``.

    Returns
    -------
    te.Tensor
        Shape ``(N, C, OH, OW)``.
    """
    batch, channels, height, width = (int(extent) for extent in data.shape)
    _, *kernel = (int(extent) for extent in weight.shape)
    top, left, bottom, right = padding
    out_height = output_extent(height, kernel[0], 1, top, bottom, 1)
    out_width = output_extent(width, kernel[1], 1, left, right, 1)
    computed = round_up(out_width, lanes)
    rows, columns = out_height + kernel[0] - 1, computed + kernel[1] - 1

    def source(n: tirx.Var, c: tirx.Var, y: tirx.Var, x: tirx.Var) -> Expr:
        row, column = y - top, x - left
        checks = [row >= 0] if top > 0 else []
        checks += [row < height] if rows - top > height else []
        checks += [column >= 0] if left > 0 else []
        checks += [column < width] if columns - left > width else []
        value = data[n, shuffled(c, factors, order), row, column]
        return tirx.if_then_else(tirx.all(*checks), value, tirx.const(0, data.dtype)) if checks else value

    pad = te.compute((batch, channels, rows, columns), source, name="pad", attrs={KERNEL_ATTRIBUTE: "pad"})
    i, j = (te.reduce_axis((0, extent), name) for extent, name in zip(kernel, ("kh", "kw"), strict=True))
    result = te.compute(
        (batch, channels, out_height, computed),
        lambda n, c, y, x: te.sum(pad[n, c, y + i, x + j] * weight[c, i, j], [i, j]),
        name="plane_depthwise",
        attrs={KERNEL_ATTRIBUTE: "plane_depthwise"},
    )
    if computed == out_width:
        return result
    return te.compute((batch, channels, out_height, out_width), lambda *index: result(*index), name="crop")


def shuffled(channel: Expr, factors: Sequence[int], order: Sequence[int]) -> Expr:
    """Give the place before a shuffle of a channel behind it; see :func:`plane_depthwise`."""
    if not factors:
        return channel
    places = unflatten(channel, [factors[axis] for axis in order])
    before: list[Expr] = [0] * len(factors)
    for axis, place in zip(order, places, strict=True):
        before[axis] = place
    return flatten(before, factors)
