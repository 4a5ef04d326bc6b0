"""A rewriting rule is a row of text: ``before``, ``after``, and what must hold.

The text is Python's expression syntax over the operators of terms. Names of variables say what they may stand for:

====================  =================================================================================
``a b c d``           anything
``k m``               a number that is known when the function is compiled
``u v w``             a tensor that is known when the function is compiled
``r s``               a tensor that does not vary along the axes that the rule reduces
``n``                 (in ``after``) how many elements the reduction in ``before`` takes together
====================  =================================================================================

``sum(a)`` reduces the same axes wherever it stands in a rule; ``sum(a, 'x')`` names them, and ``sum(a, 'x+y')`` joins
two. ``a ** k`` is a power, ``-a`` a negation. Operands of sums and products are matched in either order, and a sum or a
product of two operands also matches two operands of a longer one.

What strict mode holds, for each element of a result and whatever the inputs are:

1. Where ``before`` is finite, in whatever order its sums are taken, ``after`` is finite.
2. There ``after`` is as near to the exact value, up to a small factor, as rounding lets ``before`` be. A value nearer
   to zero than 2**-116, a thousand times the least normal number, counts as anything from zero to twice itself.
3. NaN in an input that reaches ``before`` reaches ``after``.

Where ``before`` overflows, or infinities cancel, ``after`` may be finite, infinite or NaN; the sign of zero may differ.
Rules hold for floats only. Tensors of integers are never rewritten, as their quotients are rounded and their sums wrap
around, nor are float16 and bfloat16, in which weights that absorb a factor leave the range too soon. Constants that a
rule makes must be zero or normal numbers, or it is not applied.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any, Literal, TypeAlias

from tvm_ext.algebra.operators import COUNTING, OPERATORS, REDUCTIONS, ShapeError
from tvm_ext.algebra.term import Term, Terms
from tvm_ext.errors import GraphError

Property: TypeAlias = Literal["associative", "distributive", "commutative"]
Mode: TypeAlias = Literal["strict", "fast"]

_NUMBER, _WEIGHT = "a number", "a weight"  # among the operands of a term, beside operators
_LONGEST_CHAIN = 8  # operands of a sum or product that are looked at in pairs
_BINARY: dict[type, str] = {
    ast.Add: "add",
    ast.Sub: "subtract",
    ast.Mult: "multiply",
    ast.Div: "divide",
    ast.Pow: "power",
}
_CALLS = {"recip": "reciprocal", "shift": "left_shift"}


@dataclass(frozen=True)
class Pattern:
    """A parsed side of a rule: a variable (``op`` is empty), a number, or an operator over patterns."""

    op: str = ""
    operands: tuple[Pattern, ...] = ()
    variable: str = ""
    value: float | None = None
    attribute: str = ""

    def variables(self) -> Iterator[str]:
        """Yield the names of variables, from left to right."""
        if self.variable:
            yield self.variable
        for operand in self.operands:
            yield from operand.variables()

    def operators(self) -> Iterator[str]:
        """Yield the operators, outermost first."""
        if self.op:
            yield self.op
        for operand in self.operands:
            yield from operand.operators()


@dataclass
class Match:
    """What variables and attributes stand for."""

    terms: dict[str, Term] = field(default_factory=dict)
    attributes: dict[str, Any] = field(default_factory=dict)
    rank: int = 0  # of what is reduced
    count: int = 0  # elements that a reduction takes together

    def copy(self) -> Match:
        """Copy, to try something."""
        return Match(dict(self.terms), dict(self.attributes), self.rank, self.count)


@dataclass(frozen=True)
class Rule:
    """One row.

    Attributes
    ----------
    property : str
        The mathematical property it follows from, as the source counts them.
    before, after : str
        Expressions; see the module's documentation.
    needs : tuple of str
        What must be proven of variables, such as ``a>=0`` or ``k>0``: the rule is wrong without it.
    assumes : tuple of str
        What strict mode must prove, and fast mode takes for granted: without it ``before`` is not a number.
    mode : str
        "fast" for a rule that may overflow where the original does not, or that loses digits in cancellation.
    enables : bool
        It need not lower the cost, but lets other rules match.
    integers : bool
        It also holds for integers, wrapping around as they do.
    """

    property: Property
    before: str
    after: str
    needs: tuple[str, ...] = ()
    assumes: tuple[str, ...] = ()
    mode: Mode = "strict"
    enables: bool = False
    integers: bool = False

    def __str__(self) -> str:
        conditions = ", ".join((*self.needs, *self.assumes))
        return f"{self.before} -> {self.after}" + (f" [{conditions}]" if conditions else "")

    @cached_property
    def pattern(self) -> Pattern:
        """``before``, parsed."""
        return parse(self.before)

    @cached_property
    def replacement(self) -> Pattern:
        """``after``, parsed; its variables are those of ``before``."""
        parsed = parse(self.after)
        free = set(parsed.variables()) - set(self.pattern.variables()) - {"n"}
        if free:
            raise GraphError(f"rule '{self}': {', '.join(sorted(free))} is not in the pattern")
        return parsed

    @cached_property
    def operand_kinds(self) -> frozenset[str]:
        """What must be among the operands of a term that matches; see :func:`operand_kinds`."""
        found = set()
        for operand in self.pattern.operands:
            if operand.variable:
                kind = _NUMBER if operand.variable in "km" else _WEIGHT if operand.variable in "uvw" else ""
            else:
                kind = operand.op if operand.value is None else _NUMBER
            found.add(kind)
        return frozenset(found - {""})

    def rewrites(self, term: Term, terms: Terms, mode: Mode) -> Iterator[Term]:
        """Yield what a term becomes by this rule: one for each way it matches.

        Parameters
        ----------
        term : Term
            The outermost operator of the match.
        terms : Terms
            Makes the new terms.
        mode : str
            "strict" or "fast".
        """
        if self.mode == "fast" and mode == "strict":
            return
        for match, rest in self._matches(term):
            if not self._holds(match, mode):
                continue
            try:
                result = build(self.replacement, match, terms)
                for other in rest:
                    result = terms.make(term.op, result, other)
            except ShapeError:
                continue
            if result.shape == term.shape and result is not term:
                yield result

    def _matches(self, term: Term) -> Iterator[tuple[Match, list[Term]]]:
        """Yield matches of the whole term, and of two operands of a chain together with the operands left over."""
        for match in match_pattern(self.pattern, term, Match()):
            yield match, []
        if term.op == self.pattern.op and OPERATORS[term.op].associates:
            chain = _chain(term)
            if 2 < len(chain) <= _LONGEST_CHAIN:
                pattern, other_pattern = self.pattern.operands
                for i, first in enumerate(chain):
                    begun = list(match_pattern(pattern, first, Match()))
                    for j, second in enumerate(chain if begun else ()):
                        if i != j:
                            rest = [other for at, other in enumerate(chain) if at not in (i, j)]
                            for found in begun:
                                for match in match_pattern(other_pattern, second, found):
                                    yield match, rest

    def _holds(self, match: Match, mode: Mode) -> bool:
        conditions = (*self.needs, *(self.assumes if mode == "strict" else ()))
        return all(_is_proven(condition, match) for condition in conditions) and all(
            _is_uniform(term, match) for name, term in match.terms.items() if name in ("r", "s")
        )


def operand_kinds(term: Term) -> set[str]:
    """List the operators of what a term, or the chain it ends, is computed from, and whether numbers and weights are.

    A rule whose own :attr:`Rule.operand_kinds` are not all among them cannot match.
    """
    operands = [*term.operands, *(_chain(term) if OPERATORS[term.op].associates else ())]
    found = {operand.op for operand in operands}
    found.update(_NUMBER for operand in operands if operand.value is not None)
    found.update(_WEIGHT for operand in operands if operand.is_constant and operand.value is None)
    return found


def _chain(term: Term) -> list[Term]:
    found: list[Term] = []
    pending = [term]
    while pending:
        part = pending.pop()
        if part.op == term.op:
            pending.extend(reversed(part.operands))
        else:
            found.append(part)
    return found


def parse(text: str) -> Pattern:
    """Parse one side of a rule.

    Raises
    ------
    GraphError
        When the text is no such expression; the message says where.
    """
    try:
        return _parsed(ast.parse(text, mode="eval").body)
    except (SyntaxError, KeyError, ValueError) as error:
        raise GraphError(f"rule side '{text}' cannot be read: {error}") from None


def _parsed(node: ast.expr) -> Pattern:
    if isinstance(node, ast.Name):
        return Pattern(variable=node.id)
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return Pattern(value=float(node.value))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        if isinstance(node.operand, ast.Constant):
            return Pattern(value=-float(ast.literal_eval(node.operand)))
        return Pattern("negative", (_parsed(node.operand),))
    if isinstance(node, ast.BinOp):
        return Pattern(_BINARY[type(node.op)], (_parsed(node.left), _parsed(node.right)))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        op = _CALLS.get(node.func.id, node.func.id)
        row = OPERATORS[op]
        arguments = [argument for argument in node.args if not _is_text(argument)]
        names = [ast.literal_eval(argument) for argument in node.args if _is_text(argument)]
        if len(arguments) != row.operands:
            raise ValueError(f"{node.func.id} takes {row.operands} operands")
        attribute = (names or list(row.attributes) or [""])[0]
        return Pattern(op, tuple(_parsed(argument) for argument in arguments), attribute=attribute)
    raise ValueError(ast.unparse(node))


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def match_pattern(pattern: Pattern, term: Term, match: Match) -> Iterator[Match]:
    """Yield every way a pattern matches a term."""
    if pattern.variable:
        known = match.terms.get(pattern.variable)
        if known is not None:
            if known is term:
                yield match
        elif _may_stand_for(pattern.variable, term):
            found = match.copy()
            found.terms[pattern.variable] = term
            yield found
        return
    if pattern.value is not None:
        if term.value is not None and abs(term.value - pattern.value) <= 1e-6 * abs(pattern.value):
            yield match
        return
    if term.op != pattern.op:
        return
    if pattern.attribute:
        value = term.attributes[0][1]
        if match.attributes.get(pattern.attribute, value) != value:
            return
        match = match.copy()
        match.attributes[pattern.attribute] = value
        if pattern.op in REDUCTIONS or pattern.op == "softmax":
            match.rank = len(term.shape)
            match.count = prod(term.operands[0].shape) // max(prod(term.shape), 1)
    yield from _match_all(pattern.operands, term.operands, match)
    if OPERATORS[term.op].commutes and pattern.operands[0] != pattern.operands[1]:
        yield from _match_all(pattern.operands, term.operands[::-1], match)


def _match_all(patterns: tuple[Pattern, ...], terms: tuple[Term, ...], match: Match) -> Iterator[Match]:
    if not patterns:
        yield match
        return
    for found in match_pattern(patterns[0], terms[0], match):
        yield from _match_all(patterns[1:], terms[1:], found)


def _may_stand_for(variable: str, term: Term) -> bool:
    if variable in "km":
        return term.value is not None
    return term.is_constant and term.value is None if variable in "uvw" else True


def _is_uniform(term: Term, match: Match) -> bool:
    """Whether a tensor does not vary along the axes that are reduced, aligned with them from the last axis on."""
    axes = match.attributes.get("axes", ())
    missing = match.rank - len(term.shape)
    return all(axis < missing or term.shape[axis - missing] == 1 for axis in axes)


def _is_proven(condition: str, match: Match) -> bool:
    name, relation = condition[0], condition[1:]
    term = match.terms[name]
    if relation == "!=0":
        return term.lower > 0 or (term.value is not None and term.value != 0)
    if relation == ">0":
        return term.lower > 0
    if relation == ">=0":
        return term.lower >= 0
    if relation == " is a row":
        return sum(extent != 1 for extent in term.shape) <= 1 and (not term.shape or prod(term.shape[:-1]) == 1)
    if relation == " is moderate":  # without this factor nothing gets larger, and little gets too small
        return term.value is not None and 1 <= abs(term.value) <= 2**10
    if relation == " is a channel":
        return len(term.shape) == 4 and prod(term.shape) == term.shape[1]
    raise GraphError(f"condition '{condition}' of a rule is not known")


def build(pattern: Pattern, match: Match, terms: Terms) -> Term:
    """Make the term that a replacement stands for.

    Raises
    ------
    ShapeError
        When the operands do not fit together, or a sum would take another number of elements together.
    """
    if pattern.variable:
        return terms.scalar(match.count) if pattern.variable == "n" else match.terms[pattern.variable]
    if pattern.value is not None:
        return terms.scalar(pattern.value)
    operands = [build(operand, match, terms) for operand in pattern.operands]
    row = OPERATORS[pattern.op]
    if not row.attributes:
        return terms.make(pattern.op, *operands)
    parts = [match.attributes[name] for name in pattern.attribute.split("+")]
    value = parts[0] if len(parts) == 1 else tuple(sorted({axis for axes in parts for axis in axes}))
    result = terms.make(pattern.op, *operands, **{row.attributes[0]: value})
    if pattern.op in REDUCTIONS and len(parts) == 1:
        if len(operands[0].shape) != match.rank and pattern.attribute == "axes":
            raise ShapeError("the axes count from another rank")
        taken = prod(operands[0].shape) // max(prod(result.shape), 1)
        if pattern.op in COUNTING and pattern.attribute == "axes" and taken != match.count:
            raise ShapeError("another number of elements would be taken together")
    return result
