"""An attention taken apart: expressions that load operands, change scores, and name the place of a result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir.prim import expr as prim

from tvm_ext.schedules.cuda.attention_tile import AttentionShape
from tvm_ext.schedules.cuda.open_extents import divisor, product
from tvm_ext.schedules.cuda.statements import number, substituted


@dataclass(frozen=True)
class AttentionParts:
    """What an attention computes, as expressions of the axes of its blocks.

    Attributes
    ----------
    shape : AttentionShape
        With estimates of open extents.
    batch : tuple of int or PrimExpr
        Extents of the leading axes.
    rows, length : int or PrimExpr
        Queries and keys.
    query, key, value : (expression, variables)
        An element in float32, of the logical index: leading axes, then ``(M, K)``, ``(K, T)`` and ``(T, N)``.
    logit : (expression, variables, buffer)
        What becomes of a score, which is loaded from the buffer, of leading axes, row and key.
    result : (buffer, list of int)
        Where results go, and which logical axis each axis of it is.
    """

    shape: AttentionShape
    batch: tuple[Any, ...]
    rows: Any
    length: Any
    query: tuple[Any, Sequence[Any]]
    key: tuple[Any, Sequence[Any]]
    value: tuple[Any, Sequence[Any]]
    logit: tuple[Any, Sequence[Any], Any]
    result: tuple[Any, Sequence[int]]

    @property
    def heads(self) -> Any:
        """Extent of the leading axes together."""
        return product(self.batch)

    def rows_left(self, tile: int) -> bool:
        """Whether tiles of so many rows may have some beyond the last one."""
        return divisor(self.rows) % tile != 0

    def keys_left(self, tile: int) -> bool:
        """Whether tiles of so many keys may have some beyond the last one."""
        return divisor(self.length) % tile != 0

    def batch_index(self, flat: Any) -> list[Any]:
        """Take the number of a head apart into the leading axes."""
        found = []
        for extent in reversed(self.batch[1:]):
            found.append(flat % extent)
            flat = flat // extent
        return [flat, *reversed(found)] if self.batch else []

    def element(self, operand: tuple[Any, Sequence[Any]], batch: Sequence[Any], first: Any, second: Any) -> Any:
        """Load an element of an operand in float32."""
        expression, variables = operand
        return substituted(expression, list(zip(variables, (*batch, first, second), strict=True)))

    def logit_of(self, score: Any, batch: Sequence[Any], row: Any, key: Any) -> Any:
        """Do to a score what is done before the softmax."""
        expression, variables, buffer = self.logit
        placed = substituted(expression, list(zip(variables, (*batch, row, key), strict=True)))

        def own(access: Any, mutator: Any) -> Any:
            return score if access.source.same_as(buffer) else mutator.default_mutate(access)

        return tvm_ffi.structural_mutate(placed, [(tvm.ir.TensorLoad, own)])

    def place(self, batch: Sequence[Any], row: Any, column: Any) -> list[Any]:
        """Give the index at which a result is stored."""
        logical = [*batch, row, column]
        return [logical[axis] for axis in self.result[1]]

    def source(self, operand: tuple[Any, Sequence[Any]]) -> Any:
        """Give the load that an element of an operand is made of."""
        loads: list[Any] = []
        tvm_ffi.structural_walk(operand[0], [(tvm.ir.TensorLoad, loads.append)])
        (access,) = loads
        return access

    def scale(self) -> float | None:
        """Give the positive number that a score is multiplied with, where nothing else becomes of it."""
        expression, _, buffer = self.logit

        def is_score(node: Any) -> bool:
            return isinstance(node, tvm.ir.TensorLoad) and bool(node.source.same_as(buffer))

        if is_score(expression):
            return 1.0
        if not isinstance(expression, prim.Mul | prim.Div):
            return None
        first, second = expression.a, expression.b
        if isinstance(expression, prim.Mul) and is_score(second):
            first, second = second, first
        if not is_score(first) or not isinstance(second, tirx.FloatImm):
            return None
        factor = float(second.value) if isinstance(expression, prim.Mul) else 1 / float(second.value or 1)
        return factor if isfinite(factor) and factor > 0 else None

    def side_by_side(self, operand: tuple[Any, Sequence[Any]]) -> tuple[int, int]:
        """Say which of the last two logical axes of an operand has neighbours side by side, and how many surely do.

        Returns
        -------
        axis : int
            0 or 1.
        count : int
            A power of two, 8 at most.
        """
        _, variables = operand
        access = self.source(operand)
        last, size = access.indices[-1], access.source.shape[-1]
        for axis, variable in enumerate(variables[-2:]):
            if last.same_as(variable):
                extent = divisor(size)
                return axis, min(8, extent & -extent)
        return 1, 1


def cast(value: Any, dtype: str) -> Any:
    """Convert where that is needed; a half that was made a float32 is there already."""
    if isinstance(value, prim.Cast) and str(value.value.ty.dtype) == dtype and str(value.ty.dtype) == "float32":
        return value.value
    return value if str(value.ty.dtype) == dtype else tirx.Cast(dtype, value)


def guarded(condition: Any, value: Any, otherwise: Any) -> Any:
    """Evaluate ``value`` only where ``condition`` holds; None is: always."""
    return value if condition is None else tirx.if_then_else(condition, value, otherwise)


def within(pairs: Sequence[tuple[Any, Any, int]]) -> Any:
    """Say that indices are below their extents, where these are no whole number of tiles; None if all are.

    Parameters
    ----------
    pairs : sequence of (PrimExpr, int or PrimExpr, int)
        Index, extent, and extent of a tile.
    """
    found = None
    for index, extent, tile in pairs:
        if divisor(extent) % tile:
            test = index < number(extent)
            found = test if found is None else tirx.And(found, test)
    return found
