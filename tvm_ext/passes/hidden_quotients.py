"""Hides quotients of indices from TVM's affine analysis, where that takes them for something else.

before: ``a[(i % 2 + 1) // 2]``, of which the analysis makes ``a[(i + 1) % 2 // 2]``
after:  ``a[truncdiv(i % 2 + 1, 2)]``, which it does not look into

The analysis simplifies places when buffers are flattened. It is right about the indices of most kernels, which get
short and whose vectors lie together by it; so places whose indices divide sums of iterators and numbers are computed
both ways, and stay as they are where that agrees. Indices are simplified by the conditions around them before, so this
is asked of what they may become, too: of ``(s % 70 - 5) // 35`` for ``(s % 70 - 5) % 70 // 35`` where ``s % 70 >= 5``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Expr, Range, Var
from tvm.ir.expr import TensorLoad
from tvm.s_tir import SBlockRealize
from tvm.sym import Analyzer, iter_map_simplify
from tvm.tirx import IntImm

from tvm_ext.relax_utils import substitute
from tvm_ext.schedules.kernel.index_values import POINTS, evaluated
from tvm_ext.schedules.simd.vector import operation

SIZES = (1, 2, 3, 7, 16, 33)
"""Values of variables that only a run knows."""


def hidden_quotients() -> tvm.transform.Pass:
    """Make the pass, for kernels before their buffers are flattened."""

    @tirx.transform.prim_func_pass(opt_level=0, name="tvm_ext.HiddenQuotients")
    def _rewrite(func: tirx.PrimFunc, _mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tirx.PrimFunc:
        scope = _Scope()

        def loop(node: Any, mutator: Any) -> Any:
            if isinstance(node.extent, IntImm) and int(node.extent) == 1:
                scope.values[node.loop_var] = scope.in_loops(node.min)  # such loops go before buffers are flattened
            else:
                scope.extents[node.loop_var] = (node.min, node.extent)
            hidden = scope.hidden_indices
            made = mutator.default_mutate(node)
            if scope.hidden_indices == hidden or node.kind != tirx.ForKind.VECTORIZED:
                return made
            # TVM takes ``truncmod`` of a falling ramp, (27, 26, ..., 20) % 7, for the falling ramp (6, 5, ..., -1).
            return tirx.For(
                made.loop_var, made.min, made.extent, tirx.ForKind.SERIAL, made.body, annotations=made.annotations
            )

        def block(node: Any, mutator: Any) -> Any:
            for variable, value in zip(node.block.iter_vars, node.iter_values, strict=True):
                scope.values[variable.var] = scope.in_loops(value)
            with scope.where(node.predicate):
                return mutator.default_mutate(node)

        def branch(node: Any, mutator: Any) -> Any:
            with scope.where(node.condition):
                then = mutator.mutate(node.then_case)
            other = None if node.else_case is None else mutator.mutate(node.else_case)
            return tirx.IfThenElse(mutator.mutate(node.condition), then, other)

        def choice(node: Any, mutator: Any) -> Any:
            if operation(node) != "if_then_else":
                return mutator.default_mutate(node)
            condition, yes, no = node.args
            with scope.where(condition):
                yes = mutator.mutate(yes)
            return tirx.if_then_else(mutator.mutate(condition), yes, mutator.mutate(no))

        def store(node: Any, mutator: Any) -> Any:
            node = mutator.default_mutate(node)
            indices = scope.safe(node.buffer, node.indices)
            return node if indices is None else tirx.BufferStore(node.buffer, node.value, indices)

        def load(node: Any, mutator: Any) -> Any:
            node = mutator.default_mutate(node)
            indices = scope.safe(node.source, node.indices)
            return node if indices is None else tirx.BufferLoad(node.source, indices)

        return tvm_ffi.structural_mutate(
            func,
            [
                (tirx.For, loop),
                (SBlockRealize, block),
                (tirx.IfThenElse, branch),
                (tvm.ir.Call, choice),
                (TensorLoad, load),
                (tirx.BufferStore, store),
            ],
        )

    return _rewrite


@dataclass
class _Scope:
    """What is known of variables: extents of loops, what variables of blocks are in loops, and what holds of both."""

    extents: dict[Var, tuple[Expr, Expr]] = field(default_factory=dict)
    values: dict[Var, Expr] = field(default_factory=dict)
    conditions: list[Expr] = field(default_factory=list)
    hidden_indices: int = 0

    @contextmanager
    def where(self, condition: Expr) -> Iterator[None]:
        """Take a condition for true: that of a block, or of a branch."""
        if isinstance(condition, IntImm):  # of a block that has none
            yield
            return
        self.conditions.append(self.in_loops(condition))
        yield
        self.conditions.pop()

    def in_loops(self, expr: Expr) -> Expr:
        """Write an expression by variables of loops."""
        return substitute(expr, self.values)

    def safe(self, buffer: Any, indices: Sequence[Expr]) -> list[Expr] | None:
        """Give indices of an element that the analysis gets right; None where it does anyway."""
        if not any(map(self.is_suspicious, indices)) or self.is_right(buffer, indices):
            return None
        self.hidden_indices += 1
        return [self.hidden(index) for index in indices]

    def is_suspicious(self, index: Expr) -> bool:
        """Whether an index divides a sum with a number, or with something that is taken away."""
        found = False

        def look(node: Any) -> None:
            nonlocal found
            found = found or self._has_offset(node.a)

        if _divides(index):
            tvm_ffi.structural_walk(self.in_loops(index), [(tirx.FloorDiv, look), (tirx.FloorMod, look)])
        return found

    def _has_offset(self, expr: Expr) -> bool:
        if isinstance(expr, tirx.Sub):
            return True
        if isinstance(expr, tirx.Add):
            return any(self._is_fixed(part) or self._has_offset(part) for part in (expr.a, expr.b))
        if isinstance(expr, tirx.Mul):
            return any(
                (isinstance(part, IntImm) and int(part) < 0) or self._has_offset(part) for part in (expr.a, expr.b)
            )
        return False

    def _is_fixed(self, expr: Expr) -> bool:
        if isinstance(expr, IntImm):
            return int(expr) != 0
        return not any(variable in self.extents or variable in self.values for variable in _variables(expr))

    def is_right(self, buffer: Any, indices: Sequence[Expr]) -> bool:
        """Whether the analysis gives the place of an element that the indices say."""
        place = self.in_loops(_place(buffer, indices))
        ranges = {
            variable: Range.from_min_extent(*self.extents[variable])
            for variable in _variables(place)
            if variable in self.extents
        }
        holds = reduce(tirx.And, self.conditions) if self.conditions else True
        simplified = [
            iter_map_simplify([form], ranges, condition)[0]
            for form in self._forms(buffer, indices, ranges)
            for condition in (True, holds)
        ]
        for points in self._points(place):
            wanted = evaluated(place, points)
            there = [evaluated(condition, points) for condition in self.conditions]
            inside = np.all(np.broadcast_arrays(True, *(one for one in there if one is not None)), axis=0)
            for form in simplified:
                found = evaluated(form, points)
                if wanted is not None and found is not None and np.any((wanted != found) & inside):
                    return False
        return True

    def _forms(self, buffer: Any, indices: Sequence[Expr], ranges: Mapping[Var, Range]) -> Iterator[Expr]:
        """Write the place of an element in the forms that it may have by the time that buffers are flattened."""
        indices = [self.in_loops(index) for index in indices]
        analyzer = Analyzer()
        for variable, span in ranges.items():
            analyzer.bind(variable, span)
        yield (place := _place(buffer, indices))
        yield analyzer.simplify(place)
        # Statements are simplified before, index by index, perhaps without the conditions of blocks, which are outside.
        for first in range(len(self.conditions)):
            with ExitStack() as scopes:
                for condition in self.conditions[first:]:
                    scopes.enter_context(analyzer.constraint_scope(analyzer.simplify(condition)))
                place = _place(buffer, [analyzer.simplify(index) for index in indices])
            yield place
            yield analyzer.simplify(place)

    def hidden(self, index: Expr) -> Expr:
        """Divide by operators that the analysis does not know; what is divided is made positive for them."""
        analyzer = Analyzer()
        for variable, span in self.extents.items():
            analyzer.bind(variable, Range.from_min_extent(*span))

        def quotient(node: Any, mutator: Any) -> Any:
            node = mutator.default_mutate(node)
            turns = self._turns(node, analyzer)
            if turns is None:
                return node
            return tirx.truncdiv(node.a + turns * node.b, node.b) - turns

        def remainder(node: Any, mutator: Any) -> Any:
            node = mutator.default_mutate(node)
            turns = self._turns(node, analyzer)
            return node if turns is None else tirx.truncmod(node.a + turns * node.b, node.b)

        return tvm_ffi.structural_mutate(index, [(tirx.FloorDiv, quotient), (tirx.FloorMod, remainder)])

    def _turns(self, node: Any, analyzer: Analyzer) -> Any:
        """Count how often a divisor is to be added to a dividend for it to be positive; None if that is not known."""
        least = analyzer.const_int_bound(self.in_loops(node.a)).min_value
        if least >= 0:
            return tirx.const(0, node.b.ty.dtype)
        if not isinstance(node.b, IntImm) or int(node.b) < 1 or least < -(2**31):
            return None
        return tirx.const(-(least // int(node.b)), node.b.ty.dtype)

    def _points(self, expr: Expr) -> Iterator[dict[Var, Any]]:
        """Give values of the variables of an expression, array by array."""
        variables = _variables(expr)
        loops = [variable for variable in variables if variable in self.extents]
        parts = (part for loop in loops for part in self.extents[loop])
        sizes = [variable for variable in _variables(expr, *parts) if variable not in self.extents]
        generator = np.random.default_rng(0)
        for size in SIZES if sizes else (1,):
            points: dict[Var, Any] = {variable: generator.permutation(SIZES)[0] for variable in sizes}
            if sizes:
                points[sizes[0]] = size
            spans = [[evaluated(part, points) for part in self.extents[loop]] for loop in loops]
            if any(least is None or extent is None or extent < 1 for least, extent in spans):
                continue
            extents = [int(extent) for _, extent in spans]
            count = min(POINTS, int(np.prod(extents, dtype="float64")))
            if count < POINTS:
                chosen = np.unravel_index(np.arange(count), extents) if extents else ()
            else:
                chosen = tuple(generator.integers(0, extent, count) for extent in extents)
            yield points | {
                loop: np.asarray(values) + int(least)
                for loop, values, (least, _) in zip(loops, chosen, spans, strict=True)
            }


def _place(buffer: Any, indices: Sequence[Expr]) -> Expr:
    """Count the elements in front of one."""
    place: Any = IntImm("int64", 0)
    for index, extent in zip(indices, buffer.shape, strict=True):
        place = place * extent + index
    return place


def _divides(expr: Expr) -> bool:
    found: list[Any] = []
    tvm_ffi.structural_walk(expr, [(tirx.FloorDiv, found.append), (tirx.FloorMod, found.append)])
    return bool(found)


def _variables(*exprs: Expr) -> list[Var]:
    found: dict[Var, None] = {}
    for expr in exprs:
        tvm_ffi.structural_walk(expr, [(Var, lambda variable: found.setdefault(variable))])
    return list(found)
