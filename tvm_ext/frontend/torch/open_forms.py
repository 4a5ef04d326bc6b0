"""Padding, repetition, slices and windows whose extents are open: up to the next multiple, once a batch, by frames."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
import tvm
import tvm_ffi
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols, statically_known_true
from tvm import relax, tirx

from tvm_ext.frontend.torch.arguments import argument, extent_of, number_tensor
from tvm_ext.frontend.torch.assumptions import assume_at_least, assume_at_most, bounded
from tvm_ext.frontend.torch.promotion import relax_dtype

Emit = Callable[[Any], Any]

_END = 1 << 48
"""More elements than an axis can have: torch spells its end as 2**63 - 1."""


def constant_pad(stock: Callable[[Node], Any], importer: Any, node: Node) -> Any:
    """``F.pad(x, widths)``; a negative width takes elements away."""
    if not any(isinstance(width, Node) for width in node.args[1]):
        return stock(node)
    emit, data = importer.block_builder.emit, importer.env[node.args[0]]
    value = relax.const(argument(node, 2, "value") or 0, str(data.ty.dtype))
    widths = [extent_of(importer, width) for width in node.args[1]]
    for place in range(0, len(widths), 2):
        before, after = widths[place : place + 2]
        data = _padded(emit, data, len(data.ty.shape) - 1 - place // 2, before, after, value)
    return data


def repeat(stock: Callable[[Node], Any], importer: Any, node: Node) -> Any:
    """``x.repeat(counts)``, in which a count may be an extent."""
    if not any(isinstance(count, Node) for count in node.args[1]):
        return stock(node)
    emit, data = importer.block_builder.emit, importer.env[node.args[0]]
    counts = [extent_of(importer, count) for count in node.args[1]]
    one = tirx.const(1, "int64")
    shape = [one] * (len(counts) - len(data.ty.shape)) + list(data.ty.shape)
    apart = [extent for dim in shape for extent in (one, dim)]
    spread = [extent for pair in zip(counts, shape, strict=True) for extent in pair]
    data = emit(relax.op.broadcast_to(emit(relax.op.reshape(data, apart)), spread))
    analyzer = tvm.sym.Analyzer()
    whole = [analyzer.simplify(count * dim) for count, dim in zip(counts, shape, strict=True)]
    return emit(relax.op.reshape(data, whole))


def unfold(importer: Any, node: Node) -> Any:
    """``x.unfold(axis, size, step)``: windows along an axis, their elements in a new last dimension."""
    emit = importer.block_builder.emit
    data, (axis, size, step) = importer.env[node.args[0]], node.args[1:4]
    rank = len(data.ty.shape)
    axis %= rank
    shape = list(data.ty.shape)
    if isinstance(shape[axis], tirx.IntImm):
        count: Any = (int(shape[axis]) - size) // step + 1
        places: Any = relax.const((np.arange(count)[:, None] * step + np.arange(size)).reshape(-1), "int64")
    else:
        analyzer = tvm.sym.Analyzer()
        count = analyzer.simplify(tirx.floordiv(shape[axis] - size, step) + 1)
        starts = emit(relax.op.multiply(emit(relax.op.arange(0, count, 1, "int64")), relax.const(step, "int64")))
        starts = emit(relax.op.reshape(starts, [count, 1]))
        places = emit(relax.op.add(starts, relax.const(np.arange(size).reshape(1, size), "int64")))
        places = emit(relax.op.reshape(places, [analyzer.simplify(count * size)]))
    taken = emit(relax.op.take(data, places, axis, mode="clip"))
    windows = emit(relax.op.reshape(taken, [*shape[:axis], count, size, *shape[axis + 1 :]]))
    return emit(relax.op.permute_dims(windows, [*range(axis + 1), *range(axis + 2, rank + 1), axis + 1]))


def slice_tensor(stock: Callable[[Node], Any], importer: Any, node: Node) -> Any:
    """``x[:, a:b]`` of open extents or up to one, as short as is proved: ``n - 1`` for ``[:-1]`` if ``n >= 3``."""
    data, axis = importer.env[node.args[0]], argument(node, 1, "dim", 0)
    axis %= len(data.ty.shape)
    size = data.ty.shape[axis]
    given = argument(node, 2, "start") or 0, argument(node, 3, "end")
    fixed = isinstance(size, tirx.IntImm)
    step = argument(node, 4, "step", 1)
    if fixed and not any(isinstance(end, Node) for end in given):
        first, behind, _ = slice(*given).indices(int(size))
        if behind >= first:
            return stock(node)
        empty = relax.op.strided_slice(data, [axis], [first], [first])  # TVM takes no end before the start
        return importer.block_builder.emit(empty)
    if step != 1:
        return _every(stock, importer, node, step, given)
    ends = [size if end is None else extent_of(importer, end) for end in given]
    if any(map(_is_value, given)):
        return _inner_part(importer, data, axis, ends)
    analyzer = bounded(size, *ends, least=importer.least)
    begin, end = (_place(analyzer, end, size) for end in ends)
    if begin is None or end is None or not analyzer.can_prove(begin <= end):
        if not fixed:  # torch takes open extents for 2 or more, and no run checks that
            found = _relied_on(importer, size, ends) or _clamped(importer, size, ends) or _inside(importer, size, ends)
            if found is None:
                return stock(node)
            begin, end = found
        elif not analyzer.can_prove(ends[0] >= 0) or not _assumed(node, axis, given):
            return stock(node)
        else:
            begin, end = (analyzer.simplify(size if _is_end(place) else place) for place in ends)
    if analyzer.can_prove_equal(end - begin, size):
        return data
    part = relax.op.strided_slice(data, [axis], [begin], [end], [tirx.const(1, "int64")], assume_inbound=True)
    return importer.block_builder.emit(part)


def _is_value(place: Any) -> bool:
    """Whether a place is a number that is computed of values, as ``x.item()`` is."""
    number = place.meta.get("val") if isinstance(place, Node) else None
    return isinstance(number, torch.SymInt) and bool(free_unbacked_symbols(number))


def _inner_part(importer: Any, data: Any, axis: int, ends: list[Any]) -> Any:
    """Cut out what lies inside of the tensor: the program asserts that all of it does, and no run checks that."""
    size = data.ty.shape[axis]
    low = tirx.max(tirx.min(ends[0], size), 0)
    high = tirx.max(tirx.min(ends[1], size), low)
    one = [tirx.const(1, "int64")]
    part = relax.op.strided_slice(data, [axis], [low], [high], one, assume_inbound=True)
    return importer.block_builder.emit(part)


def _static_slice_scatter(emit: Callable[[Any], Any], data: Any, part: Any, axis: int, where: slice) -> Any:
    begin, end, step = where.indices(int(data.ty.shape[axis]))  # a beginning before the tensor is its first element
    if end <= begin:
        return data
    return emit(relax.op.slice_scatter(data, part, *map(relax.prim_value, (begin, end, step)), axis=axis))


def slice_scatter(stock: Callable[[Node], Any], importer: Any, node: Node) -> Any:
    """``x.slice_scatter(y, axis, a, b, step)`` of open extents, which ``x[:, a:b] = y`` becomes."""
    data, part = importer.env[node.args[0]], importer.env[node.args[1]]
    start, end = argument(node, 3, "start") or 0, argument(node, 4, "end")
    if _is_value(start) or _is_value(end):
        raise NotImplementedError("where it writes depends on values, and nothing checks that this is inside")
    emit, axis = importer.block_builder.emit, argument(node, 2, "dim", 0) % len(data.ty.shape)
    extents = [*data.ty.shape, *part.ty.shape]
    if all(isinstance(extent, tirx.IntImm) for extent in extents) and not any(
        isinstance(place, Node) for place in (start, end)
    ):
        return _static_slice_scatter(emit, data, part, axis, slice(start, end, argument(node, 5, "step", 1)))
    size, count, step = data.ty.shape[axis], part.ty.shape[axis], argument(node, 5, "step", 1)
    start = extent_of(importer, start)
    analyzer = bounded(size, count, start, least=importer.least)
    if analyzer.can_prove_equal(count, size):
        return part
    begin = _place(analyzer, start, size)
    if begin is None:
        begin = analyzer.simplify(tirx.max(tirx.min(tirx.if_then_else(start < 0, start + size, start), size), 0))
    if step == 1:
        behind = analyzer.simplify(begin + count)
        ends = ((tirx.const(0, "int64"), begin), (behind, size))
        one = [tirx.const(1, "int64")]
        before, after = (
            [] if analyzer.can_prove_equal(low, high)
            else [emit(relax.op.strided_slice(data, [axis], [low], [high], one, assume_inbound=True))]
            for low, high in ends
        )  # fmt: skip
        return emit(relax.op.concat([*before, part, *after], axis))
    places = emit(relax.op.arange(0, size, 1, "int64"))
    offset = emit(relax.op.subtract(places, number_tensor(emit, begin)))
    last = number_tensor(emit, analyzer.simplify(count * step))
    inside = emit(relax.op.logical_and(emit(relax.op.greater_equal(offset, relax.const(0, "int64"))),
                                       emit(relax.op.less(offset, last))))  # fmt: skip
    whole = emit(relax.op.equal(emit(relax.op.mod(offset, relax.const(step, "int64"))), relax.const(0, "int64")))
    row = emit(relax.op.floor_divide(offset, relax.const(step, "int64")))
    places = emit(relax.op.where(emit(relax.op.logical_and(inside, whole)),
                                 emit(relax.op.add(row, number_tensor(emit, size))), places))  # fmt: skip
    return emit(relax.op.take(emit(relax.op.concat([data, part], axis)), places, axis, mode="clip"))


def _assumed(node: Node, axis: int, given: tuple[Any, Any]) -> bool:
    """Whether PyTorch took the ends of a slice to lie on its axis, a guard of the program: ``table[:n]``."""
    start, end = (value.meta["val"] if isinstance(value, Node) else value for value in given)
    if end is None or (isinstance(end, int) and end >= _END):
        end = node.args[0].meta["val"].shape[axis]
    if any(isinstance(place, int) and place < 0 for place in (start, end)):
        return False
    return bool(statically_known_true(node.meta["val"].shape[axis] == end - start))


def _relied_on(importer: Any, size: Any, given: list[Any]) -> tuple[Any, Any] | None:
    """Give the ends of a part that lie on an extent which is large enough, as PyTorch takes it to be."""
    places = _numbers(size, given)
    if places is None:
        return None
    start, end = places
    needed = max(abs(start), 0 if end is None else abs(end), 0 if end is None or end >= 0 else start - end)
    if (start < 0 and end is not None) or (end is not None and 0 <= end < start):
        return None
    if not assume_at_least(importer, size, needed):
        return None
    begin, behind = (size + place if place < 0 else tirx.const(place, "int64") for place in (start, end or 0))
    return tuple(map(tvm.sym.Analyzer().simplify, (begin, size if end is None else behind)))


def _clamped(importer: Any, size: Any, given: list[Any]) -> tuple[Any, Any] | None:
    """Give the ends of a part that is shorter, or empty, where the extent is too small.

    ``x[1:]`` and ``x[:-1]`` have the same extent then, ``max(n - 1, 0)``.
    """
    places = _numbers(size, given)
    if places is None:
        return None
    start, end = places
    zero = tirx.const(0, "int64")
    if start >= 0 and (end is None or end < 0):
        length = tirx.max(size - start + (end or 0), zero)
        begin = size - length if end is None else tirx.min(tirx.const(start, "int64"), size)
    elif start < 0 and end is None:
        length = tirx.min(size, tirx.const(-start, "int64"))
        begin = size - length
    elif start == 0:
        begin, length = zero, tirx.min(size, tirx.const(end, "int64"))
    else:
        return None
    analyzer = bounded(size, least=importer.least)
    return analyzer.simplify(begin), analyzer.simplify(begin + length)


def _inside(importer: Any, size: Any, given: list[Any]) -> tuple[Any, Any] | None:
    """Give computed ends that lie on the axis where no extent is 0, and make that they do a condition."""
    if importer.relied_on < 1:
        importer.wanted = True
        return None
    variables = [variable.name for place in (size, *given) for variable in tirx.analysis.undefined_vars(place)]
    analyzer = bounded(size, *given, least=dict.fromkeys(variables, 1) | importer.least)
    begin, end = (_place(analyzer, place, size) for place in given)
    if begin is None or end is None or not analyzer.can_prove(begin <= end):
        return None
    if not assume_at_most(importer, begin, end) or not assume_at_most(importer, end, size):
        return None
    return begin, end


def _every(stock: Callable[[Node], Any], importer: Any, node: Node, step: int, given: tuple[Any, Any]) -> Any:
    """``x[:, 1::2]``: begins within the first step, so that an axis that is too short has none of it."""
    start, end = given
    if isinstance(end, Node) or (end is not None and end < _END) or not isinstance(start, int) or not 0 <= start < step:
        return stock(node)
    data, axis = importer.env[node.args[0]], argument(node, 1, "dim", 0) % len(importer.env[node.args[0]].ty.shape)
    begin, behind, steps = tirx.const(start, "int64"), data.ty.shape[axis], tirx.const(step, "int64")
    part = relax.op.strided_slice(data, [axis], [begin], [behind], [steps], assume_inbound=True)
    return importer.block_builder.emit(part)


def _numbers(size: Any, given: list[Any]) -> tuple[int, int | None] | None:
    """Both ends of a part as numbers, None for the extent itself; None where one is computed."""
    start, end = (None if place is size or _is_end(place) else place for place in given)
    if not isinstance(start, tirx.IntImm) or not (end is None or isinstance(end, tirx.IntImm)):
        return None
    return int(start), None if end is None else int(end)


def _is_end(place: Any) -> bool:
    return isinstance(place, tirx.IntImm) and int(place) >= _END


def reshape(stock: Callable[[Node], Any], importer: Any, node: Node) -> Any:
    """``x.view(n, 3, t)`` of ``(1, 3 * n, t)``: TVM's converter asks whether 1 is ``n``, which nobody knows."""
    data, sizes = importer.env[node.args[0]], list(importer.retrieve_args(node)[1])
    pairs = list(zip(data.ty.shape, sizes, strict=False))
    if all(isinstance(size, int | tirx.IntImm) for pair in pairs for size in pair):
        return stock(node)
    if len(data.ty.shape) == len(sizes) and all(map(_is_same, *zip(*pairs, strict=True))):
        return data
    return importer._emit_torch_reshape(data, sizes)


