"""What the transfer functions of operators share: how they see a node, broadcasting, and comparing sizes.

A transfer function takes a :class:`Step` and gives one :class:`~tvm_ext.shapes.lattice.Fact` for each output, as far as
they go. It may take for granted that the node runs: two sizes that have to be equal are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tvm_ext.graph.symbolic import Symbolic, maximum, minimum
from tvm_ext.shapes.lattice import (
    LARGEST_VALUE,
    NOT_CONSTANT,
    UNDEFINED,
    UNKNOWN,
    Element,
    Fact,
    Shape,
    array_of,
    dim_of,
    is_dim,
    is_extreme,
)
from tvm_ext.shapes.operator_graph import Limits, Operator, bounds


@dataclass(frozen=True)
class Step:
    """A node, and what is known of its inputs.

    Attributes
    ----------
    operator : Operator
    inputs : tuple of Fact
        One for each input; :data:`~tvm_ext.shapes.lattice.UNKNOWN` for what is left out.
    limits : mapping from str to (int, int or None)
        Of the symbols.
    assume : callable
        Notes a condition on sizes that has to hold for the node to run (see :mod:`tvm_ext.conditions`).
    """

    operator: Operator
    inputs: tuple[Fact, ...]
    limits: Mapping[str, Limits]
    assume: Callable[[str], None]

    def given(self, position: int) -> bool:
        """Whether there is an input at a position."""
        return position < len(self.operator.inputs) and bool(self.operator.inputs[position])

    def fact(self, position: int = 0) -> Fact:
        """Say what is known of an input."""
        return self.inputs[position] if self.given(position) else UNKNOWN

    def shape(self, position: int = 0) -> Shape:
        """Shape of an input."""
        return self.fact(position).shape

    def dims(self, position: int = 0) -> tuple[Element, ...] | None:
        """Dimensions of an input; None where not even the rank is known."""
        shape = self.shape(position)
        return shape if isinstance(shape, tuple) else None

    def integers(self, position: int, attribute: str | None = None) -> list[Element] | None:
        """Elements of a small tensor, or of an attribute that takes its place; None where they are not known."""
        if attribute is not None and attribute in self.operator.attributes:
            value = self.operator.attributes[attribute]
            return list(value) if isinstance(value, tuple | list) else [value]
        if not self.given(position):
            return None
        value = self.fact(position).value
        return list(value.ravel()) if isinstance(value, np.ndarray) else None

    def numbers(self, position: int, attribute: str | None = None) -> list[int] | None:
        """Like :meth:`integers`, where all of them are numbers."""
        found = self.integers(position, attribute)
        if found is None or not all(isinstance(item, int | np.integer) for item in found):
            return None
        return [int(item) for item in found]  # type: ignore[arg-type]

    def attribute(self, name: str, default: Any) -> Any:
        """Value of an attribute."""
        return self.operator.attributes.get(name, default)

    def waits(self, *positions: int) -> bool:
        """Whether something is still to come of the inputs, so that nothing can be said yet."""
        return any(self.shape(position) is UNDEFINED for position in positions if self.given(position))

    def needs_equal(self, first: Element, second: Element, or_one: bool = False) -> None:
        """Note that two sizes have to be equal, or one of them 1, where that is not plain."""
        if not is_dim(first) or not is_dim(second) or first == second:
            return
        if isinstance(first, int) and isinstance(second, int):
            return  # whoever imports the model looks at numbers
        ones = [f"{size} == 1" for size in (first, second) if or_one and not self.at_least(size, 2)]
        self.assume(" or ".join([f"{first} == {second}", *ones]))

    def needs_extent(self, size: Element) -> None:
        """Note that an extent must not be negative, where that is not plain."""
        if is_symbolic(size) and not self.at_least(size, 0):
            self.assume(f"{size} >= 0")

    def needs_at_least(self, size: Element, number: int) -> None:
        """Note that an extent must not be less than a number, where that is not plain."""
        if is_symbolic(size) and not self.at_least(size, number):
            self.assume(f"{size} >= {number}")

    def needs_at_most(self, size: Element, other: Element) -> None:
        """Note that a size must not exceed another one, where that is not plain."""
        if is_dim(size) and is_dim(other) and not self.at_least(dim_of(other) - dim_of(size), 0):
            self.assume(f"{size} <= {other}")

    def needs_another_than(self, size: Element, number: int) -> None:
        """Note that an extent must not be a number, where that is not plain."""
        if is_symbolic(size) and not self.at_least(size, number + 1) and not self.at_most(size, number - 1):
            self.assume(f"{size} != {number}")

    def at_least(self, size: Element, number: int) -> bool:
        """Whether a size is proved to be at least a number."""
        return is_dim(size) and bounds(dim_of(size), self.limits)[0] >= number

    def at_most(self, size: Element, number: int) -> bool:
        """Whether a size is proved to be at most a number."""
        return is_dim(size) and bounds(dim_of(size), self.limits)[1] <= number


Transfer = Callable[[Step], list[Fact]]


def of_shape(shape: Shape) -> list[Fact]:
    """One output of a shape, its values unknown."""
    return [Fact(shape, NOT_CONSTANT)]


def with_value(value: Any) -> list[Fact]:
    """One output whose values are known; NumPy gives the element itself in place of an array without dimensions."""
    array = value if isinstance(value, np.ndarray) else array_of([value], ())
    return [Fact(tuple(array.shape), array)] if array.size <= LARGEST_VALUE else of_shape(tuple(array.shape))


def smaller(step: Step, first: Element, second: Element) -> Element:
    """Take the minimum, the one of them where it is proved."""
    return _ordered(step, first, second)[0]


def larger(step: Step, first: Element, second: Element) -> Element:
    """Take the maximum, the one of them where it is proved."""
    return _ordered(step, first, second)[1]


def _ordered(step: Step, first: Element, second: Element) -> tuple[Element, Element]:
    """Give the smaller and the larger of two sizes."""
    if not is_dim(first) or not is_dim(second):
        return NOT_CONSTANT, NOT_CONSTANT
    a, b = dim_of(first), dim_of(second)
    if step.at_least(b - a, 0):
        return a, b
    return (b, a) if step.at_most(b - a, 0) else (minimum(a, b), maximum(a, b))


def broadcast(step: Step, shapes: Sequence[Shape]) -> Shape:
    """Give the shape of an element-wise result."""
    if any(shape is UNDEFINED for shape in shapes):
        return UNDEFINED
    if not all(isinstance(shape, tuple) for shape in shapes):
        return NOT_CONSTANT
    known = [shape for shape in shapes if isinstance(shape, tuple)]
    rank = max(map(len, known), default=0)
    result = []
    for axis in range(-rank, 0):
        dim: Element = 1
        for shape in known:
            if -axis <= len(shape):
                dim = _together(step, dim, shape[axis])
        result.append(dim)
    return tuple(result)


def _together(step: Step, first: Element, second: Element) -> Element:
    """Combine two dimensions, each of which is 1 or that of the result."""
    if not is_extreme(first) and not is_extreme(second) and first == second:
        return first
    for one, other in ((first, second), (second, first)):
        if isinstance(one, int | np.integer):
            if int(one) == 1:
                return other
            step.needs_equal(one, other, or_one=True)
            return one  # the other is 1 or the same
    step.needs_equal(first, second, or_one=True)
    for one in (first, second):
        if step.at_least(one, 2):
            return one  # no 1 itself
    if first is UNDEFINED or second is UNDEFINED:
        return UNDEFINED
    if step.at_least(first, 1) and step.at_least(second, 1):
        return larger(step, first, second)
    if is_dim(first) and is_dim(second):
        # Half of a size, doubled, may be 0 where the size is 1. A run looks whether they are the same.
        return next((one for one in (first, second) if step.at_least(one, 1)), NOT_CONSTANT)
    return NOT_CONSTANT


def axis_of(axis: int, rank: int) -> int | None:
    """Count an axis from the front; None where it is out of range."""
    return axis % rank if -rank <= axis < rank else None


def small_shape(shape: Shape) -> tuple[int, ...] | None:
    """Give a shape in numbers where its tensor is small enough for its values to be followed."""
    if not isinstance(shape, tuple) or not all(isinstance(dim, int | np.integer) for dim in shape):
        return None
    numbers = tuple(int(dim) for dim in shape)  # type: ignore[arg-type]
    return numbers if int(np.prod(numbers, dtype="int64")) <= LARGEST_VALUE else None


def length_of(found: Shape) -> int | None:
    """Count the elements of a vector; None where it is none, or they are not known."""
    known = small_shape(found)
    return known[0] if known is not None and len(known) == 1 else None


def ceil_divided(size: Element, divisor: int) -> Element:
    """Divide and round up."""
    if not is_dim(size):
        return NOT_CONSTANT
    return -(-dim_of(size) // divisor) if isinstance(size, int) else (dim_of(size) + (divisor - 1)) // divisor


def is_symbolic(element: object) -> bool:
    """Whether an element is an expression."""
    return isinstance(element, Symbolic)
