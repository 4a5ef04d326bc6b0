"""How the elements of a product's operand lie in memory, through what is computed in its kernel before it.

before: ``t[k, j] = x[j, k]``, then a product that reads ``t[k, j]``
found:  neighbours in memory are neighbours in ``k``, as ``x`` is what is read: ``t`` is inlined into the copy of a tile
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import gcd, prod
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir.prim import expr as prim
from tvm.s_tir import Schedule

from tvm_ext.schedules.cuda.open_extents import divisor, estimated, product
from tvm_ext.schedules.kernel.blocks import is_spatial, top_blocks


@dataclass(frozen=True)
class _Load:
    """An element that is read for an element of an operand.

    Attributes
    ----------
    offset : PrimExpr
        Where it lies in its tensor, in elements, by the axes of the product.
    conditions : tuple of PrimExpr
        Under which it is read.
    elements : int
        Of its tensor.
    """

    offset: Any
    conditions: tuple[Any, ...]
    elements: int


def side_by_side(schedule: Schedule, region: Any, axes: Sequence[Any], depth: Sequence[Any]) -> tuple[bool, int]:
    """Say whether neighbours of an operand are neighbours in depth, and how many lie side by side and aligned.

    Parameters
    ----------
    schedule : Schedule
    region : BufferRegion
        The element that the product reads.
    axes, depth : sequence of IterVar
        Of the product: all, and those that only its operands have.

    Returns
    -------
    (bool, int)
        How many, whatever their index, is a power of two; 1 where neighbours are read under conditions of their own,
        or lie apart in one of several tensors that an element is computed from.
    """
    sized = [axis for axis in axes if _number(axis.dom.extent) != 1]
    loads = _loads(schedule, region, axes)
    if loads is None:
        return False, 1
    largest = max(loads, key=lambda load: load.elements)
    for axis in sized:
        if _step(largest.offset, axis.var) != 1:
            continue
        deep = any(axis.var.same_as(item.var) for item in depth)
        innermost = [item for item in depth if _number(item.dom.extent) != 1][-1] if deep else axis
        if not innermost.var.same_as(axis.var):
            return deep, 1
        return deep, min(_together(load, axis, sized) for load in loads)
    return False, 1


def _together(load: _Load, axis: Any, axes: Sequence[Any]) -> int:
    """Count the neighbours along an axis that lie side by side and aligned, a power of two."""
    size = divisor(axis.dom.extent)
    most = size & -size
    if any(_among(axis.var, condition) for condition in load.conditions):
        return 1
    if not _among(axis.var, load.offset):
        return most
    if _step(load.offset, axis.var) != 1:
        return 1
    others = [item.var for item in axes if not item.var.same_as(axis.var) and _among(item.var, load.offset)]
    first = tvm.sym.Analyzer().simplify(load.offset - axis.var)
    found = list(tvm.sym.detect_linear_equation(first, others)) if others else [first]
    if len(found) != len(others) + 1:
        return 1
    step = gcd(*(abs(divisor(step)) for step in found))
    return min(most, step & -step) if step else most


def _loads(schedule: Schedule, region: Any, axes: Sequence[Any]) -> list[_Load] | None:
    """List what is read for an element of an operand; None where that is no element of known tensors."""
    blocks = [schedule.get(block) for block in top_blocks(schedule) if is_spatial(schedule, block)]
    analyzer = tvm.sym.Analyzer()
    ones = {axis.var: tirx.const(0, axis.var.ty.dtype) for axis in axes if _number(axis.dom.extent) == 1}
    for axis in axes:
        analyzer.bind(axis.var, axis.dom)
    waiting: list[tuple[Any, list[Any], tuple[Any, ...]]] = [
        (region.source, [_replaced(item.min, ones) for item in region.region], ())
    ]
    found: list[_Load] = []
    seen: set[str] = set()
    while waiting:
        source, indices, conditions = waiting.pop()
        key = f"{source.name} {indices} {conditions}"
        if key in seen:
            continue
        seen.add(key)
        maker = next((block for block in blocks if block.writes and block.writes[0].source.same_as(source)), None)
        if maker is None:
            strides = [product(source.shape[place + 1 :]) for place in range(len(source.shape))]
            offset = sum((index * stride for index, stride in zip(indices, strides, strict=True)), start=0)
            elements = prod(map(estimated, source.shape))
            found.append(_Load(analyzer.simplify(tirx.convert(offset)), conditions, elements))
            continue
        store, value = _stored(maker.body)
        if not all(isinstance(index, tirx.Var) for index in store.indices):
            return None
        values = dict(zip(store.indices, indices, strict=True))
        inside = tuple(_replaced(condition, values) for condition in _conditions(value))
        waiting += [
            (load.source, [_replaced(index, values) for index in load.indices], (*conditions, *inside))
            for load in _tensor_loads(value)
        ]
    return found or None


def _stored(body: Any) -> tuple[Any, Any]:
    """Give the store of a block, and its value without the names that the block gives to parts of it."""
    names: dict[Any, Any] = {}
    statements = body.seq if isinstance(body, tirx.SeqStmt) else [body]
    for statement in statements[:-1]:
        names[statement.var] = _replaced(statement.value, names)
    return statements[-1], _replaced(statements[-1].value, names)


def _tensor_loads(value: Any) -> list[Any]:
    found: list[Any] = []
    tvm_ffi.structural_walk(value, [(tvm.ir.TensorLoad, found.append)])
    return found


def _conditions(value: Any) -> Iterator[Any]:
    found: list[Any] = []

    def call(node: Any) -> None:
        if getattr(node.op, "name", "").endswith("if_then_else"):
            found.append(node.args[0])

    tvm_ffi.structural_walk(value, [(tvm.ir.Call, call), (prim.Select, lambda node: found.append(node.condition))])
    return iter(found)


def _replaced(node: Any, values: dict[Any, Any]) -> Any:
    return tvm_ffi.structural_map(node, (tvm.ir.Var, lambda variable: values.get(variable, variable)))


def _step(offset: Any, variable: Any) -> int | None:
    """Give the number of elements from one neighbour to the next along an axis; None where it is not the same."""
    found = tvm.sym.detect_linear_equation(offset, [variable])
    return _number(found[0]) if len(found) == 2 else None


def _number(expression: Any) -> int | None:
    return int(expression) if isinstance(expression, tirx.IntImm) else None


def _among(variable: Any, expression: Any) -> bool:
    return any(variable.same_as(item) for item in tvm.tirx.analysis.undefined_vars(expression))
