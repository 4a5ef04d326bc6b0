"""Pictures that are sums of windows, which are given as columns: the inverse of unfolding."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from tvm import relax, te, tirx


def window_steps(
    picture: Sequence[int], block: Sequence[int], strides: Sequence[int], dilations: Sequence[int],
    pads: Sequence[int],
) -> list[int]:  # fmt: skip
    """Count the windows along each axis; ``pads`` are those in front of all axes, then those behind."""
    rank = len(picture)
    return [
        (picture[axis] + pads[axis] + pads[axis + rank] - dilations[axis] * (block[axis] - 1) - 1) // strides[axis] + 1
        for axis in range(rank)
    ]


def picture_of_columns(
    bb: relax.BlockBuilder, columns: relax.Expr, picture: Sequence[int], block: Sequence[int], strides: Sequence[int],
    dilations: Sequence[int], pads: Sequence[int],
) -> Any:  # fmt: skip
    """Emit the sum of windows.

    Each pixel adds up its own terms, so that no two threads write the same.

    Parameters
    ----------
    bb : relax.BlockBuilder
    columns : relax.Expr
        Of shape (batch, channels * elements of a window, windows).
    picture, block, strides, dilations : sequence of int
        For each axis: extent of the picture and of a window, and how far apart windows and their elements are.
    pads : sequence of int
        In front of all axes, then behind them.

    Returns
    -------
    relax.Expr
        Of shape (batch, channels) and the extents of the picture.
    """
    rank, size = len(picture), prod(block)
    steps = window_steps(picture, block, strides, dilations, pads)
    batch, rows = list(columns.ty.shape)[:2]

    # Where elements of a window are side by side, few windows reach a pixel: of 8 elements in steps of 8 one does.
    terms = [
        -(-extent // step) if dilation == 1 else extent
        for extent, step, dilation in zip(block, strides, dilations, strict=True)
    ]

    def fold(source: Any) -> Any:
        inside = [te.reduce_axis((0, count), f"k{axis}") for axis, count in enumerate(terms)]

        def pixel(image: Any, channel: Any, *at: Any) -> Any:
            fits: list[Any] = []
            column: Any = tirx.const(0, "int64")
            row: Any = tirx.const(0, "int64")
            for axis in range(rank):
                place = at[axis] + pads[axis]
                if dilations[axis] == 1:
                    step = tirx.floordiv(place, strides[axis]) - inside[axis]
                    element = tirx.floormod(place, strides[axis]) + inside[axis] * strides[axis]
                    fits.append(element < block[axis])
                else:
                    element = inside[axis]
                    place -= element * dilations[axis]
                    step = tirx.floordiv(place, strides[axis])
                    fits.append(tirx.floormod(place, strides[axis]) == 0)
                fits += [step >= 0, step < steps[axis]]
                column = column * steps[axis] + tirx.max(tirx.min(step, steps[axis] - 1), 0)
                row = row * block[axis] + tirx.min(element, block[axis] - 1)
            value = source[image, channel * size + row, column]
            return te.sum(tirx.if_then_else(tirx.all(*fits), value, tirx.const(0, source.dtype)), axis=inside)

        return te.compute((batch, rows // size, *picture), pixel, name="col2im")

    return bb.emit_te(fold, columns, primfunc_name_hint="col2im")
