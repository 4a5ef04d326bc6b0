"""Whole numbers that may depend on symbolic dimensions, such as ``4 * m * n + 4 * n``.

A size is an ``int`` where it is known and a :class:`Symbolic` where it is not; arithmetic between the two gives an
``int`` again as soon as all symbols cancel. A :class:`Symbolic` is a polynomial with integer coefficients over *atoms*:
a symbol, or a function of other sizes that is no polynomial (``floordiv``, ``floormod``, ``min``, ``max``). Polynomials
are kept in one canonical form, so sizes with the same polynomial compare equal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from tvm_ext.errors import GraphError

Dim: TypeAlias = "int | Symbolic"
Atom: TypeAlias = "str | Application"
# Atoms of one product in the order of their text, a repeated atom being a power; the empty product is 1.
Monomial: TypeAlias = "tuple[Atom, ...]"

_FUNCTIONS: dict[str, Callable[[int, int], int]] = {
    "floordiv": lambda a, b: a // b,
    "floormod": lambda a, b: a % b,
    "min": min,
    "max": max,
}


@dataclass(frozen=True)
class Application:
    """A function of two sizes that is not a polynomial, kept as it is.

    Attributes
    ----------
    function : str
        ``floordiv``, ``floormod``, ``min`` or ``max``.
    left, right : int or Symbolic
        What it is applied to.
    """

    function: str
    left: Dim
    right: Dim

    def __str__(self) -> str:
        if self.function in ("min", "max"):
            return f"{self.function}({self.left}, {self.right})"
        sign = "//" if self.function == "floordiv" else "%"
        return f"({_operand(self.left)} {sign} {_operand(self.right)})"


@dataclass(frozen=True)
class Symbolic:
    """A polynomial over symbols that is not a constant; make one with :func:`symbol` and arithmetic.

    Attributes
    ----------
    terms : tuple of (monomial, coefficient)
        Sorted by the text of the monomial, coefficients are never zero.
    """

    terms: tuple[tuple[Monomial, int], ...]

    def __add__(self, other: Dim) -> Dim:
        return _collect([*self.terms, *_terms(other)])

    __radd__ = __add__

    def __mul__(self, other: Dim) -> Dim:
        return _collect((_merge(a, b), p * q) for a, p in self.terms for b, q in _terms(other))

    __rmul__ = __mul__

    def __neg__(self) -> Dim:
        return self * -1

    def __sub__(self, other: Dim) -> Dim:
        return self + -1 * other

    def __rsub__(self, other: Dim) -> Dim:
        return -1 * self + other

    def __floordiv__(self, other: Dim) -> Dim:
        if isinstance(other, int) and other and all(c % other == 0 for _, c in self.terms):
            return _collect((m, c // other) for m, c in self.terms)
        return 1 if self == other else _apply("floordiv", self, other)

    def __rfloordiv__(self, other: Dim) -> Dim:
        return _apply("floordiv", other, self)

    def __mod__(self, other: Dim) -> Dim:
        if isinstance(other, int) and other and all(c % other == 0 for _, c in self.terms):
            return 0
        return 0 if self == other else _apply("floormod", self, other)

    def __rmod__(self, other: Dim) -> Dim:
        return _apply("floormod", other, self)

    def __str__(self) -> str:
        text = ""
        for monomial, coefficient in self.terms:
            size = abs(coefficient)
            factors = [str(atom) for atom in monomial]
            if size != 1 or not factors:
                factors.insert(0, str(size))
            sign = "-" if coefficient < 0 else "+"
            text += (f" {sign} " if text else "-" * (sign == "-")) + " * ".join(factors)
        return text

    __repr__ = __str__


def symbol(name: str) -> Symbolic:
    """Make the size that is called ``name``, for instance a symbolic batch."""
    return Symbolic((((name,), 1),))


def minimum(left: Dim, right: Dim) -> Dim:
    """Take the smaller of two sizes."""
    return left if left == right else _apply("min", left, right)


def maximum(left: Dim, right: Dim) -> Dim:
    """Take the larger of two sizes."""
    return left if left == right else _apply("max", left, right)


def product(sizes: Iterable[Dim]) -> Dim:
    """Multiply sizes; 1 for none."""
    result: Dim = 1
    for size in sizes:
        result = result * size
    return result


def total_of(sizes: Iterable[Dim | None]) -> Dim | None:
    """Add sizes up; None when one of them is unknown."""
    result: Dim = 0
    for size in sizes:
        if size is None:
            return None
        result = result + size
    return result


def sort_value(size: Dim | None) -> int:
    """Tell where a size sorts: a symbolic one above all numbers, an unknown one below all."""
    return size if isinstance(size, int) else -1 if size is None else 2**53


def symbols_of(size: Dim | None) -> frozenset[str]:
    """Collect the names of all symbols in a size."""
    if not isinstance(size, Symbolic):
        return frozenset()
    found: set[str] = set()
    for monomial, _ in size.terms:
        for atom in monomial:
            if isinstance(atom, str):
                found.add(atom)
            else:
                found |= symbols_of(atom.left) | symbols_of(atom.right)
    return frozenset(found)


def substitute(size: Dim, values: Mapping[str, Dim]) -> Dim:
    """Replace symbols by other sizes; symbols that ``values`` does not name stay.

    Examples
    --------
    >>> n = symbol("n")
    >>> substitute(4 * n + 2, {"n": 3})
    14
    """
    if not isinstance(size, Symbolic):
        return size
    total: Dim = 0
    for monomial, coefficient in size.terms:
        term: Dim = coefficient
        for atom in monomial:
            if isinstance(atom, str):
                term = term * values.get(atom, symbol(atom))
            else:
                left, right = substitute(atom.left, values), substitute(atom.right, values)
                term = term * apply_function(atom.function, left, right)
        total = total + term
    return total


def evaluate(size: Dim, values: Mapping[str, int], what: str = "size") -> int:
    """Compute the value of a size when its symbols have the given values.

    Parameters
    ----------
    size : int or Symbolic
        The size.
    values : mapping of str to int
        A value for every symbol.
    what : str
        What the size is of, for the error message.

    Raises
    ------
    GraphError
        When a symbol has no value.
    """
    result = substitute(size, values)
    if isinstance(result, int):
        return result
    missing = ", ".join(sorted(symbols_of(result)))
    raise GraphError(f"{what} is {size}, which is no number until {missing} has a value; bind it to one first")


def apply_function(function: str, left: Dim, right: Dim) -> Dim:
    """Apply one of ``floordiv``, ``floormod``, ``min`` and ``max`` to two sizes."""
    if function == "floordiv":
        return left // right
    if function == "floormod":
        return left % right
    return minimum(left, right) if function == "min" else maximum(left, right)


def _apply(function: str, left: Dim, right: Dim) -> Dim:
    if isinstance(left, int) and isinstance(right, int):
        return _FUNCTIONS[function](left, right)
    if right == 1 and function in ("floordiv", "floormod"):
        return left if function == "floordiv" else 0
    return Symbolic((((Application(function, left, right),), 1),))


def _terms(size: Dim) -> tuple[tuple[Monomial, int], ...]:
    return size.terms if isinstance(size, Symbolic) else (((), size),)


def _merge(left: Monomial, right: Monomial) -> Monomial:
    return tuple(sorted((*left, *right), key=str))


def _collect(terms: Iterable[tuple[Monomial, int]]) -> Dim:
    totals: dict[Monomial, int] = {}
    for monomial, coefficient in terms:
        totals[monomial] = totals.get(monomial, 0) + coefficient
    # Longest products first, the constant last: `4 * m * n + n + 2`.
    kept = sorted(((m, c) for m, c in totals.items() if c), key=lambda t: (-len(t[0]), [str(a) for a in t[0]]))
    if not kept:
        return 0
    if len(kept) == 1 and not kept[0][0]:
        return kept[0][1]
    return Symbolic(tuple(kept))


def _operand(size: Dim) -> str:
    simple = isinstance(size, int) or (len(size.terms) == 1 and size.terms[0][1] == 1 and len(size.terms[0][0]) == 1)
    return str(size) if simple else f"({size})"
