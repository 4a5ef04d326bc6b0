"""Which rows of its operands a row of what a kernel computes depends on, proven on the body of the kernel.

A tensor of open rows has four dimensions or more, and an open extent along the third one: ``[n, c, h, w]``, or blocked
``[n, c / 8, h, w, 8]``; frames of sound are rows, too. A kernel has *windows* when row ``r`` of its result depends on
rows ``r * stride + first`` to ``r * stride + last`` of every operand with rows, on whether these rows are there (as
padding does), and on nothing else that tells rows apart. It then computes for some rows that follow each other what it
computes for them among all others, but near the first and the last one, where it takes the rows beyond for padding.

The proof is on the unscheduled kernel: in each block one loop is over the rows of what is stored, accesses are
``r * stride + tap`` along rows, rows stand in comparisons with zero and with the rows of an operand, and neither a row
nor the number of rows is left anywhere else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir.prim import expr as prim

from tvm_ext.relax_utils import substitute
from tvm_ext.shapes.batch_axis import uses

ROWS_ATTRIBUTE = "tvm_ext.row_windows"
"""Attribute of a kernel: its windows, as JSON."""

ROW_AXIS, LEAST_DIMENSIONS = 2, 4

_PURE = 2
"""Calls of operators with an effect above it (``TCallEffectKind``) write memory or are not known."""


class MixedRowsError(Exception):
    """A kernel has no windows of rows; the text says why."""


@dataclass(frozen=True)
class RowWindow:
    """Rows that row ``r`` depends on: ``r * stride + first`` to ``r * stride + last``, both included."""

    stride: int = 1
    first: int = 0
    last: int = 0

    def of(self, other: RowWindow) -> RowWindow:
        """Give the rows that the rows of this window depend on, ``other`` being those that one of them does."""
        return RowWindow(
            self.stride * other.stride,
            self.first * other.stride + other.first,
            self.last * other.stride + other.last,
        )

    def joined(self, other: RowWindow) -> RowWindow:
        """Give the smallest window that holds both.

        Raises
        ------
        MixedRowsError
            If they do not move alike.
        """
        if self.stride != other.stride:
            raise MixedRowsError(f"rows are read {self.stride} and {other.stride} apart")
        return RowWindow(self.stride, min(self.first, other.first), max(self.last, other.last))


@dataclass(frozen=True)
class RowWindows:
    """The windows of a kernel.

    Attributes
    ----------
    result : int
        The parameter that is written.
    operands : mapping of int to RowWindow
        Windows of the parameters with rows that are read.
    parameters : int
        How many there are.
    """

    result: int
    operands: Mapping[int, RowWindow]
    parameters: int

    def written(self) -> str:
        """Give it as an attribute."""
        operands = {number: [one.stride, one.first, one.last] for number, one in self.operands.items()}
        return json.dumps({"result": self.result, "operands": operands, "parameters": self.parameters})

    @classmethod
    def of(cls, func: tirx.PrimFunc) -> RowWindows | None:
        """Read the attribute of a kernel; None without one, or where its parameters are not those any more."""
        text = (func.attrs or {}).get(ROWS_ATTRIBUTE)
        if text is None:
            return None
        found = json.loads(str(text))
        operands = {int(number): RowWindow(*one) for number, one in found["operands"].items()}
        same = found["parameters"] == len(func.params)
        return cls(found["result"], operands, found["parameters"]) if same else None


def note_row_windows() -> tvm.transform.Pass:
    """Make the pass that writes the windows of unscheduled kernels into an attribute of them."""

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.NoteRowWindows")
    def _note(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        updated = tvm.IRModule(mod.functions, attrs=mod.attrs, global_infos=mod.global_infos)
        for variable, func in mod.functions_items():
            if isinstance(func, tirx.PrimFunc) and ROWS_ATTRIBUTE not in (func.attrs or {}) and _gives_rows(func):
                try:
                    windows = row_windows(func)
                except MixedRowsError:
                    continue
                updated.update_func(variable, func.with_attr(ROWS_ATTRIBUTE, windows.written()))
        return updated

    return _note


def _gives_rows(func: tirx.PrimFunc) -> bool:
    """Whether a result of a kernel may have open rows: most kernels have none, and need not be read."""
    return any(tirx.is_buffer_var(param) and has_rows(param.shape) for param in func.params)


def has_rows(shape: Sequence[Any]) -> bool:
    """Whether a tensor of a shape has open rows."""
    return len(shape) >= LEAST_DIMENSIONS and not isinstance(shape[ROW_AXIS], int | tirx.IntImm)


def row_windows(func: tirx.PrimFunc) -> RowWindows:
    """Find the windows of a kernel made of blocks.

    Parameters
    ----------
    func : tvm.tirx.PrimFunc
        Not scheduled.

    Raises
    ------
    MixedRowsError
        If that it has any cannot be shown.
    """
    proof = _Proof(func)
    proof.statement(func.body, ())
    return proof.windows()


@dataclass
class _Proof:
    """Goes through the blocks of a kernel."""

    func: tirx.PrimFunc
    symbols: list[Any] = field(default_factory=list)
    found: dict[Any, dict[int, RowWindow]] = field(default_factory=dict)
    """For each tensor with rows that was written, its windows of parameters."""
    buffers: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.parameters = {param: number for number, param in enumerate(self.func.params) if tirx.is_buffer_var(param)}
        for param in self.parameters:
            self.add_buffer(param)

    def add_buffer(self, buffer: Any) -> None:
        """Get to know a tensor."""
        self.buffers.append(buffer)
        if has_rows(buffer.shape):
            tvm_ffi.structural_walk(buffer.shape[ROW_AXIS], (tvm.ir.Var, self.symbols.append))

    def is_of_rows(self, expression: Any) -> bool:
        """Whether the number of rows of a tensor is a part of an expression."""
        return any(uses(expression, symbol) for symbol in self.symbols)

    def windows(self) -> RowWindows:
        """Sum up."""
        for buffer in self.buffers:
            others = [
                extent for axis, extent in enumerate(buffer.shape) if axis != ROW_AXIS or not has_rows(buffer.shape)
            ]
            if any(self.is_of_rows(extent) for extent in others):
                raise MixedRowsError(f"'{buffer.name}' has an extent that depends on the rows along another axis")
        results = [param for param in self.parameters if param in self.found]
        if len(results) != 1:
            raise MixedRowsError("it has no one result with rows")
        numbers = [param for param in self.func.params if param not in self.parameters]
        extents = [extent for buffer in self.buffers for extent in buffer.shape]
        if not all(any(uses(extent, number) for extent in extents) for number in numbers):
            raise MixedRowsError("it is given a number that is no extent")
        windows = self.found[results[0]]
        if not windows:
            raise MixedRowsError("its result depends on no rows")
        return RowWindows(self.parameters[results[0]], windows, len(self.func.params))

    def statement(self, statement: Any, loops: tuple[Any, ...]) -> None:
        """Read a tree of loops and blocks."""
        if isinstance(statement, tirx.SeqStmt):
            for part in statement.seq:
                self.statement(part, loops)
        elif isinstance(statement, tirx.For):
            zero = isinstance(statement.min, prim.IntImm) and int(statement.min) == 0
            if statement.kind != tirx.ForKind.SERIAL or not zero:
                raise MixedRowsError("it is scheduled already")
            self.statement(statement.body, (*loops, statement))
        elif isinstance(statement, s_tir.SBlockRealize):
            block = statement.block
            if not (isinstance(statement.predicate, prim.IntImm) and int(statement.predicate)) or block.match_buffers:
                raise MixedRowsError(f"block '{block.name_hint}' has a predicate, or renames buffers")
            for buffer in block.alloc_buffers:
                self.add_buffer(buffer)
            if not block.iter_vars and not loops:
                self.statement(block.body, ())
            else:
                self._block(statement, loops)
        else:
            raise MixedRowsError(f"it holds a {type(statement).__name__} outside of blocks")

    def _block(self, realize: Any, loops: tuple[Any, ...]) -> None:
        block = realize.block
        values = {axis.var: value for axis, value in zip(block.iter_vars, realize.iter_values, strict=True)}
        for part in (block.init, block.body):
            if part is None:
                continue
            if not isinstance(part, tirx.BufferStore):
                raise MixedRowsError(f"block '{block.name_hint}' holds a {type(part).__name__}")
            indices = [substitute(index, values) for index in part.indices]
            self._store(part.buffer, indices, substitute(part.value, values), loops)

    def _store(self, target: Any, indices: Sequence[Any], value: Any, loops: tuple[Any, ...]) -> None:
        row = None
        others = list(indices)
        if has_rows(target.shape):
            row = others.pop(ROW_AXIS)
            loop = next((loop for loop in loops if loop.loop_var.same_as(row)), None)
            if loop is None or not tvm_ffi.structural_equal(loop.extent, target.shape[ROW_AXIS]):
                raise MixedRowsError(f"'{target.name}' is not written row by row")
        inner = [loop for loop in loops if not loop.loop_var.same_as(row)] if row is not None else list(loops)
        if any(self.is_of_rows(loop.extent) for loop in inner):
            raise MixedRowsError(f"'{target.name}' is made of all rows")
        reader = _Reader(self, row, inner, target, indices)
        for index in others:
            reader.read(index)
        reader.read(value)
        if row is None:
            return
        known = self.found.setdefault(target, {})
        for number, window in reader.windows.items():
            known[number] = known[number].joined(window) if number in known else window


class _Reader:
    """Reads the expressions of one store.

    Parameters
    ----------
    proof : _Proof
    row : Var or None
        The row that is stored; None where the target has none.
    loops : sequence of For
        The others.
    target : Var
    indices : sequence
        Where in it.
    """

    def __init__(self, proof: _Proof, row: Any, loops: Sequence[Any], target: Any, indices: Sequence[Any]) -> None:
        self._proof, self._row, self._target, self._indices = proof, row, target, indices
        self._analyzer = tvm.sym.Analyzer()
        for loop in loops:
            self._analyzer.bind(loop.loop_var, tvm.ir.Range.from_min_extent(loop.min, loop.extent))
        self.windows: dict[int, RowWindow] = {}
        self._compared: list[tuple[RowWindow, Any]] = []  # rows that have to be there, and of how many
        self._fault = ""

    def read(self, expression: Any) -> None:
        """Look at an expression, or raise."""
        callbacks = [(tvm.ir.TensorLoad, self._load), (tvm.ir.Call, self._call), (prim.Select, self._select)]
        # An exception would come out of TVM as another one.
        named = tvm_ffi.structural_mutate(expression, callbacks)
        if not self._fault and self._tells_apart(named):
            self._fault = f"'{self._target.name}' is computed with the number of a row, or of all of them"
        if self._fault:
            raise MixedRowsError(self._fault)
        self._take_comparisons()

    def _tells_apart(self, expression: Any) -> bool:
        return self._proof.is_of_rows(expression) or (self._row is not None and uses(expression, self._row))

    def _load(self, load: Any, mutator: Any) -> Any:
        indices = [mutator.mutate(index) for index in load.indices]
        if load.source.same_as(self._target):
            same = len(indices) == len(self._indices) and all(
                tvm_ffi.structural_equal(one, other) for one, other in zip(indices, self._indices, strict=True)
            )
            self._fault = self._fault or ("" if same else f"'{self._target.name}' is made of itself")
        elif has_rows(load.source.shape):
            self._window(load.source, indices.pop(ROW_AXIS))
        if not load.source.same_as(self._target) and any(self._tells_apart(index) for index in indices):
            self._fault = self._fault or f"'{load.source.name}' is read by the number of a row"
        return tirx.Var("element", str(load.ty.dtype))

    def _window(self, source: Any, index: Any) -> None:
        window = self._linear(index)
        if window is None or window.stride < 1:
            self._fault = self._fault or f"'{source.name}' is not read in windows of rows"
            return
        if source in self._proof.parameters and source not in self._proof.found:
            inside = {self._proof.parameters[source]: RowWindow()}
        else:
            inside = self._proof.found.get(source, {})
        for number, one in inside.items():
            self._add(number, window.of(one))

    def _add(self, number: int, window: RowWindow) -> None:
        try:
            self.windows[number] = self.windows[number].joined(window) if number in self.windows else window
        except MixedRowsError as error:
            self._fault = self._fault or str(error)

    def _linear(self, index: Any) -> RowWindow | None:
        """Give the rows that an index stands for, whatever the other loops do; None unless it is ``r * stride + a``."""
        if self._row is None:
            return None
        found = tvm.sym.detect_linear_equation(index, [self._row])
        if len(found) != 2 or not isinstance(found[0], prim.IntImm) or self._tells_apart(found[1]):
            return None
        bounds = self._analyzer.const_int_bound(found[1])
        first, last = int(bounds.min_value), int(bounds.max_value)
        if first <= tvm.sym.ConstIntBound.NEG_INF or last >= tvm.sym.ConstIntBound.POS_INF:
            return None
        return RowWindow(int(found[0]), first, last)

    # ---- comparisons

    def _call(self, call: Any, mutator: Any) -> Any:
        effect = call.op.get_attr("TCallEffectKind") if isinstance(call.op, tvm.ir.Op) else None
        if effect is None or int(effect) > _PURE:
            self._fault = self._fault or f"'{self._target.name}' is made by {getattr(call.op, 'name', call.op)}"
        if getattr(call.op, "name", "") == "prim.if_then_else":
            condition, then, otherwise = call.args
            return self._chosen(condition, then, otherwise, mutator)
        return mutator.default_mutate(call)

    def _select(self, select: Any, mutator: Any) -> Any:
        return self._chosen(select.condition, select.true_value, select.false_value, mutator)

    def _chosen(self, condition: Any, then: Any, otherwise: Any, mutator: Any) -> Any:
        left: Any = tirx.const(True, "bool")
        for part in _conjuncts(condition):
            if not self._is_padding(part):
                left = prim.And(left, mutator.mutate(part))
        return prim.Select(left, mutator.mutate(then), mutator.mutate(otherwise))

    def _is_padding(self, condition: Any) -> bool:
        """Whether a comparison asks if a row is there; the row is kept then."""
        if not isinstance(condition, prim.LE | prim.LT | prim.GE | prim.GT) or not self._tells_apart(condition):
            return False
        low, high = (
            (condition.a, condition.b) if isinstance(condition, prim.LE | prim.LT) else (condition.b, condition.a)
        )
        spare = high - low - int(isinstance(condition, prim.LT | prim.GT))  # true where it is not below zero
        window = self._linear(self._analyzer.simplify(spare))
        if window is not None and window.stride > 0:
            self._compared.append((window, None))
            return True
        for buffer in self._proof.parameters:
            if has_rows(buffer.shape):
                window = self._linear(self._analyzer.simplify(buffer.shape[ROW_AXIS] - 1 - spare))
                if window is not None and window.stride > 0:
                    self._compared.append((window, buffer))
                    return True
        return False

    def _take_comparisons(self) -> None:
        """Take rows that have to be there for rows that are read: they are those of parameters that move alike.

        Raises
        ------
        MixedRowsError
            If there is no such parameter.
        """
        for window, buffer in self._compared:
            read = [number for number, one in self.windows.items() if one.stride == window.stride]
            if buffer is not None:
                read = [number for number in read if number == self._proof.parameters[buffer]]
            if not read:
                raise MixedRowsError(f"'{self._target.name}' depends on how many rows there are")
            for number in read:
                self.windows[number] = self.windows[number].joined(window)
        self._compared.clear()


def _conjuncts(condition: Any) -> list[Any]:
    if isinstance(condition, prim.And):
        return [*_conjuncts(condition.a), *_conjuncts(condition.b)]
    return [condition]
