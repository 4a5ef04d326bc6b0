"""Derives mapping types from a PrimFunc: from the index maps of its blocks, so any function gets its type.

Each block reads buffers at indices that are expressions of its axes. Those expressions are evaluated with numpy at
points of the block's domain (all of them where it is small, else the ends and the middle of every axis), and the
addresses read are compared with the addresses written:

- the block reduces, and reads along its reduction axes: Many-to-Many;
- the index depends on data, or an element is read for several results, or some result reads nothing: One-to-Many;
- the same addresses: One-to-One where the shapes agree too, Reorganize where not;
- other addresses in the same order (a part of the operand, or of the result): One-to-One;
- other addresses in another order: Shuffle.

Blocks that follow one another are composed through the buffers between them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import tvm
from tvm import tirx
from tvm.ir.prim import expr as prim
from tvm.s_tir import SBlock, SBlockRealize

from tvm_ext.graph.mapping_types import Mapping, MappingType, compose, is_small

ONE_TO_ONE, REORGANIZE, SHUFFLE, ONE_TO_MANY, MANY_TO_MANY, OPAQUE = MappingType

_Array = np.ndarray
_MAX_POINTS = 100_000
_SYMBOL_VALUE = 7  # stands for a size that is not known now
_LARGEST_WINDOW = 64  # elements of a maximum that a reader may take itself
_REDUCTION = 2  # tvm.tirx.IterVar.CommReduce
_BINARY: dict[type, Callable[[Any, Any], Any]] = {
    prim.Add: np.add,
    prim.Sub: np.subtract,
    prim.Mul: np.multiply,
    prim.FloorDiv: np.floor_divide,
    prim.Div: np.floor_divide,  # of indices, which are not negative
    prim.FloorMod: np.mod,
    prim.Mod: np.mod,
    prim.Min: np.minimum,
    prim.Max: np.maximum,
    prim.EQ: np.equal,
    prim.NE: np.not_equal,
    prim.LT: np.less,
    prim.LE: np.less_equal,
    prim.GT: np.greater,
    prim.GE: np.greater_equal,
    prim.And: np.logical_and,
    prim.Or: np.logical_or,
}


class _NotAnalysable(Exception):
    """Raised inside the analysis for a statement or an index that has no static meaning."""


@dataclass(frozen=True)
class _Relation:
    """How a block computes one buffer from another."""

    source: Any
    target: Any
    kind: MappingType
    is_disjoint_window: bool = False
    rows: tuple[int, int] | None = None  # of a reduction of neighbours: how many rows, and how long
    is_gather: bool = False  # the index depends on data


def prim_func_mapping(func: Any, given: Collection[int] = ()) -> Mapping:
    """Derive the mapping types of a PrimFunc.

    Parameters
    ----------
    func : tvm.tirx.PrimFunc
        Made of blocks; scheduled or not.
    given : collection of int
        Positions of operands that are weights or inputs of the calling function: vectors among them stay One-to-One.

    Returns
    -------
    mapping : Mapping
        One type for each parameter that is read and not written, in order. Opaque where the function holds what cannot
        be analysed (calls of packed functions, ``while`` loops, stores at addresses that depend on data).
    """
    parameters = [parameter for parameter in func.params if isinstance(parameter.ty, tirx.buffer.BufferType)]
    reader = _Reader()
    try:
        relations = list(reader.statement(func.body))
    except _NotAnalysable:
        return Mapping(OPAQUE, (OPAQUE,) * max(len(parameters) - 1, 0))
    operands = [buffer for buffer in parameters if not _is_in(buffer, reader.written)]
    results = [buffer for buffer in parameters if _is_in(buffer, reader.written)]
    if not results:
        return Mapping(OPAQUE, (OPAQUE,) * len(operands))
    kinds = [
        max((kind for buffer, kind in _reached(operand, relations) if _is_in(buffer, results)), default=ONE_TO_ONE)
        for operand in operands
    ]
    elements = prod(_shape(results[0]))
    is_full = any(k is ONE_TO_ONE and prod(_shape(b)) == elements for k, b in zip(kinds, operands, strict=True))
    node = max(kinds, default=ONE_TO_MANY)
    if is_full and node is ONE_TO_MANY and not any(relation.is_gather for relation in relations):
        node = ONE_TO_ONE
    if is_full and node is ONE_TO_ONE:
        for position, operand in enumerate(operands):
            if is_small(_shape(operand), position in given):
                kinds[position] = ONE_TO_ONE
    windows = [relation for relation in relations if relation.kind is MANY_TO_MANY]
    rows = {relation.rows for relation in windows}
    is_window = len(windows) == 1 and windows[0].is_disjoint_window
    return Mapping(node, tuple(kinds), is_window, rows.pop() if len(rows) == 1 else None)


def _is_in(buffer: Any, others: Sequence[Any]) -> bool:
    return any(buffer.same_as(other) for other in others)


def _reached(start: Any, relations: Sequence[_Relation]) -> list[tuple[Any, MappingType]]:
    """Follow the blocks from one buffer: every buffer computed from it, with the composed type, once for each path."""
    found: list[tuple[Any, MappingType]] = []
    for relation in relations:  # in program order, so a source is complete before it is read
        if relation.source.same_as(start):
            found.append((relation.target, relation.kind))
        # One entry for each distinct type is enough; paths only multiply them.
        kinds = {kind for buffer, kind in found if buffer.same_as(relation.source)}
        for kind in sorted(kinds):
            item = (relation.target, compose(kind, relation.kind))
            if not any(item[0].same_as(buffer) and item[1] is known for buffer, known in found):
                found.append(item)
    return found


def _shape(buffer: Any) -> tuple[int, ...]:
    return tuple(_size(extent) for extent in buffer.ty.shape)


def _size(extent: Any) -> int:
    try:
        return int(np.asarray(_evaluate(extent, {})))
    except _NotAnalysable:
        return _SYMBOL_VALUE


def _evaluate(expression: Any, values: dict[Any, _Array]) -> Any:
    """Value of an integer expression at every point; a variable that is no axis is a size."""
    if isinstance(expression, int):
        return expression
    kind = type(expression)
    if kind is prim.IntImm:
        return int(expression.value)
    if isinstance(expression, tvm.ir.Var):
        for variable, value in values.items():
            if variable.same_as(expression):
                return value
        return _SYMBOL_VALUE
    if kind is prim.Cast:
        return _evaluate(expression.value, values)
    if kind is prim.Not:
        return np.logical_not(_evaluate(expression.a, values))
    if kind in _BINARY:
        return _BINARY[kind](_evaluate(expression.a, values), _evaluate(expression.b, values))
    if kind is tvm.ir.Call and expression.op.name.endswith("likely"):
        return _evaluate(expression.args[0], values)
    raise _NotAnalysable(kind.__name__)


def _samples(extents: Sequence[int]) -> list[_Array]:
    """Pick points along each axis: all where that is few, else the ends and the middle."""
    keep = 8
    while True:
        axes = [
            np.arange(n)
            if n <= keep
            else np.unique(np.r_[: keep // 2, n // 2 : n // 2 + max(keep // 4, 1), n - max(keep // 4, 1) : n])
            for n in extents
        ]
        if keep <= 2 or prod(len(axis) for axis in axes) <= _MAX_POINTS:
            return axes
        keep -= 1


class _Reader:
    """Finds the blocks of a function and what each of them reads."""

    def __init__(self) -> None:
        self.written: list[Any] = []

    def statement(self, statement: Any) -> Iterator[_Relation]:
        """Yield for each block, in program order, one relation for each buffer it reads."""
        if isinstance(statement, tirx.SeqStmt):
            for part in statement.seq:
                yield from self.statement(part)
        elif isinstance(statement, tirx.For | tirx.AttrStmt):
            yield from self.statement(statement.body)
        elif isinstance(statement, SBlockRealize):
            yield from self._block(statement.block)
        elif not isinstance(statement, tirx.AllocBuffer | tirx.DeclBuffer):
            raise _NotAnalysable(type(statement).__name__)

    def _block(self, block: SBlock) -> Iterator[_Relation]:
        if not block.iter_vars and not isinstance(block.body, tirx.BufferStore):
            yield from self.statement(block.body)
            return
        self.written += [region.source for region in block.writes]
        axes = [(axis.var, _size(axis.dom.extent), int(axis.iter_type) == _REDUCTION) for axis in block.iter_vars]
        if isinstance(block.body, tirx.BufferStore):
            yield from _StoreReader(axes, block.body).relations()
        elif any(reduces for _, _, reduces in axes):
            # Several results reduced at once, such as a maximum and its place.
            for target in block.writes:
                for source in block.reads:
                    if not _is_in(source.source, [region.source for region in block.writes]):
                        yield _Relation(source.source, target.source, MANY_TO_MANY)
        else:
            raise _NotAnalysable("a block that is more than one store")


class _StoreReader:
    """Reads the one store of a block: evaluates its addresses and compares those read with those written."""

    def __init__(self, axes: Sequence[tuple[Any, int, bool]], store: Any) -> None:
        grids = np.meshgrid(*_samples([extent for _, extent, _ in axes]), indexing="ij", sparse=False)
        self._values = {variable: grid.reshape(-1) for (variable, _, _), grid in zip(axes, grids, strict=True)}
        self._points = grids[0].size if grids else 1
        self._reduced = prod(extent for _, extent, reduces in axes if reduces)
        self._store = store
        self._target = store.buffer
        self._written = self._addresses(store.buffer, store.indices)
        self._loads: list[tuple[Any, _Array | None, _Array]] = []  # buffer, addresses (None: from data), where read
        self._collect(store.value, np.ones(self._points, bool))

    def relations(self) -> Iterator[_Relation]:
        """Yield one relation for each load."""
        covered = np.zeros(self._points, bool)
        for _, _, where in self._loads:
            covered |= where
        for buffer, addresses, where in self._loads:
            if not buffer.same_as(self._target):
                yield self._relation(buffer, addresses, where, bool(covered.all()))

    def _relation(self, buffer: Any, addresses: _Array | None, where: _Array, is_covered: bool) -> _Relation:
        if self._reduced > 1:
            is_small = self._is_maximum() and self._reduced <= _LARGEST_WINDOW
            is_window = is_small and addresses is not None and np.unique(addresses).size == addresses.size
            return _Relation(buffer, self._target, MANY_TO_MANY, bool(is_window), self._rows(buffer, addresses))
        if addresses is None:
            return _Relation(buffer, self._target, ONE_TO_MANY, is_gather=True)
        return _Relation(buffer, self._target, self._spatial_kind(buffer, addresses, where, is_covered))

    def _spatial_kind(self, buffer: Any, addresses: _Array, where: _Array, is_covered: bool) -> MappingType:
        shape, result = _shape(buffer), _shape(self._target)
        squeezed, squeezed_result = ([extent for extent in s if extent != 1] for s in (shape, result))
        if prod(shape) == prod(result) and np.array_equal(addresses, self._written):
            is_copy = isinstance(self._store.value, tvm.ir.TensorLoad)
            return ONE_TO_ONE if shape == result or (squeezed == squeezed_result and not is_copy) else REORGANIZE
        read, written = addresses[where], self._written[where]
        if not is_covered or np.unique(read).size < read.size:
            return ONE_TO_MANY
        in_order = np.all(np.diff(read[np.argsort(written, kind="stable")]) > 0)
        return ONE_TO_ONE if in_order else SHUFFLE

    def _rows(self, buffer: Any, addresses: _Array | None) -> tuple[int, int] | None:
        """Find the rows of a reduction of neighbours: a result reads what lies side by side, and nothing else does."""
        count = prod(_shape(self._target))
        is_whole = prod(_shape(buffer)) == count * self._reduced
        if addresses is None or not is_whole or not np.array_equal(addresses // self._reduced, self._written):
            return None
        return count, self._reduced

    def _is_maximum(self) -> bool:
        value = self._store.value
        return type(value) is prim.Max and len(self._loads) == 2

    def _addresses(self, buffer: Any, indices: Sequence[Any]) -> _Array:
        address: Any = np.zeros(self._points, np.int64)
        for index, extent in zip(indices, _shape(buffer), strict=True):
            address = address * extent + _evaluate(index, self._values)
        return np.broadcast_to(address, (self._points,))

    def _collect(self, expression: Any, where: _Array) -> None:
        """Note the loads of an expression, with the points at which their value is used."""
        if isinstance(expression, tvm.ir.TensorLoad):
            try:
                addresses: _Array | None = self._addresses(expression.source, expression.indices)
            except _NotAnalysable:
                addresses = None
            self._loads.append((expression.source, addresses, where))
            for index in expression.indices:
                self._collect(index, where)
            return
        if type(expression) is prim.Select:
            self._branches(expression.condition, expression.true_value, expression.false_value, where)
        elif isinstance(expression, tvm.ir.Call):
            if expression.op.name.endswith("if_then_else"):
                condition, chosen, other = expression.args
                self._branches(condition, chosen, other, where)
                return
            if expression.op.name.endswith(("call_packed", "call_extern", "tvm_call_packed")):
                raise _NotAnalysable(expression.op.name)
            for argument in expression.args:
                self._collect(argument, where)
        else:
            for name in ("a", "b", "value"):
                part = getattr(expression, name, None)
                if part is not None and not isinstance(part, int | float | str):
                    self._collect(part, where)

    def _branches(self, condition: Any, chosen: Any, other: Any, where: _Array) -> None:
        self._collect(condition, where)
        try:
            holds = np.broadcast_to(_evaluate(condition, self._values), (self._points,)).astype(bool)
        except _NotAnalysable:
            # The choice depends on data: both branches are read everywhere.
            self._collect(chosen, where)
            self._collect(other, where)
            return
        self._collect(chosen, where & holds)
        self._collect(other, where & ~holds)
