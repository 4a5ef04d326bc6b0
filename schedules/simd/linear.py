"""Proofs of inequalities between whole numbers by adding up those that are known, without a solver.

Addresses and the conditions around them are sums of loop variables with factors, and most conditions bound a part of
an address: a window that reaches into padding is read where ``0 <= 2 * y + r - 1 < height``, at ``width * (2 * y + r
- 1) + ...``. Taking the multiple of the known inequality off what is to be proved leaves fewer variables, until their
own ranges suffice. A general solver finds the same proof, in seconds instead of microseconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tvm
from tvm.ir.prim import expr as prim

_LIMIT = 1 << 60
"""Bounds beyond it are those of variables about which nothing is known."""

Form = dict[Any, int]
"""Factors by variable, and the constant under ``None``."""


class KnownInequalities:
    """What holds where an expression is evaluated, as sums that are not negative.

    Parameters
    ----------
    analyzer : tvm.sym.Analyzer
        Knows the ranges of the variables.
    """

    def __init__(self, analyzer: tvm.sym.Analyzer) -> None:
        self._analyzer = analyzer
        self._known: list[Form] = []

    @contextmanager
    def given(self, condition: Any) -> Iterator[None]:
        """Enter a region where a condition holds; what is not a linear inequality adds nothing."""
        before = len(self._known)
        self._known.extend(_inequalities(condition))
        try:
            yield
        finally:
            del self._known[before:]

    def prove_inside(self, index: Any, extent: Any) -> bool:
        """Whether ``0 <= index < extent`` follows from ranges and known inequalities; False if that cannot be told."""
        position, end = _form(index), _form(extent)
        if position is None or end is None:
            return False
        return self._not_negative(position) and self._not_negative(_sum(end, position, -1, {None: -1}))

    def _not_negative(self, form: Form) -> bool:
        lowest = self._lowest(form)
        for known in sorted(self._known, key=len, reverse=True):  # of its variables, a longer one would find some gone
            if lowest is not None and lowest >= 0:
                break
            factor = _multiple(form, known)
            if factor:
                form = _sum(form, known, -factor)
                lowest = self._lowest(form)
        return lowest is not None and lowest >= 0

    def _lowest(self, form: Form) -> int | None:
        total = 0
        for variable, factor in form.items():
            if variable is None:
                total += factor
            elif factor:
                bound = self._analyzer.const_int_bound(variable)
                end = bound.min_value if factor > 0 else bound.max_value
                if abs(end) > _LIMIT:
                    return None
                total += factor * end
        return total


def _multiple(form: Form, known: Form) -> int:
    """How often a known sum is contained in another: once its variables all appear in the same proportion; 0 if not."""
    variables = [variable for variable, factor in known.items() if variable is not None and factor]
    if not variables:
        return 0
    factor, rest = divmod(form.get(variables[0], 0), known[variables[0]])
    same = not rest and factor > 0 and all(form.get(each, 0) == factor * known[each] for each in variables)
    return factor if same else 0


def _sum(one: Form, other: Form, factor: int, more: Form | None = None) -> Form:
    total = dict(one)
    for form, times in ((other, factor), (more or {}, 1)):
        for variable, value in form.items():
            total[variable] = total.get(variable, 0) + times * value
    return total


def _inequalities(condition: Any) -> Iterator[Form]:
    kind = type(condition)
    if kind is prim.And:
        yield from _inequalities(condition.a)
        yield from _inequalities(condition.b)
    elif kind is prim.Not and type(condition.a) in _OPPOSITE:
        yield from _inequalities(_OPPOSITE[type(condition.a)](condition.a.a, condition.a.b))
    elif kind is prim.LT and type(condition.b) is prim.FloorDiv and isinstance(condition.b.b, prim.IntImm):
        # i < floor(a / c) where (i + 1) * c <= a, for c > 0: the loop over the whole vectors of an open extent
        if int(condition.b.b) > 0:
            yield from _inequalities((condition.a + 1) * condition.b.b <= condition.b.a)
    elif kind in _OPPOSITE or kind is prim.EQ:
        left, right = _form(condition.a), _form(condition.b)
        if left is None or right is None:
            return
        if kind in (prim.LT, prim.LE, prim.EQ):
            yield _sum(right, left, -1, {None: -1 if kind is prim.LT else 0})
        if kind in (prim.GT, prim.GE, prim.EQ):
            yield _sum(left, right, -1, {None: -1 if kind is prim.GT else 0})


_OPPOSITE = {prim.LT: prim.GE, prim.LE: prim.GT, prim.GT: prim.LE, prim.GE: prim.LT}


def _form(expression: Any) -> Form | None:
    """Write an expression of whole numbers as a sum; None where it is not one."""
    kind = type(expression)
    if kind is prim.IntImm:
        return {None: int(expression)}
    if kind is tvm.ir.Var:
        return {expression: 1} if str(expression.ty.dtype) in ("int32", "int64") else None
    if kind is prim.Cast:
        return _form(expression.value) if str(expression.ty.dtype) in ("int32", "int64") else None
    if kind in (prim.Add, prim.Sub, prim.Mul):
        left, right = _form(expression.a), _form(expression.b)
        if left is None or right is None:
            return None
        if kind is not prim.Mul:
            return _sum(left, right, 1 if kind is prim.Add else -1)
        if left.keys() <= {None}:
            left, right = right, left
        if right.keys() <= {None}:
            times = right.get(None, 0)
            return {variable: factor * times for variable, factor in left.items()}
    return None
