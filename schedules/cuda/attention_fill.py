"""Tiles of keys and values on their way to shared memory: by ``cp.async`` where memory lies as the tile does.

What the tile has beyond the tensor becomes zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import tirx
from tvm.script import tirx as T

from tvm_ext.schedules.cuda.attention_parts import AttentionParts, cast, guarded, within
from tvm_ext.schedules.cuda.blocks import VECTOR_BYTES, element_bytes
from tvm_ext.schedules.cuda.copy_source import pointer_to, within_offsets
from tvm_ext.schedules.cuda.statements import number, store, unrolled, vectorized


def commit() -> Any:
    """End a group of asynchronous copies."""
    return tirx.Evaluate(T.ptx.cp.async_.commit_group())


def wait_for_all() -> list[Any]:
    """Wait until all copies have arrived, those of other threads too."""
    return [tirx.Evaluate(T.ptx.cp.async_.wait_group(0)), tirx.Evaluate(T.tvm_storage_sync("shared"))]


class TileFill:
    """Fills tiles of one operand, a key a row.

    Parameters
    ----------
    parts : AttentionParts
    operand : (expression, variables)
        :attr:`AttentionParts.key` or :attr:`AttentionParts.value`.
    turned : bool
        Whether the key is the second of the operand's logical axes.
    known, inner : int
        Elements of a row of the operand, and of the tile.
    keys : int
        Rows of the tile.
    threads : int
        That fill it.
    kind : str
        Type of elements of the tile.
    """

    def __init__(
        self, parts: AttentionParts, operand: tuple[Any, Sequence[Any]], turned: bool, known: int, inner: int,
        keys: int, threads: int, kind: str,
    ) -> None:  # fmt: skip
        self.parts, self.operand, self.turned, self.kind = parts, operand, turned, kind
        self.known, self.inner, self.keys, self.threads = known, inner, keys, threads
        axis, self.together = parts.side_by_side(operand)
        self.deep = (axis == 1) != turned
        source = parts.source(operand)
        self.vector = min(self.together, VECTOR_BYTES // element_bytes(source.source.dtype))
        size = element_bytes(kind)
        # A condition on elements of a vector would take it apart, one on the key it is under as a whole.
        self.whole = self.deep and known == inner
        self.asynchronous = self.whole and str(source.source.dtype) == kind and self.vector * size == VECTOR_BYTES

    def fill(self, buffer: Any, stage: Any, batch: Sequence[Any], first: Any, thread: Any) -> Any:
        """Fill stage ``stage`` of ``buffer`` with the keys from ``first`` on."""
        wide = self.vector if self.whole else 1
        total = self.keys * self.inner // wide
        count = -(-total // self.threads)

        def piece(turn: Any) -> Any:
            flat = turn * self.threads + thread
            place = flat * wide
            at, depth = (
                (place // self.inner, place % self.inner) if self.deep else (place % self.keys, place // self.keys)
            )
            moved = self._copied if self.asynchronous else self._stored
            statement = moved(buffer, stage, batch, first, at, depth, wide)
            return statement if total % self.threads == 0 else tirx.IfThenElse(flat < number(total), statement, None)

        return unrolled(count, piece)

    def _element(self, batch: Sequence[Any], key: Any, depth: Any) -> Any:
        index = (depth, key) if self.turned else (key, depth)
        return self.parts.element(self.operand, batch, *index)

    def _inside(self, key: Any) -> Any:
        return within([(key, self.parts.length, self.keys)])

    def _copied(self, buffer: Any, stage: Any, batch: Sequence[Any], first: Any, at: Any, depth: Any, wide: int) -> Any:
        access = _load_of(self._element(batch, first + at, depth))
        inside = self._inside(first + at)
        source: Any = access.source, access.indices
        begin = (access.source.data, _flat(*source)) if within_offsets(access.source) else pointer_to(*source)
        arguments = [buffer.data, _flat(buffer, (stage, at, depth)), *begin, number(wide * element_bytes(self.kind))]
        one, zero = tirx.const(1, "int32"), tirx.const(0, "int32")
        arguments += [] if inside is None else [tirx.Select(inside, one, zero)]
        return tirx.Evaluate(tirx.call_intrin(self.kind, "tirx.s_tir.cp_async_raw", *arguments))

    def _stored(self, buffer: Any, stage: Any, batch: Sequence[Any], first: Any, at: Any, depth: Any, wide: int) -> Any:
        zero = tirx.const(0, self.kind)
        inside = self._inside(first + at)

        def value(place: Any) -> Any:
            return cast(self._element(batch, first + at, depth + place), self.kind)

        def one(place: Any) -> Any:
            condition = within([
                (first + at, self.parts.length, self.keys), (depth + place, self.known, self.inner)
            ])  # fmt: skip
            return store(buffer, guarded(condition, value(place), zero), stage, at, depth + place)

        if not self.whole:
            return vectorized(wide, one)
        filled = vectorized(wide, lambda place: store(buffer, value(place), stage, at, depth + place))
        if inside is None:
            return filled
        empty = vectorized(wide, lambda place: store(buffer, zero, stage, at, depth + place))
        return tirx.IfThenElse(inside, filled, empty)


def _load_of(expression: Any) -> Any:
    while isinstance(expression, tvm.ir.prim.expr.Cast):
        expression = expression.value
    return expression


def _flat(buffer: Any, indices: Sequence[Any]) -> Any:
    """Give the offset of an element of a compact buffer."""
    found: Any = number(0)
    for extent, index in zip(buffer.shape, indices, strict=True):
        found = found * extent + index
    return found
