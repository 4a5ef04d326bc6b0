"""Automatic padding (``SAME_UPPER``, ``SAME_LOWER``) of open extents in steps of several, computed by each run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax, te, tirx

from tvm_ext.frontend.onnx.ops.base import Node, dtype_of, emit
from tvm_ext.frontend.onnx.ops.extents import normal


def depends_on_size(size: Any, reach: int, stride: int) -> bool:
    """Whether automatic padding differs from one size to another: a window of one place needs none."""
    return not isinstance(size, int) and stride != 1 and reach != 1


def padded_at_run_time(
    node: Node, bb: relax.BlockBuilder, x: Any, reaches: Sequence[int], strides: Sequence[int], value: float | None
) -> Any:
    """Pad what windows slide over so that there are as many as steps fit into the size, the last one rounded up.

    Parameters
    ----------
    x : relax.Expr
        Shape (B, C, ...).
    reaches : sequence of int
        Places from the first to the last of a window, along each axis.
    value : float, optional
        What the padding holds; None is the lowest value of the type.

    Raises
    ------
    UnsupportedOperatorError
        If steps leave places out, so that sizes may need no padding at all.
    """
    x = emit(bb, x)
    upper, dtype = node.text("auto_pad") == "SAME_UPPER", dtype_of(x)
    first, last, extents = [], [], list(node.dims(x, "X")[:2])
    for size, reach, stride in zip(node.dims(x, "X")[2:], reaches, strides, strict=True):
        if reach != 1 and reach < stride:
            node.refuse(
                f"its automatic padding of windows of {reach} in steps of {stride} depends on extent {size}, which is "
                "open; bind the model's input shapes, or export the model with the padding written out"
            )
        if reach == 1:
            padded = size
        else:
            padded = normal((tirx.floordiv(size + (stride - 1), stride) - 1) * stride + reach)
        total = normal(padded - size)
        begin = normal(tirx.floordiv(total if upper else total + 1, 2))
        first.append(begin)
        last.append(normal(begin + size))
        extents.append(padded)

    def pad(data: Any) -> Any:
        filling = te.min_value(dtype) if value is None else tirx.const(value, dtype)

        def at(*index: Any) -> Any:
            inside = [
                tirx.all(place >= low, place < high) for place, low, high in zip(index[2:], first, last, strict=True)
            ]
            places = [place - low for place, low in zip(index[2:], first, strict=True)]
            return tirx.if_then_else(tirx.all(*inside), data(*index[:2], *places), filling)

        return te.compute(extents, at, name="automatic_padding")

    return bb.emit_te(pad, x, primfunc_name_hint="automatic_padding")
