"""Finds constant indices that lie outside the tensor they point into."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import tvm
from tvm import relax

from tvm_ext.errors import ModelError

ALONG_AN_AXIS = frozenset(["Gather", "GatherElements", "Scatter", "ScatterElements"])
BY_PLACE = frozenset(["GatherND", "ScatterND"])
"""Operators whose second input holds indices: along one axis, or one for each axis in its last dimension."""

_ANY = 1 << 62
"""An extent that every index lies in."""


def check_indices(
    node: onnx.NodeProto, inputs: Sequence[Any], needs: Callable[[int, int], None] = lambda axis, least: None
) -> None:
    """Compare constant indices with the extents of what they point into.

    Parameters
    ----------
    node : onnx.NodeProto
    inputs : sequence of relax.Expr or None
    needs : callable
        Told of an axis whose extent is open, and of the least extent that the indices lie in.

    Raises
    ------
    ModelError
        If one is out of range. Computed ones are limited when the model runs.
    """
    if node.op_type not in ALONG_AN_AXIS | BY_PLACE or len(inputs) < 2:
        return
    extents, indices = _extents(inputs[0]), inputs[1]
    if extents is None or not isinstance(indices, tvm.ir.GenericConst) or indices.value.numpy().size == 0:
        return
    values = indices.value.numpy().astype("int64")
    settings = {item.name: item.i for item in node.attribute}
    if node.op_type in BY_PLACE:
        first = settings.get("batch_dims", 0)
        sides = extents[first : first + values.shape[-1]] if values.ndim else []
        if not sides or len(sides) != values.shape[-1]:
            return  # of a wrong shape, which the converter says
        for place, side in enumerate(sides):
            if side is None:
                needs(first + place, _least(values[..., place]))
        limits = np.array([_ANY if side is None else side for side in sides], "int64")
    else:
        axis = settings.get("axis", 0)
        if not -len(extents) <= axis < len(extents):
            return
        if extents[axis] is None:
            needs(axis % len(extents), _least(values))
            return
        limits = np.array(extents[axis], "int64")
    outside = (values < -limits) | (values >= limits)
    if outside.any():
        found = int(values[outside][0])
        extent = int(np.broadcast_to(limits, values.shape)[outside][0])
        raise ModelError(f"its constant index {found} is out of range for a dimension of {extent}")


def _least(values: np.ndarray) -> int:
    """Give the extent of the shortest axis that has all of these places."""
    return int(max(values.max() + 1, -values.min()))


def _extents(value: Any) -> list[int | None] | None:
    """Extents of a tensor, None for one that is open; None where not even their number is known."""
    if isinstance(value, relax.ShapeExpr):
        return [len(value.values)]
    shape = getattr(getattr(value, "ty", None), "shape", None)
    if not isinstance(shape, relax.ShapeExpr):
        return None
    return [int(dim) if isinstance(dim, tvm.tirx.IntImm) else None for dim in shape]
