"""Winograd convolutions over the blocked layout whose batch, rows or columns are only known at run time.

What they compute stands here; how, is written out by :mod:`tvm_ext.schedules.cpu.open_winograd`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import te, tirx
from tvm.ir import Expr

from tvm_ext.schedules.annotations import KERNEL_ATTRIBUTE
from tvm_ext.schedules.compute.layout import extents, full, in_channels
from tvm_ext.schedules.compute.open_convolution import GEOMETRY_ATTRIBUTE, open_extent, simple
from tvm_ext.schedules.compute.winograd_transforms import KERNEL, combine, transforms

OPEN_WINOGRAD, OPEN_WINOGRAD_TILE, OPEN_WINOGRAD_PRODUCT = (
    f"open_winograd{step}" for step in ("", "_tile", "_product")
)
"""What blocks of these kernels are annotated as: the result, the tiles of the input, and the products."""


def open_winograd(
    data: te.Tensor, weight: te.Tensor, padding: Sequence[int], outputs: int, out_channels: int = 0
) -> te.Tensor:
    """Convolve images of open extents with 3 x 3 taps and stride 1.

    Parameters
    ----------
    data : te.Tensor
        Shape ``(N, CI / v, H, W, v)``.
    weight : te.Tensor
        Filters as :func:`tvm_ext.schedules.compute.winograd_transforms.transform_weight` gives them, their columns
        packed: ``(n * n, CO / v, CI, v)``, ``n = outputs + 2``.
    padding : sequence of four int
        Before rows and columns, then after each of them.
    outputs : int
        Outputs of a tile along an axis.
    out_channels : int
        ``CO`` where it does not fill the blocks of the weights.

    Returns
    -------
    te.Tensor
        Shape ``(N, CO / v, OH, OW, v)``; lanes beyond ``CO`` are zero.
    """
    batch, chunks, height, width, lanes = extents(data)
    _, out_chunks, reduction, _ = (int(extent) for extent in weight.shape)
    top, left, bottom, right = padding
    rows, columns = (
        open_extent(*axis, 1) for axis in ((height, KERNEL, 1, top, bottom), (width, KERNEL, 1, left, right))
    )
    tall, wide = (simple((extent + (outputs - 1)) // outputs) for extent in (rows, columns))
    size = outputs + KERNEL - 1
    back, _, forward = transforms(outputs)

    def cut(n: tirx.Var, th: tirx.Var, tw: tirx.Var, c: tirx.Var, x: tirx.Var, y: tirx.Var, i: tirx.Var) -> Expr:
        h, w = th * outputs + x - top, tw * outputs + y - left
        inside = tirx.all(h >= 0, h < height, w >= 0, w < width)
        return tirx.if_then_else(inside, data[n, c, h, w, i], tirx.const(0, data.dtype))

    places: list[Any] = [batch, tall, wide]
    tile = te.compute(
        (*places, chunks, size, size, lanes), cut, name="cut", attrs={KERNEL_ATTRIBUTE: OPEN_WINOGRAD_TILE}
    )
    half = te.compute(
        (*places, chunks, size, size, lanes),
        lambda *index: combine(forward, index[-3], lambda k: tile[*index[:-3], k, *index[-2:]]),
        name="half",
    )

    def transformed_at(b: tirx.Var, *rest: tirx.Var) -> Expr:
        *place, c = rest
        return combine(forward, b % size, lambda k: half[*place, c // lanes, b // size, k, c % lanes])

    transformed = te.compute((size * size, *places, reduction), transformed_at, name="transformed")
    k = te.reduce_axis((0, reduction), "k")
    product = te.compute(
        (size * size, *places, out_chunks, lanes),
        lambda b, n, th, tw, c, i: te.sum(transformed[b, n, th, tw, k] * weight[b, c, k, i], [k]),
        name="product",
        attrs={KERNEL_ATTRIBUTE: OPEN_WINOGRAD_PRODUCT},
    )
    back_half = te.compute(
        (*places, out_chunks, outputs, size, lanes),
        lambda *index: combine(
            back, index[-3], lambda k: product[k * size + index[-2], *index[:3], index[3], index[-1]]
        ),
        name="back_half",
    )
    result = te.compute(
        (*places, out_chunks, outputs, outputs, lanes),
        lambda *index: combine(back, index[-2], lambda k: back_half[*index[:-2], k, index[-1]]),
        name="tile",
    )
    shape = (batch, out_chunks, rows, columns, lanes)
    put_together = te.compute(
        shape,
        lambda n, c, h, w, i: result[n, h // outputs, w // outputs, c, h % outputs, w % outputs, i],
        name="put_together",
        attrs={KERNEL_ATTRIBUTE: OPEN_WINOGRAD, GEOMETRY_ATTRIBUTE: [outputs, top, left]},
    )

    def stored(*index: tirx.Var) -> Expr:
        value = put_together(*index)
        return value if full(out_channels, lanes) else in_channels(index, value, out_channels, put_together)

    return te.compute(shape, stored, name="store")
