"""Converters of pieces of tensors: a single one, what a mask names, places of what is not zero, those put together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tvm
from torch.fx import Node
from tvm import relax, tirx

from tvm_ext.frontend.torch.arguments import extent_of
from tvm_ext.frontend.torch.numbers import REFINED_NUMBERS


def split(stock: Callable[[Node], Any], importer: Any, node: Node) -> Any:
    """Into a single piece, which is the tensor; TVM's operator gives it a type of its own then."""
    data, sizes, axis = importer.env[node.args[0]], node.args[1], node.args[2] if len(node.args) > 2 else 0
    if isinstance(sizes, list | tuple):
        single = len(sizes) == 1
        if any(isinstance(size, Node) for size in sizes) or (not single and 0 in sizes):
            return _cut(importer, data, [extent_of(importer, size) for size in sizes], axis % len(data.ty.shape))
    else:
        extent = data.ty.shape[axis]
        single = isinstance(extent, tirx.IntImm) and isinstance(sizes, int) and sizes >= int(extent)
    return (data,) if single else stock(node)


def _cut(importer: Any, data: Any, sizes: list[Any], axis: int) -> tuple[Any, ...]:
    """Cut at extents that only a run tells, or into empty pieces, too, which TVM's operator does not.

    They have to add up, which a run checks where it is not known.
    """
    analyzer, begin, parts = tvm.sym.Analyzer(), tirx.const(0, "int64"), []
    total = analyzer.simplify(sum(sizes, begin))
    if not analyzer.can_prove_equal(total, data.ty.shape[axis]):
        shape = list(data.ty.shape)
        shape[axis] = total
        data = importer.block_builder.match_cast(data, relax.TensorType(shape, data.ty.dtype))
    for size in sizes:
        end = analyzer.simplify(begin + size)
        part = relax.op.strided_slice(data, [axis], [begin], [end], [tirx.const(1, "int64")], assume_inbound=True)
        parts.append(importer.block_builder.emit(part))
        begin = end
    return tuple(parts)


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


def nonzero(importer: Any, node: Node) -> Any:
    """Places of what is not zero, a row each; how many only a run tells."""
    emit, data = importer.block_builder.emit, importer.env[node.args[0]]
    rank = len(data.ty.shape)
    if not rank:
        raise NotImplementedError("its tensor has no dimension; give it one by unsqueeze(0)")
    extent = node.meta["val"].shape[0]
    count = extent if isinstance(extent, int) else tvm.ir.Var(str(extent), "int64")
    places = importer.block_builder.match_cast(emit(relax.op.nonzero(data)), relax.TensorType([rank, count], "int64"))
    return emit(relax.op.permute_dims(places))


def rows_of_mask(importer: Any, node: Node) -> Any:
    """``x[mask]``: the places of the mask that are true, and what the tensor has there; how many only a run tells.

    Masks that are one tensor give places of one extent, so that what two tensors have there fits together.
    """
    emit, (axis,) = importer.block_builder.emit, [axis for axis, index in enumerate(node.args[1]) if index is not None]
    data, mask = importer.env[node.args[0]], importer.env[node.args[1][axis]]
    shape, covered = list(data.ty.shape), len(mask.ty.shape)
    if not covered:
        raise NotImplementedError("a mask without dimensions adds one to the tensor; use torch.where")
    for own, other in zip(shape[axis : axis + covered], mask.ty.shape, strict=True):
        if not tvm.sym.Analyzer().can_prove_equal(own, other):
            raise NotImplementedError(f"its mask is of extent {other} where the tensor is of {own}")
    places = importer.places.get(mask)
    if places is None:
        flat = emit(relax.op.reshape(emit(relax.op.astype(mask, "bool")), [_product(mask.ty.shape)]))
        count = tvm.ir.Var(str(node.meta["val"].shape[axis]), "int64")
        found = importer.block_builder.match_cast(emit(relax.op.nonzero(flat)), relax.TensorType([1, count], "int64"))
        places = importer.places[mask] = emit(relax.op.reshape(found, [count]))
    joined = [*shape[:axis], _product(shape[axis : axis + covered]), *shape[axis + covered :]]
    return emit(relax.op.take(emit(relax.op.reshape(data, joined)), places, axis, mode="clip"))


def _product(extents: Any) -> Any:
    total: Any = tirx.const(1, "int64")
    for extent in extents:
        total = total * extent
    return tvm.sym.Analyzer().simplify(total)


def concatenate(stock: Callable[[Node], Any], importer: Any, node: Node) -> Any:
    """Leave out ``torch.tensor([])``, which PyTorch puts together with tensors of any rank: caches begin with it."""
    tensors, axis = node.args[0], node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)
    rank = node.meta["val"].dim()
    kept = [tensor for tensor in tensors if tensor.meta["val"].dim() == rank]
    if len(kept) == len(tensors):
        return stock(node)
    parts = [importer.env[tensor] for tensor in kept]
    emit = importer.block_builder.emit
    return parts[0] if len(parts) == 1 else emit(relax.op.concat(parts, axis))


def index_select(stock: Callable[[Node], Any], importer: Any, node: Node) -> Any:
    """Take an index without axes for a vector of one, as PyTorch does."""
    index = importer.env[node.args[2]]
    if len(index.ty.shape):
        return stock(node)
    importer.env[node.args[2]] = importer.block_builder.emit(relax.op.reshape(index, [1]))
    try:
        return stock(node)
    finally:
        importer.env[node.args[2]] = index


PIECES: Mapping[str, Callable[[Any, Node], Any]] = {"nonzero.default": nonzero}
"""By name of operator and overload."""

REFINED_PIECES: Mapping[str, Callable[[Callable[[Node], Any], Any, Node], Any]] = {
    **REFINED_NUMBERS,
    "cat.default": concatenate,
    "index_select.default": index_select,
    "masked_select.default": masked_select,
    "split.Tensor": split,
    "split_with_sizes.default": split,
}
"""Those that leave to TVM's converter what it does right."""
