"""``AffineGrid``: where an affine map takes the pixels of a picture, whose size and number may be open."""

from __future__ import annotations

from typing import Any

from tvm import relax, te, tirx

from tvm_ext.frontend.onnx.ops.base import Converter, Node, emit
from tvm_ext.frontend.onnx.ops.extents import extents_in, is_computed_shape, listed


class AffineGrid(Converter):
    """Coordinates from -1 to 1, of pixels' centres, or of the outermost ones with ``align_corners``."""

    @classmethod
    def convert(cls, node: Node, bb: relax.BlockBuilder, inputs: Any) -> Any:
        """Give the grid, shape (batch, *sizes, axes)."""
        theta = emit(bb, inputs[0])
        size = listed(node, inputs[1])
        if size is None and is_computed_shape(inputs[1]):
            size = list(extents_in(bb, inputs[1]).values)
        if size is None or len(size) not in (4, 5):
            node.damaged("its input size was expected to hold 4 or 5 extents: batch, channels and those of the picture")
        sizes, rank, aligned = size[2:], len(size) - 2, bool(node.integer("align_corners", 0))
        dims = node.dims(theta, "theta")
        if len(dims) != 3 or dims[1:] != (rank, rank + 1):
            node.damaged(f"its input theta has shape {dims}, matrices of {rank} by {rank + 1} were expected")

        def grid(matrices: te.Tensor, extents: list[Any]) -> te.Tensor:
            dtype = str(matrices.dtype)

            def along(axis: int, at: Any) -> Any:
                place, extent = at.astype("float32"), extents[axis].astype("float32")
                if not aligned:
                    return (place * 2.0 + 1.0) / extent - 1.0
                return tirx.Select(extents[axis] > 1, place * 2.0 / tirx.max(extent - 1.0, 1.0) - 1.0, _ALONE)

            def element(image: Any, *at: Any) -> Any:
                row: Any = at[-1]
                total: Any = matrices[image, row, rank]
                for axis in range(rank):  # x, which is the last axis of the picture, comes first
                    place = along(rank - 1 - axis, at[rank - 1 - axis]).astype(dtype)
                    total = total + matrices[image, row, axis] * place
                return total

            return te.compute((matrices.shape[0], *extents, rank), element, name="affine_grid")

        return bb.emit_te(grid, theta, sizes, primfunc_name_hint="affine_grid")


_ALONE = 1.0
"""Where onnxruntime puts the one pixel of an axis with ``align_corners``."""

CONVERTERS: dict[tuple[str, str], type] = {("", "AffineGrid"): AffineGrid}
