"""Neighbouring open axes taken as one: a picture of unknown height and width as a row of unknown length.

before: ``x`` of shape ``(n, c, h, w)``, read at ``x[i, j, k, l]``, a loop over ``h`` and one over ``w``
within: ``x`` of shape ``(n, c, 1, w)``, where a schedule finds one long axis
after:  ``x`` of shape ``(n, c, h, w)``, read at ``x[i, j, 0, l]``, a loop over ``h * w``: the same addresses
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir.prim.expr import Cast
from tvm.tirx import PrimFunc

from tvm_ext.relax_utils import substitute
from tvm_ext.schedules.simd.vector import element_type


def with_axes_as_one(func: PrimFunc) -> tuple[PrimFunc, Callable[[PrimFunc], PrimFunc]]:
    """Take axes of open extents as one where every block walks them together.

    Returns
    -------
    PrimFunc
        The kernel with an extent of 1 in the place of all of such axes but the last.
    callable
        Gives what was made of that kernel the parameters and the extents of ``func``.
    """
    restored: list[tuple[PrimFunc, Any, Any]] = []
    found = _pair(func)
    while found is not None:
        first, second = found
        restored.append((func, first, second))
        func = _changed(func, {first: tirx.const(1, first.ty.dtype)})
        found = _pair(func)

    def restore(made: PrimFunc) -> PrimFunc:
        for before, first, second in reversed(restored):
            values: dict[Any, Any] = {second: first * second}
            values |= dict(zip(made.params, before.params, strict=True))
            made = PrimFunc(before.params, substitute(made.body, values), before.ret_type, made.attrs)
        return made

    return func, restore


def _changed(func: PrimFunc, values: dict[Any, Any]) -> PrimFunc:
    """Put values in the place of extents, also in the shapes of parameters."""
    buffers = {
        tensor: tirx.decl_buffer(
            [substitute(extent, values) for extent in tensor.ty.shape], tensor.ty.dtype, tensor.name
        )
        for tensor in func.params
        if tirx.is_buffer_var(tensor)
    }
    params = [buffers.get(tensor, tensor) for tensor in func.params]
    return PrimFunc(params, substitute(func.body, {**values, **buffers}), func.ret_type, func.attrs)


def _pair(func: PrimFunc) -> tuple[Any, Any] | None:
    """Find two extents that all tensors have next to each other, and that all blocks walk together."""
    if not all(map(tirx.is_buffer_var, func.params)):
        return None
    for tensor in func.params:
        shape = [extent for extent in tensor.ty.shape if not _is_one(extent)]
        for first, second in pairwise(shape):
            names = isinstance(first, tvm.ir.Var) and isinstance(second, tvm.ir.Var)
            if names and not first.same_as(second) and _go_together(func, first, second):
                return first, second
    return None


def _go_together(func: PrimFunc, first: Any, second: Any) -> bool:
    tensors: list[Any] = list(func.params)
    blocks: list[Any] = []

    def block(found: Any) -> None:
        blocks.append(found)
        tensors.extend(found.alloc_buffers)

    tvm_ffi.structural_walk(func.body, [(s_tir.SBlock, block)])
    if not all(_has_both_or_none(tensor.ty.shape, first, second) for tensor in tensors):
        return False
    return all(_walks_together(found, first, second) for found in blocks if not found.same_as(func.body.block))


def _has_both_or_none(shape: Sequence[Any], first: Any, second: Any) -> bool:
    if not any(_uses(extent, (first, second)) for extent in shape):
        return True
    return _place(shape, first, second) is not None


def _place(shape: Sequence[Any], first: Any, second: Any) -> tuple[int, int] | None:
    """Find the axes of the two extents in a shape that has each once, with nothing but axes of one element between."""
    using = [axis for axis, extent in enumerate(shape) if _uses(extent, (first, second))]
    if len(using) != 2 or not shape[using[0]].same_as(first) or not shape[using[1]].same_as(second):
        return None
    return (using[0], using[1]) if all(map(_is_one, shape[using[0] + 1 : using[1]])) else None


def _walks_together(block: Any, first: Any, second: Any) -> bool:
    """Whether a block uses its axes of the two extents as neighbouring indices, and the extents as a product only."""
    outer = [axis.var for axis in block.iter_vars if axis.dom.extent.same_as(first)]
    inner = [axis.var for axis in block.iter_vars if axis.dom.extent.same_as(second)]
    others = [axis for axis in block.iter_vars if not axis.dom.extent.same_as(first)]
    if any(_uses(axis.dom.extent, (first,)) for axis in others) or len(outer) > 1 or len(inner) != len(outer):
        return False
    apart = (*outer, *inner, first, second)

    def together(tensor: Any, indices: Sequence[Any]) -> list[Any]:
        """List the indices of an access, but for those along both axes."""
        place = _place(tensor.ty.shape, first, second)
        if place is None or not outer:
            return list(indices)
        if not indices[place[0]].same_as(outer[0]) or not indices[place[1]].same_as(inner[0]):
            return list(indices)
        return [index for axis, index in enumerate(indices) if axis not in place]

    def load(node: Any) -> Any:
        rest = sum(together(node.source, node.indices), start=tirx.const(0, "int64"))
        return tirx.Cast(element_type(node), rest)

    def cast(node: Any) -> Any:
        one = substitute(node.value, {first: tirx.const(1, first.ty.dtype), second: first * second})
        is_product = not _uses(node.value, (*outer, *inner)) and tvm.sym.Analyzer().can_prove_equal(node.value, one)
        return tirx.const(0, element_type(node)) if is_product else node

    def is_apart(statement: Any) -> bool:
        """Whether a statement uses an axis or an extent in any other way."""
        if isinstance(statement, tirx.SeqStmt):
            return any(map(is_apart, statement.seq))
        if isinstance(statement, tirx.BufferStore):
            values = [statement.value, *together(statement.buffer, statement.indices)]
        elif isinstance(statement, tirx.Bind):
            values = [statement.value]
        else:
            return True
        rest = [tvm_ffi.structural_map(value, [(tvm.ir.TensorLoad, load), (Cast, cast)]) for value in values]
        return any(_uses(value, apart) for value in rest)

    return not any(map(is_apart, (part for part in (block.init, block.body) if part is not None)))


def _uses(expression: Any, variables: Sequence[Any]) -> bool:
    found: list[Any] = []
    tvm_ffi.structural_walk(expression, (tvm.ir.Var, found.append))
    return any(variable.same_as(other) for variable in found for other in variables)


def _is_one(extent: Any) -> bool:
    return isinstance(extent, tirx.IntImm) and int(extent) == 1
