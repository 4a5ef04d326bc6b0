"""Reductions in loops: how they are recognised, and how a partial result meets another value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir.prim import expr as prim

from tvm_ext.schedules.simd.vector import element_type
from tvm_ext.schedules.simd.widen import NotVectorizable, uses

_REDUCTIONS = (prim.Add, prim.Mul, prim.Max, prim.Min)


@dataclass(frozen=True)
class Reduction:
    """A statement that combines a value of every iteration into one address."""

    store: Any
    combine: type
    operand: Any

    @property
    def element(self) -> str:
        """Name the type of what is combined."""
        return element_type(self.operand)

    @property
    def is_extreme(self) -> bool:
        """Whether it is the largest or the smallest of floats, which NaN is to come through."""
        return self.combine in (prim.Max, prim.Min) and self.element in ("float32", "float64")

    def met(self, before: Any, value: Any) -> Any:
        """Combine a value into a partial result; an extreme that was NaN is forgotten, as ``maxps`` does."""
        if not self.is_extreme:
            return self.combine(before, value)
        stays = before > value if self.combine is prim.Max else before < value
        return prim.Select(stays, before, value)

    def neutral(self) -> Any:
        """Make the value that changes nothing."""
        if self.combine is prim.Add:
            return tirx.const(0, self.element)
        if self.combine is prim.Mul:
            return tirx.const(1, self.element)
        largest = self.combine is prim.Max
        if self.element.startswith("float"):  # with the least finite number, the largest of infinities would be finite
            infinity = tirx.infinity(self.element)
            return -infinity if largest else infinity
        return (tirx.min_value if largest else tirx.max_value)(self.element)


def find_reduction(statement: Any, variable: Any) -> Reduction | None:
    """Recognise ``buffer[i] = combine(buffer[i], operand)`` where ``i`` does not depend on the loop."""
    if not isinstance(statement, tirx.BufferStore) or any(uses(index, variable) for index in statement.indices):
        return None
    value = statement.value
    if type(value) not in _REDUCTIONS:
        return None
    for before, operand in ((value.a, value.b), (value.b, value.a)):
        if (
            isinstance(before, tvm.ir.TensorLoad)
            and before.source.same_as(statement.buffer)
            and tvm_ffi.structural_equal(before.indices, statement.indices)
            and not any(load.source.same_as(statement.buffer) for load in loads_of(operand))
        ):
            return Reduction(statement, type(value), operand)
    return None


def check_independent(body: Any, reduced: Sequence[Any]) -> None:
    """Refuse a body that loads what another iteration may have stored."""
    stores: list[Any] = []
    tvm_ffi.structural_walk(body, (tirx.BufferStore, lambda store: stores.append(store)))
    loads = loads_of(body)
    for buffer in reduced:
        stored = sum(store.buffer.same_as(buffer) for store in stores)
        loaded = sum(load.source.same_as(buffer) for load in loads)
        if (stored, loaded) != (1, 1):
            raise NotVectorizable("a partial result of the reduction is used inside it")
    for store in stores:
        if any(store.buffer.same_as(buffer) for buffer in reduced):
            continue
        for load in loads:
            if load.source.same_as(store.buffer) and not _is_same(load.indices, store.indices):
                raise NotVectorizable("a tensor that the loop both reads and writes")


def _is_same(indices: Sequence[Any], others: Sequence[Any]) -> bool:
    if tvm_ffi.structural_equal(indices, others):
        return True
    prove = tvm.sym.Analyzer().can_prove_equal
    return all(prove(index, other) for index, other in zip(indices, others, strict=True))


def loads_of(node: Any) -> list[Any]:
    """Collect the loads in an expression or a statement."""
    found: list[Any] = []
    tvm_ffi.structural_walk(node, (tvm.ir.TensorLoad, lambda load: found.append(load)))
    return found
