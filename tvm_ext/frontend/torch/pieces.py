"""Converters of what takes a tensor apart, in the cases in which TVM's go wrong: one piece, masks to be repeated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch.fx import Node
from tvm import relax, tirx


def split(stock: Callable[[Node], Any], importer: Any, node: Node) -> Any:
    """Into a single piece, which is the tensor; TVM's operator gives it a type of its own then."""
    data, sizes, axis = importer.env[node.args[0]], node.args[1], node.args[2] if len(node.args) > 2 else 0
    if isinstance(sizes, list | tuple):
        single = len(sizes) == 1
    else:
        extent = data.ty.shape[axis]
        single = isinstance(extent, tirx.IntImm) and isinstance(sizes, int) and sizes >= int(extent)
    return (data,) if single else stock(node)


def masked_select(stock: Callable[[Node], Any], importer: Any, node: Node) -> Any:
    """Repeat tensor and mask to one shape, where TVM's converter repeats the mask alone."""
    data, mask = (importer.env[operand] for operand in node.args[:2])
    emit = importer.block_builder.emit
    shape = emit(relax.op.logical_and(emit(relax.op.astype(data, "bool")), mask)).ty.shape
    for operand, value in zip(node.args[:2], (data, mask), strict=True):
        importer.env[operand] = emit(relax.op.broadcast_to(value, shape))
    try:
        return stock(node)
    finally:
        importer.env[node.args[0]], importer.env[node.args[1]] = data, mask


REFINED_PIECES: Mapping[str, Callable[[Callable[[Node], Any], Any, Node], Any]] = {
    "masked_select.default": masked_select,
    "split.Tensor": split,
    "split_with_sizes.default": split,
}
"""Those that leave to TVM's converter what it does right, by name of operator and overload."""
