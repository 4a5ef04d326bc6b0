"""Non-maximum suppression as kernels for any target: TVM's asks a sort of the CPU, and its limits are defaults.

The boxes of each class are put in order by a sort of the target's. A thread goes through those of a class and keeps
what overlaps none that it has kept; a second kernel collects what all have kept, each behind those before it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax, te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from tvm_ext.frontend.onnx.ops.base import Converter, Node, constant, dtype_of, emit, multiply
from tvm_ext.frontend.onnx.ops.extents import extents_in


class NonMaxSuppression(Converter):
    """Boxes of each class, the largest scores first, that overlap none kept before by more than a threshold."""

    @classmethod
    def convert(cls, node: Node, bb: relax.BlockBuilder, inputs: Any) -> Any:
        """Give the selected indices: image, class and box."""
        boxes, scores = emit(bb, inputs[0]), emit(bb, inputs[1])
        most = 0 if inputs[2] is None else int(node.scalar(inputs[2], "max_output_boxes_per_class"))
        overlap = 0.0 if inputs[3] is None else float(node.scalar(inputs[3], "iou_threshold"))
        lowest = None if inputs[4] is None else float(node.scalar(inputs[4], "score_threshold"))
        if most <= 0:
            return constant(np.zeros((0, 3), "int64"))
        if node.integer("center_point_box", 0):
            x, y, width, height = (bb.emit(relax.op.strided_slice(boxes, [2], [part], [part + 1])) for part in range(4))
            half = constant(0.5, dtype_of(boxes))
            right, up = bb.emit(multiply(bb, width, half)), bb.emit(multiply(bb, height, half))
            sides = [(relax.op.subtract, y, up), (relax.op.subtract, x, right), (relax.op.add, y, up)]
            sides.append((relax.op.add, x, right))
            boxes = bb.emit(relax.op.concat([bb.emit(make(*pair)) for make, *pair in sides], 2))
        order = bb.emit(relax.op.argsort(scores, 2, True, "int64"))
        limits = {"most": most, "overlap": overlap, "lowest": lowest}
        found = bb.emit_te(_suppressed, boxes, scores, order, **limits, primfunc_name_hint="non_max_suppression")
        kept, counts = (bb.emit(relax.TupleGetItem(found, part)) for part in range(2))
        offsets = bb.emit(relax.op.cumsum(counts, 0, "int64", True))
        # TVM's fusion calls a kernel where its first operand is made, so the count has to be known before that.
        count = extents_in(bb, bb.emit(relax.op.sum(counts, [0], keepdims=True))).values[0]
        classes = scores.ty.shape[1]
        rows = bb.emit_te(_collected, kept, counts, offsets, classes, primfunc_name_hint="collect_boxes")
        zero, one = tirx.const(0, "int64"), tirx.const(1, "int64")
        return relax.op.strided_slice(rows, [0], [zero], [count], [one], assume_inbound=True)


def _suppressed(
    boxes: te.Tensor, scores: te.Tensor, order: te.Tensor, most: int, overlap: float, lowest: float | None
) -> list[te.Tensor]:
    """Describe the kernel: for each class of an image the boxes that it keeps, and how many; a thread has a class."""
    images, classes, length = scores.shape
    dtype = str(boxes.dtype)
    room = min(most, int(length)) if isinstance(length, tirx.IntImm) else length

    def kernel(boxes: Any, scores: Any, order: Any, kept: Any, counts: Any) -> Any:
        with IRBuilder() as ib:
            boxes, scores, order, kept, counts = (T.buffer_proxy(item) for item in (boxes, scores, order, kept, counts))
            with T.parallel(0, images * classes) as row:
                image, kind = row // classes, row % classes
                free, count, other = (T.buffer_proxy(T.decl_buffer([1], "int64", scope="local")) for _ in range(3))
                # What a target makes of nested maxima, NaN in mind, is long: each has a place of its own.
                corners, sides = (T.buffer_proxy(T.decl_buffer([size], dtype, scope="local")) for size in (8, 6))
                count[0] = tirx.const(0, "int64")
                with T.serial(0, length) as place:
                    wanted = [count[0] < tirx.const(most, "int64")]
                    if lowest is not None:  # NaN is not above it
                        score = scores[image, kind, order[image, kind, place]]
                        wanted.append(score > tirx.const(float(lowest), str(score.ty.dtype)))
                    with T.If(tirx.all(*wanted)), T.Then():
                        free[0] = tirx.const(1, "int64")
                        _take_corners(boxes, image, order[image, kind, place], corners, 0)
                        other[0] = tirx.const(0, "int64")
                        with T.While(tirx.all(other[0] < count[0], free[0] > tirx.const(0, "int64"))):
                            _take_corners(boxes, image, kept[row, other[0]], corners, 4)
                            other[0] = other[0] + tirx.const(1, "int64")
                            with T.If(_overlaps(corners, sides, overlap, dtype)), T.Then():
                                free[0] = tirx.const(0, "int64")
                        with T.If(free[0] > tirx.const(0, "int64")), T.Then():
                            kept[row, count[0]] = order[image, kind, place]
                            count[0] = count[0] + tirx.const(1, "int64")
                counts[row] = count[0]
            return ib.get()

    results: list[te.Tensor] = te.extern(
        [[images * classes, room], [images * classes]],
        [boxes, scores, order],
        lambda ins, outs: kernel(*ins, *outs),
        dtype=["int64", "int64"],
        name="non_max_suppression",
    )
    return results


def _take_corners(boxes: Any, image: Any, box: Any, corners: Any, at: int) -> None:
    """Write out that the corners of a box are kept, the lower ends first; they come in any order."""
    for axis in range(2):
        ends = boxes[image, box, axis], boxes[image, box, axis + 2]
        corners[at + axis], corners[at + 2 + axis] = tirx.min(*ends), tirx.max(*ends)


def _overlaps(corners: Any, sides: Any, overlap: float, dtype: str) -> Any:
    """Write out the sides of two boxes and of what they share; gives whether that is more than a part of both."""
    for axis in range(2):
        sides[axis] = tirx.min(corners[2 + axis], corners[6 + axis]) - tirx.max(corners[axis], corners[4 + axis])
        sides[2 + axis] = corners[2 + axis] - corners[axis]
        sides[4 + axis] = corners[6 + axis] - corners[4 + axis]
    both, one, other = (sides[at] * sides[at + 1] for at in (0, 2, 4))
    zero = tirx.const(0, dtype)
    return tirx.all(
        sides[0] > zero, sides[1] > zero, one > zero, other > zero,
        both / (one + other - both) > tirx.const(overlap, dtype),
    )  # fmt: skip


def _collected(kept: te.Tensor, counts: te.Tensor, offsets: te.Tensor, classes: Any) -> te.Tensor:
    """Describe the kernel that writes what each class has kept, image, class and box, behind those before."""
    rows, room = kept.shape

    def kernel(kept: Any, counts: Any, offsets: Any, found: Any) -> Any:
        with IRBuilder() as ib:
            kept, counts, offsets, found = (T.buffer_proxy(item) for item in (kept, counts, offsets, found))
            with T.parallel(0, rows) as row:
                with T.serial(0, counts[row]) as place:
                    for part, value in enumerate((row // classes, row % classes, kept[row, place])):
                        found[offsets[row] + place, part] = value
            return ib.get()

    call: Callable[[Any, Any], Any] = lambda ins, outs: kernel(*ins, *outs)  # noqa: E731
    return te.extern([[rows * room, 3]], [kept, counts, offsets], call, dtype="int64", name="collect_boxes")


CONVERTERS: dict[tuple[str, str], type] = {("", "NonMaxSuppression"): NonMaxSuppression}
