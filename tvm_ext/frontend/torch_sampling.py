"""Converters of PyTorch's sampling at places that another tensor names, and of the grids of such places."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.fx import Node
from tvm import relax

from tvm_ext.frontend.torch_promotion import operator_name

METHODS = ("bilinear", "nearest", "bicubic")
PADDINGS = ("zeros", "border", "reflection")


def grid_sample(importer: Any, node: Node) -> Any:
    """``F.grid_sample`` of pictures or volumes; TVM has the coordinates of the grid on axis 1, PyTorch on the last."""
    emit = importer.block_builder.emit
    data, grid = (importer.env[operand] for operand in node.args[:2])
    method, padding, corners = METHODS[node.args[2]], PADDINGS[node.args[3]], bool(node.args[4])
    rank = 5 if operator_name(node) == "grid_sampler_3d" else 4
    if padding == "reflection" and corners:
        data = _two_at_least(emit, data, rank)
    grid = emit(relax.op.permute_dims(grid, [0, rank - 1, *range(1, rank - 1)]))
    layout = {4: "NCHW", 5: "NCDHW"}[rank]
    return emit(relax.op.image.grid_sample(data, grid, method, layout, padding, corners))


def _two_at_least(emit: Callable[[Any], Any], data: Any, rank: int) -> Any:
    """Repeat the one element of an axis: TVM divides by the distance of its ends to reflect places beyond them."""
    for axis in range(2, rank):
        if data.ty.shape[axis] == 1:
            data = emit(relax.op.concat([data, data], axis))
    return data
