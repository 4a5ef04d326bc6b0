"""Expressions as terms: equal expressions are the same object, so a shared subexpression is one term and costs once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from tvm_ext.algebra.operators import OPERATORS, Array, Shape

INPUT, CONSTANT = "input", "constant"


@dataclass(frozen=True, eq=False)
class Term:
    """One expression.

    Attributes
    ----------
    op : str
        A row of :data:`~tvm_ext.algebra.operators.OPERATORS`, ``input`` or ``constant``.
    operands : tuple of Term
        What it is computed from.
    attributes : tuple of (name, value)
        Axes of a reduction, permutation of a transpose, ...; the name of an input or a constant.
    shape : tuple of int
        Of its value.
    value : float or None
        Of a constant that is one number and known.
    is_constant : bool
        Computed from constants only, so it costs nothing when the function runs.
    lower : float
        A number it is never less than; ``-inf`` where none is known. (It may be equal: no statement about zero.)
    number : int
        Unique; larger than those of the operands.
    """

    op: str
    operands: tuple[Term, ...]
    attributes: tuple[tuple[str, Any], ...]
    shape: Shape
    value: float | None
    is_constant: bool
    lower: float
    number: int

    @property
    def name(self) -> str:
        """Name of an input or a constant."""
        return dict(self.attributes)["name"]

    @property
    def flops(self) -> int:
        """Operations to compute it from its operands when the function runs."""
        if self.is_constant or self.op not in OPERATORS:
            return 0
        return OPERATORS[self.op].flops([operand.shape for operand in self.operands], self.shape)

    def __str__(self) -> str:
        if self.value is not None:
            return f"{self.value:g}"
        if self.op in (INPUT, CONSTANT):
            return self.name
        return f"{self.op}({', '.join(map(str, self.operands))})"


class Terms:
    """Makes terms; each different one once.

    Attributes
    ----------
    memory : dict
        For searches, which note here what they found for a term.
    """

    def __init__(self) -> None:
        self.memory: dict[Any, Any] = {}
        self._known: dict[tuple[Any, ...], Term] = {}
        self._made: dict[tuple[Any, ...], Term] = {}  # by what make() was given: searches ask for the same again

    def input(self, name: str, shape: Sequence[int], lower: float = -np.inf) -> Term:
        """Make an operand that is not known before the function runs."""
        return self._term(INPUT, (), (("name", name),), tuple(shape), None, False, lower)

    def constant(self, name: str, shape: Sequence[int], lower: float = -np.inf) -> Term:
        """Make an operand that is known when the function is compiled."""
        return self._term(CONSTANT, (), (("name", name),), tuple(shape), None, True, lower)

    def scalar(self, value: float) -> Term:
        """Make a number."""
        return self._term(CONSTANT, (), (("name", repr(float(value))),), (), float(value), True, float(value))

    def make(self, op: str, *operands: Term, **attributes: Any) -> Term:
        """Apply an operator.

        Raises
        ------
        ShapeError
            When the operands do not fit together.
        """
        asked = (op, tuple([operand.number for operand in operands]), tuple(attributes.items()))
        found = self._made.get(asked)
        if found is None:
            found = self._made[asked] = self._applied(op, operands, attributes)
        return found

    def _applied(self, op: str, operands: tuple[Term, ...], attributes: dict[str, Any]) -> Term:
        row = OPERATORS[op]
        values = [operand.value for operand in operands]
        if all(value is not None for value in values) and not row.attributes:
            with np.errstate(all="ignore"):
                return self.scalar(float(row.evaluate([np.asarray(value) for value in values], {})))
        shape = row.shape([operand.shape for operand in operands], attributes)
        is_constant = all(operand.is_constant for operand in operands)
        return self._term(op, operands, tuple(attributes.items()), shape, None, is_constant, _lower(op, operands))

    def _term(
        self,
        op: str,
        operands: tuple[Term, ...],
        attributes: tuple[tuple[str, Any], ...],
        shape: Shape,
        value: float | None,
        is_constant: bool,
        lower: float,
    ) -> Term:
        ordered = operands
        if op in OPERATORS and OPERATORS[op].commutes:
            ordered = tuple(sorted(operands, key=lambda operand: operand.number))
        key = (op, tuple(operand.number for operand in ordered), attributes, shape)
        found = self._known.get(key)
        if found is None:
            found = Term(op, ordered, attributes, shape, value, is_constant, lower, len(self._known))
            self._known[key] = found
        return found

    def substitute(self, roots: Sequence[Term], old: Term, new: Term) -> tuple[Term, ...]:
        """Replace one term everywhere.

        Raises
        ------
        ShapeError
            When the new term does not fit where the old one was.
        """
        done = {old.number: new}

        def rebuilt(term: Term) -> Term:
            if term.number not in done:
                if term.number < old.number or not term.operands:
                    return term
                operands = tuple(rebuilt(operand) for operand in term.operands)
                changed = any(a is not b for a, b in zip(operands, term.operands, strict=True))
                done[term.number] = self.make(term.op, *operands, **dict(term.attributes)) if changed else term
            return done[term.number]

        return tuple(rebuilt(root) for root in roots)


def reachable(roots: Iterable[Term]) -> list[Term]:
    """List all terms that roots are computed from, operands first, each once."""
    found: dict[int, Term] = {}
    pending = list(roots)
    while pending:
        term = pending.pop()
        if term.number not in found:
            found[term.number] = term
            pending.extend(term.operands)
    return [found[number] for number in sorted(found)]


@dataclass(frozen=True, order=True)
class Cost:
    """Cost of computing a set of terms: operations first, then elements written, then operators."""

    flops: int
    elements: int
    operators: int


def cost(roots: Iterable[Term]) -> Cost:
    """Count what it takes to compute some terms; what they share counts once."""
    computed = [term for term in reachable(roots) if not term.is_constant and term.operands]
    return Cost(
        sum(term.flops for term in computed),
        sum(prod(term.shape) for term in computed if term.op != "reshape"),
        len(computed),
    )


def evaluate(roots: Sequence[Term], values: Mapping[str, Array]) -> list[Array]:
    """Compute terms with numpy; ``values`` holds the inputs and constants by name."""
    results: dict[int, Array] = {}
    for term in reachable(roots):
        if term.value is not None:
            results[term.number] = np.asarray(term.value)
        elif not term.operands:
            results[term.number] = values[term.name]
        else:
            arrays = [results[operand.number] for operand in term.operands]
            results[term.number] = OPERATORS[term.op].evaluate(arrays, dict(term.attributes))
    return [results[root.number] for root in roots]


def _lower(op: str, operands: tuple[Term, ...]) -> float:
    """Find a number the result of an operator is never less than."""
    lows = [operand.lower for operand in operands]
    if op in ("abs", "square", "exp", "sigmoid", "relu", "softmax"):
        return max(lows[0], 0.0) if op in ("abs", "relu") else 0.0
    if op in ("add", "maximum", "minimum"):
        return {"add": sum(lows), "maximum": max(lows), "minimum": min(lows)}[op]
    if op in ("multiply", "divide") and min(lows) >= 0:
        return lows[0] * lows[1] if op == "multiply" and np.isfinite(lows).all() else 0.0
    if op in ("sqrt", "sum", "prod", "reciprocal", "rsqrt") and lows[0] >= 0:
        return float(np.sqrt(lows[0])) if op == "sqrt" else 0.0
    if op in ("mean", "max", "min", "transpose", "reshape", "slice", "concat"):
        return min(lows)
    return -np.inf
