"""The facts of rank and dimension propagation, and how two of them meet.

One element (a dimension, or an integer inside a small tensor) is one of five kinds: not looked at yet
(:data:`UNDEFINED`, the top), a known constant (``int``), a symbolic constant (the extent of an input), one inferred by
operations on those (both are :class:`~tvm_ext.graph.symbolic.Symbolic`), or not a constant (:data:`NOT_CONSTANT`, the
bottom). The three kinds in the middle are flat: two that are not the same expression meet at the bottom.

Source: SOD2, section 5.3, the lattice ``<V', meet, m>``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypeGuard

import numpy as np

from tvm_ext.graph.symbolic import Dim, Symbolic, substitute, symbols_of

LARGEST_VALUE = 64
"""Elements of a tensor whose values are followed: as many as a tensor can have dimensions."""


class _Extreme:
    """The top or the bottom; arithmetic with it gives the bottom."""

    def __init__(self, name: str) -> None:
        self._name = name

    def _absorb(self, *_others: object) -> _Extreme:
        return NOT_CONSTANT

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __neg__ = _absorb
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = _absorb

    def __repr__(self) -> str:
        return self._name


UNDEFINED = _Extreme("undefined")
NOT_CONSTANT = _Extreme("not constant")

Element: TypeAlias = "int | Symbolic | _Extreme"
Shape: TypeAlias = "tuple[Element, ...] | _Extreme"
"""One element for each dimension; the top or the bottom in place of all where not even the rank is known."""

Value: TypeAlias = "np.ndarray | _Extreme"
"""Array of elements (dtype object) of the tensor's shape."""

Kind = Literal["undefined", "known", "symbolic", "inferred", "not constant"]


@dataclass(frozen=True, eq=False)
class Fact:
    """What is known of a tensor.

    Attributes
    ----------
    shape : tuple of elements, or top or bottom
    value : array of elements, or top or bottom
    """

    shape: Shape = UNDEFINED
    value: Value = UNDEFINED

    def same(self, other: Fact) -> bool:
        """Whether both say the same."""
        return _same_shape(self.shape, other.shape) and _same_value(self.value, other.value)

    @property
    def rank(self) -> int | None:
        """Number of dimensions, None where it is not known."""
        return len(self.shape) if isinstance(self.shape, tuple) else None

    @property
    def dims(self) -> tuple[Element, ...]:
        """The dimensions; none where not even the rank is known."""
        return self.shape if isinstance(self.shape, tuple) else ()

    @property
    def elements(self) -> np.ndarray | None:
        """The values, where all of them are constants of some kind."""
        if not isinstance(self.value, np.ndarray) or any(is_extreme(item) for item in self.value.ravel()):
            return None
        return self.value


UNKNOWN = Fact()
ANYTHING = Fact(NOT_CONSTANT, NOT_CONSTANT)


def is_extreme(element: object) -> bool:
    """Whether an element is the top or the bottom."""
    return isinstance(element, _Extreme)


def kind_of(element: Element) -> Kind:
    """Tell which of the five kinds an element is."""
    if element is UNDEFINED:
        return "undefined"
    if isinstance(element, _Extreme):
        return "not constant"
    if not isinstance(element, Symbolic):
        return "known"
    (monomial, coefficient), *others = element.terms
    plain = not others and coefficient == 1 and len(monomial) == 1 and isinstance(monomial[0], str)
    return "symbolic" if plain else "inferred"


def meet(first: Element, second: Element) -> Element:
    """Combine what two derivations say of one element."""
    if first is UNDEFINED or _equal(first, second):
        return second
    return first if second is UNDEFINED else NOT_CONSTANT


def meet_facts(first: Fact, second: Fact) -> Fact:
    """Combine what two derivations say of one tensor, or the two branches that it may come from."""
    return Fact(_meet_shapes(first.shape, second.shape), _meet_values(first.value, second.value))


def array_of(elements: Sequence[Element], shape: Sequence[int] | None = None) -> np.ndarray:
    """Make an array of elements, a vector by default."""
    array = np.empty(len(elements), object)
    array[:] = elements
    return array.reshape(tuple(shape)) if shape is not None else array


def elements_of(constant: np.ndarray) -> list[Any]:
    """Give the elements of a constant, floating-point numbers in its precision."""
    return list(constant.ravel()) if constant.dtype.kind == "f" else constant.ravel().tolist()


def substituted(shape: Shape, values: dict[str, int]) -> tuple[Any, ...] | None:
    """Put numbers in the places of symbols; None in place of what is no constant, or in place of all."""
    if not isinstance(shape, tuple):
        return None
    return tuple(None if isinstance(dim, _Extreme) else substitute(dim, dict(values)) for dim in shape)


def symbols_in(shape: Shape) -> frozenset[str]:
    """Collect the symbols of a shape."""
    dims = shape if isinstance(shape, tuple) else ()
    return frozenset(name for dim in dims if not isinstance(dim, _Extreme) for name in symbols_of(dim))


def _meet_shapes(first: Shape, second: Shape) -> Shape:
    if isinstance(first, _Extreme) or isinstance(second, _Extreme):
        return second if first is UNDEFINED else first if second is UNDEFINED else NOT_CONSTANT
    if len(first) != len(second):
        return NOT_CONSTANT
    return tuple(map(meet, first, second))


def _meet_values(first: Value, second: Value) -> Value:
    if isinstance(first, _Extreme) or isinstance(second, _Extreme):
        return second if first is UNDEFINED else first if second is UNDEFINED else NOT_CONSTANT
    if first.shape != second.shape:
        return NOT_CONSTANT
    return array_of([meet(*pair) for pair in zip(first.ravel(), second.ravel(), strict=True)], first.shape)


def _equal(first: Element, second: Element) -> bool:
    if isinstance(first, _Extreme) or isinstance(second, _Extreme):
        return first is second
    return bool(first == second)


def _same_shape(first: Shape, second: Shape) -> bool:
    if isinstance(first, _Extreme) or isinstance(second, _Extreme):
        return first is second
    return len(first) == len(second) and all(map(_equal, first, second))


def _same_value(first: Value, second: Value) -> bool:
    if isinstance(first, _Extreme) or isinstance(second, _Extreme):
        return first is second
    return first.shape == second.shape and all(map(_equal, first.ravel(), second.ravel()))


def is_dim(element: object) -> bool:
    """Whether an element is a constant of one of the three kinds in the middle."""
    return isinstance(element, int | np.integer | Symbolic) and not isinstance(element, bool | np.bool_)


def is_float(element: object) -> TypeGuard[float | np.floating]:
    """Whether an element is a floating-point number; it has the precision of its tensor."""
    return isinstance(element, float | np.floating)


def dim_of(element: Any) -> Dim:
    """See an element that is a constant as a size."""
    return element if isinstance(element, Symbolic) else int(element)