def empty(importer: Any, node: Node) -> Any:
    """``torch.empty(n, 3)``: zeros, as good as any value that is written over."""
    sizes = importer.retrieve_args(node)[0]
    dtype = relax_dtype(node.meta["val"].dtype)
    return importer.block_builder.emit(relax.op.zeros(relax.ShapeExpr([*sizes]), dtype))


def _is_same(extent: Any, size: Any) -> bool:
    size = tirx.const(size, "int64") if isinstance(size, int) else size
    return bool(tvm_ffi.structural_equal(extent, size))


def _place(analyzer: Any, place: Any, size: Any) -> Any | None:
    """Count a bound from the start and keep it on its axis; None where it depends on the extent how."""
    if _is_end(place) or analyzer.can_prove(place >= size):
        return size
    if analyzer.can_prove(place < 0):
        place = size + place
        if analyzer.can_prove(place < 0):
            return tirx.const(0, "int64")
    if analyzer.can_prove(place >= 0) and analyzer.can_prove(place <= size):
        return analyzer.simplify(place)
    return None


def _padded(emit: Emit, data: Any, axis: int, before: Any, after: Any, value: Any) -> Any:
    analyzer = bounded(before, after)
    shape = list(data.ty.shape)

    def filled(extent: Any) -> list[Any]:
        none = isinstance(extent, tirx.IntImm) and not int(extent)
        return [] if none else [emit(relax.op.full([*shape[:axis], extent, *shape[axis + 1 :]], value))]

    if analyzer.can_prove(before >= 0) and analyzer.can_prove(after >= 0):
        parts = [*filled(before), data, *filled(after)]
        return emit(relax.op.concat(parts, axis)) if len(parts) > 1 else data
    # One more element is the value; it is where a place is none of the tensor's.
    total = analyzer.simplify(shape[axis] + before + after)
    places = emit(relax.op.arange(0, total, 1, "int64"))
    places = emit(relax.op.subtract(places, number_tensor(emit, before)))
    size, zero = number_tensor(emit, shape[axis]), relax.const(0, "int64")
    inside = emit(relax.op.logical_and(emit(relax.op.greater_equal(places, zero)), emit(relax.op.less(places, size))))
    more = emit(relax.op.concat([data, *filled(tirx.const(1, "int64"))], axis))
    return emit(relax.op.take(more, emit(relax.op.where(inside, places, size)), axis, mode="clip"))


OPEN_FORMS: Mapping[str, Callable[[Any, Node], Any]] = {
    "empty.memory_format": empty,
    "empty_permuted.default": empty,
    "empty_strided.default": empty,
    "unfold.default": unfold,
}
"""By name of operator and overload."""

REFINED_OPEN_FORMS: Mapping[str, Callable[[Callable[[Node], Any], Any, Node], Any]] = {
    "constant_pad_nd.default": constant_pad,
    "repeat.default": repeat,
    "reshape.default": reshape,
    "slice.Tensor": slice_tensor,
    "slice_scatter.default": slice_scatter,
    "view.default": reshape,
}
"""Those that leave to TVM's converter what it does right."""
