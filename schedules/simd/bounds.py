"""Checks of vector code, as it is handed to TVM's code generator, that every lane stays inside the tensor it indexes.

A vector is loaded from all its addresses unless it is a masked load; a gather has no masked form at all, so that each
of its addresses counts, whatever becomes of the value. The check knows nothing of how the vectors were made: it reads
the loops, conditions and masks of the finished kernel, and takes each access apart into its lanes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir.prim import expr as prim

from tvm_ext.relax_utils import substitute
from tvm_ext.schedules.simd.contents import Contents
from tvm_ext.schedules.simd.imported import seen_through
from tvm_ext.schedules.simd.linear import KnownInequalities
from tvm_ext.schedules.simd.one_lane import lane_of
from tvm_ext.schedules.simd.stream import PREFIX
from tvm_ext.schedules.simd.vector import is_false, lanes_of

_LEAVES = (tvm.ir.Var, prim.IntImm, prim.FloatImm)

_SOLVER = tvm.sym.ProofStrength.SYMBOLIC_BOUND

SOLVER_STEPS, SOLVER_TIMEOUT = 200_000, 60_000
"""Work that the solver may do for a proof, in its own count, which ends it before the milliseconds of its clock do."""


@dataclass(frozen=True)
class Unproved:
    """An access that may lie outside its tensor, as far as the check can tell.

    Attributes
    ----------
    buffer : str
        Name of the tensor.
    index : str
        The index, as TVM prints it.
    lanes : int
        Lanes of the access; 1 for a scalar.
    depends_on_data : bool
        Whether the index is computed from what a tensor holds.
    is_open : bool
        Whether the extent of the tensor is known only when the kernel runs. Most such accesses cannot be proved:
        products of extents are beyond the solver, which is not asked about them.
    """

    buffer: str
    index: str
    lanes: int
    depends_on_data: bool
    is_open: bool

    def __str__(self) -> str:
        kind = f"{self.lanes} lanes" if self.lanes > 1 else "one element"
        return f"{self.buffer}[{self.index}] ({kind})"


def unproved_accesses(func: tvm.tirx.PrimFunc, scalars: bool = False) -> list[Unproved]:
    """List the accesses of a kernel without blocks that cannot be shown to stay inside their tensors.

    Parameters
    ----------
    func : tvm.tirx.PrimFunc
        A kernel over flat buffers.
    scalars : bool
        Whether to check accesses to single elements too; they are the operator's own, not made by vectorising.

    Returns
    -------
    list of Unproved
        In program order; empty when all is proved.
    """
    checker = _Checker(scalars, func)
    checker.statement(func.body)
    return checker.unproved


class _Checker:
    def __init__(self, scalars: bool, func: tvm.tirx.PrimFunc) -> None:
        self._scalars, self._contents = scalars, Contents(func)
        self._analyzer = tvm.sym.Analyzer()
        if self._analyzer.is_z3_enabled:
            self._analyzer.set_z3_rlimit(SOLVER_STEPS)
            self._analyzer.set_z3_timeout_ms(SOLVER_TIMEOUT)
        self._known = KnownInequalities(self._analyzer)
        self._values: dict[Any, Any] = {}
        self.unproved: list[Unproved] = []

    def statement(self, statement: Any) -> None:
        """Check a statement and what it contains, under the conditions that hold around it."""
        kind = type(statement)
        if kind is tirx.SeqStmt:
            for part in statement.seq:
                self.statement(part)
        elif kind is tirx.For:
            self._expression(statement.min)
            self._expression(statement.extent)
            first, extent = self._contents(statement.min), self._contents(statement.extent)
            self._contents.forget(statement.body)  # in an iteration before
            domain = tvm.ir.Range.from_min_extent(first, extent)
            self._analyzer.bind(statement.loop_var, domain, allow_override=True)
            # Of a loop of open extent the analyzer knows no number.
            with self._known.given(statement.loop_var < first + extent):
                self.statement(statement.body)
            self._contents.forget(statement.body)
        elif kind is tirx.IfThenElse:
            self._expression(statement.condition)
            before = dict(self._contents.names)
            with self._given(statement.condition):
                self.statement(statement.then_case)
            if statement.else_case is not None:
                self._contents.names = before
                with self._given(prim.Not(statement.condition)):
                    self.statement(statement.else_case)
            self._contents.forget(statement)
        elif kind is tirx.BufferStore:
            for part in (statement.value, *statement.indices):
                self._expression(part)
            self._access(statement.buffer, statement.indices, None)
            self._contents.store(statement)
        elif kind is tirx.Bind:
            self._expression(statement.value)
            self._define(statement.var, statement.value)
            self._contents.forget(statement)
        elif kind is tirx.Evaluate:
            self._expression(statement.value)
            self._contents.forget(statement)
        elif kind is tirx.While:
            self._contents.forget(statement)  # in an iteration before
            self._expression(statement.condition)
            self.statement(statement.body)
            self._contents.forget(statement)
        elif kind in (tirx.AttrStmt, tirx.AssertStmt):
            for name in ("condition", "value", "body"):
                part = getattr(statement, name, None)
                if isinstance(part, tirx.Stmt):
                    self.statement(part)
                elif isinstance(part, tvm.ir.Expr):
                    self._expression(part)

    @contextmanager
    def _given(self, condition: Any) -> Iterator[None]:
        """Enter a region where a condition holds; one of a vector says nothing here."""
        if lanes_of(condition) > 1:
            yield
            return
        with self._holds(_without_likely(condition)):
            yield

    @contextmanager
    def _holds(self, condition: Any) -> Iterator[None]:
        condition = self._contents(condition)
        known = self._contents.named(self._substituted(condition))
        with self._analyzer.constraint_scope(condition), self._known.given(known):
            yield

    def _define(self, variable: Any, value: Any) -> None:
        if not isinstance(value.ty, tvm.ir.PrimType):
            return  # an address
        value = self._contents(seen_through(value))
        self._values[variable] = value
        if lanes_of(value) == 1 and "int" in str(value.ty.dtype):
            self._analyzer.bind(variable, value, allow_override=True)

    def _expression(self, expression: Any) -> None:
        if isinstance(expression, _LEAVES):
            return
        tvm_ffi.structural_visit(
            expression,
            [(tvm.ir.TensorLoad, self._load), (tvm.ir.Call, self._call), (prim.Let, self._let)],
        )

    def _let(self, let: Any, visitor: Any) -> None:
        visitor.visit(let.value)
        self._define(let.var, let.value)
        visitor.visit(let.body)

    def _load(self, load: Any, visitor: Any) -> None:
        for index in load.indices:
            visitor.visit(index)
        self._access(load.source, load.indices, None)

    def _call(self, call: Any, visitor: Any) -> None:
        name = getattr(call.op, "name", "").rpartition(".")[2]
        if name == "if_then_else":
            condition, then, otherwise = call.args
            visitor.visit(condition)
            for branch, holds in ((then, condition), (otherwise, prim.Not(condition))):
                with self._given(holds):
                    visitor.visit(branch)
        elif name == "masked_load":
            buffer, index, mask = call.args[-3:]
            self._masked(visitor, buffer, index, mask)
        elif name == "masked_store":
            buffer, value, index, mask = call.args
            visitor.visit(value)
            self._masked(visitor, buffer, index, mask)
        elif name == "address_of":
            for index in call.args[0].indices:  # an address alone is not accessed
                visitor.visit(index)
        elif name == "call_extern" and str(getattr(call.args[0], "value", "")).startswith(PREFIX):
            address, value = call.args[1:]
            visitor.visit(value)
            load = address.args[0]
            (first,) = load.indices
            self._access(load.source, [prim.Ramp(first, tirx.const(1, first.ty.dtype), lanes_of(value))], None)
        else:
            visitor.default_visit(call)

    def _masked(self, visitor: Any, buffer: Any, index: Any, mask: Any) -> None:
        visitor.visit(index)
        visitor.visit(mask)
        self._access(buffer, [index], mask)

    def _access(self, buffer: Any, indices: Any, mask: Any) -> None:
        lanes = max(map(lanes_of, indices), default=1)
        if lanes == 1 and not self._scalars:
            return
        for index, extent in zip(indices, buffer.ty.shape, strict=True):
            if not self._stays_inside(index, extent, mask):
                dependent = _holds_load(self._substituted(index))
                is_open = not isinstance(extent, prim.IntImm)
                self.unproved.append(Unproved(buffer.name, str(index), lanes, dependent, is_open))

    def _stays_inside(self, index: Any, extent: Any, mask: Any) -> bool:
        index = self._substituted(index)
        if lanes_of(index) == 1:
            return self._inside(index, extent)
        if mask is not None and not _holds_masked_load(index):
            mask = _without_masked_loads(self._substituted(mask))
        lanes: Any = range(lanes_of(index))
        if isinstance(index, prim.Ramp):
            active = lanes_of(index) if mask is None else _prefix(mask)
            if active is not None:  # evenly spaced addresses lie between the first and the last
                last = index.base + index.stride * tirx.const(active - 1, index.base.ty.dtype)
                return active == 0 or (self._inside(index.base, extent) and self._inside(last, extent))
        return all(self._lane_inside(index, extent, mask, lane) for lane in lanes)

    def _lane_inside(self, index: Any, extent: Any, mask: Any, lane: int) -> bool:
        if mask is not None:
            taking_part = self._analyzer.simplify(lane_of(self._substituted(mask), lane))
            if isinstance(taking_part, prim.IntImm) and not taking_part.value:
                return True
            with self._holds(taking_part):
                return self._chosen_inside(lane_of(index, lane), extent)
        return self._chosen_inside(lane_of(index, lane), extent)

    def _chosen_inside(self, index: Any, extent: Any) -> bool:
        """Prove an index, and where it is one of two, each under the condition that chooses it."""
        if not isinstance(index, prim.Select):
            return self._inside(index, extent)
        condition = self._analyzer.simplify(index.condition)
        if isinstance(condition, prim.IntImm):
            return self._chosen_inside(index.true_value if condition.value else index.false_value, extent)
        with self._holds(condition):
            if not self._chosen_inside(index.true_value, extent):
                return False
        with self._holds(prim.Not(condition)):
            return self._chosen_inside(index.false_value, extent)

    def _inside(self, index: Any, extent: Any) -> bool:
        bound = self._analyzer.const_int_bound(index)
        if bound.min_value >= 0 and isinstance(extent, prim.IntImm) and bound.max_value < int(extent):
            return True
        if isinstance(extent, prim.IntImm) and isinstance(index, prim.IntImm):
            return False
        if self._known.prove_inside(self._contents.named(index), extent):
            return True
        if not isinstance(extent, prim.IntImm):
            return False
        bound = self._analyzer.const_int_bound(self._contents.valued(index))
        if bound.min_value >= 0 and bound.max_value < int(extent):
            return True
        return bool(self._analyzer.can_prove(prim.And(index >= 0, index < extent), _SOLVER))

    def _substituted(self, expression: Any) -> Any:
        """Put vectors that were given a name in the place of their names."""
        return self._expanded(self._contents(expression))

    def _expanded(self, expression: Any) -> Any:
        if not self._values:
            return expression
        variables = tirx.analysis.undefined_vars(expression)
        if not any(variable in self._values for variable in variables):
            return expression
        return self._expanded(substitute(expression, self._values))


def _prefix(mask: Any) -> int | None:
    """Count the lanes of a mask of the first so many lanes; None for any other mask."""
    if not isinstance(mask, prim.LT) or not isinstance(mask.a, prim.Ramp) or not isinstance(mask.b, prim.Broadcast):
        return None
    numbers = (mask.a.base, mask.a.stride, mask.b.value)
    if not all(isinstance(number, prim.IntImm) for number in numbers):
        return None
    base, stride, limit = map(int, numbers)
    return min(max(limit, 0), lanes_of(mask)) if (base, stride) == (0, 1) else None


def _without_likely(condition: Any) -> Any:
    def call(node: Any, mutator: Any) -> Any:
        if getattr(node.op, "name", "").endswith(".likely"):
            return mutator.mutate(node.args[0])
        return mutator.default_mutate(node)

    return tvm_ffi.structural_mutate(condition, [(tvm.ir.Call, call)])


def _holds_load(expression: Any) -> bool:
    found = tvm_ffi.structural_walk(
        expression,
        [
            (tvm.ir.TensorLoad, lambda _load: tvm_ffi.VisitInterrupt(True)),
            (tvm.ir.Call, lambda call: _if_masked_load(call)),
        ],
    )
    return found is not None


def _holds_masked_load(expression: Any) -> bool:
    return tvm_ffi.structural_walk(expression, [(tvm.ir.Call, _if_masked_load)]) is not None


def _without_masked_loads(mask: Any) -> Any:
    """Leave out what a mask asks of elements of tensors, which says nothing of an index and is long; None if all is.

    The lanes that are left take part at least where they did.
    """
    if not _holds_masked_load(mask):
        return mask
    if isinstance(mask, prim.Select) and is_false(mask.false_value):
        parts = [_without_masked_loads(part) for part in (mask.condition, mask.true_value)]
        if None not in parts:
            return prim.Select(*parts, mask.false_value)
        return next((part for part in parts if part is not None), None)
    name = getattr(getattr(mask, "op", None), "name", "").rpartition(".")[2]
    if name == "reinterpret" and str(mask.ty.dtype) == str(mask.args[0].ty.dtype):
        return _without_masked_loads(mask.args[0])
    return None


def _if_masked_load(call: Any) -> Any:
    return tvm_ffi.VisitInterrupt(True) if getattr(call.op, "name", "").endswith("masked_load") else None
