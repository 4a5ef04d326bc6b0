"""Maxima of windows over pictures of open size, and where they are."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import mul
from typing import Any

from tvm import relax, te, tirx

from tvm_ext.frontend.onnx.ops.base import Node, add, astype, dtype_of, multiply, reshape
from tvm_ext.frontend.onnx.ops.extents import as_tensor, normal, number


def open_max_pool_with_indices(
    node: Node, bb: relax.BlockBuilder, x: Any, maxima: Any, pads: Sequence[int]
) -> tuple[Any, Any]:
    """Give the maxima and their places, as :func:`tvm_ext.frontend.onnx.ops.selections.max_pool_with_indices`.

    The places in each window are computed by every run.
    """
    (batch, channels, *sizes), steps = list(x.ty.shape), list(maxima.ty.shape)[2:]
    rank, kernel = len(sizes), node.integers("kernel_shape")
    strides, dilations = node.integers("strides", [1] * rank), node.integers("dilations", [1] * rank)
    for axis in range(rank):
        # The taps of a dilated window that begins in front of a small picture may jump over it.
        in_front = kernel[axis] if dilations[axis] == 1 else 1
        if pads[axis] >= in_front or pads[axis + rank] > (kernel[axis] - 1) * dilations[axis]:
            node.refuse(
                f"pads={list(pads)} with dilations={dilations}: a window of a picture of open size may have no element "
                "that is not padding, so that there is no index of its maximum; give the sizes with --input-shape"
            )
    size, windows, elements = _product(sizes), _product(steps), reduce(mul, kernel)

    def listed(backwards: bool) -> Any:
        order = list(range(rank))[:: -1 if backwards else 1]  # the last one counts fastest

        def places(extents: list[Any], counts: list[Any]) -> te.Tensor:
            def place(window: Any, element: Any) -> Any:
                at = {}
                for axis in reversed(range(rank)):
                    begin = tirx.floormod(window, counts[axis]) * strides[axis] - pads[axis]
                    first = tirx.max(-tirx.floordiv(begin, dilations[axis]), tirx.const(0, "int64"))
                    inside = begin + tirx.floormod(element, kernel[axis]) * dilations[axis]
                    beyond = tirx.any(inside < 0, inside >= extents[axis])
                    # In place of padding the first row of elements that is none: earlier than it nothing counts.
                    at[axis] = tirx.Select(beyond, begin + first * dilations[axis], inside)
                    window, element = tirx.floordiv(window, counts[axis]), tirx.floordiv(element, kernel[axis])
                total: Any = tirx.const(0, "int64")
                for axis in order:
                    total = total * extents[axis] + at[axis]
                return total

            shape = (_product(counts), tirx.const(elements, "int64"))
            return te.compute(shape, place, name="window_places")

        return bb.emit_te(places, sizes, steps, primfunc_name_hint="window_places")

    places = listed(False)
    gathered = bb.emit(
        relax.op.take(reshape(bb, x, [batch, channels, size]), reshape(bb, places, [-1]), 2, mode="clip")
    )
    gathered = reshape(bb, gathered, [batch, channels, windows, elements])
    wide = astype(bb, gathered, "int32") if dtype_of(x) in ("int8", "uint8") else gathered
    which = bb.emit(relax.op.argmax(wide, 3))
    taken = bb.emit(relax.op.expand_dims(which, 3))
    found = reshape(bb, bb.emit(relax.op.gather_elements(gathered, taken, 3)), [batch, channels, *steps])
    table = reshape(bb, listed(True) if node.integer("storage_order", 0) else places, [-1])
    rows = multiply(bb, bb.emit(relax.op.arange(0, windows, 1, "int64")), as_tensor(bb, number(elements)))
    index = bb.emit(relax.op.take(table, reshape(bb, add(bb, which, rows), [-1]), 0, mode="clip"))
    index = reshape(bb, index, [batch, channels, windows])
    pictures = bb.emit(relax.op.arange(0, normal(batch * channels), 1, "int64"))
    offsets = multiply(bb, reshape(bb, pictures, [batch, channels, 1]), as_tensor(bb, size))
    return found, reshape(bb, add(bb, index, offsets), [batch, channels, *steps])


def _product(extents: Sequence[Any]) -> Any:
    return normal(reduce(mul, extents, number(1)))
